"""The files in deploy/relay: valid settings, a patch that fits the manifest, and consistent units."""

from typing import Any

import kubernetes_validate

from coordinator.config import load_config
from tests.deploy.files import DEPLOY, read_unit, yaml_documents

RELAY = DEPLOY / "relay"
SERVICE = RELAY / "share-coordinator-relay.service"


def test_example_properties_are_valid_for_the_relay() -> None:
    config = load_config(file=RELAY / "relay.properties").config
    config.check_relay()
    assert config.relay_security_protocol == "SASL_SSL"
    socket = read_unit(RELAY / "share-coordinator-relay.socket")["Socket"]
    assert socket["ListenStream"] == str(config.relay_listen)


def test_systemd_unit_has_sufficient_limits_for_the_relay() -> None:
    service = read_unit(SERVICE)["Service"]
    assert service["ExecStart"].split()[1:3] == ["relay", "--config"]
    config = load_config().config
    assert int(service["TimeoutStopSec"].removesuffix("s")) * 1000 > config.relay_stop_timeout_ms
    assert int(service["LimitNOFILE"]) > 2 * config.relay_connections_max
    # An unauthenticated connection takes up to 400 KiB (docs/routing.md).
    assert int(service["MemoryMax"].removesuffix("G")) << 30 > config.relay_connections_max * (400 << 10)


def test_readme_has_the_commands_to_make_the_key_readable() -> None:
    service = read_unit(SERVICE)["Service"]
    assert service["DynamicUser"] == "yes", "a dynamic user owns no files"
    group = service["SupplementaryGroups"]
    key = load_config(file=RELAY / "relay.properties").config.relay_ssl.certificate_location
    page = (RELAY / "README.md").read_text("utf-8")
    for command in (f"groupadd --system {group}", f"chgrp {group} {key}", f"chmod 640 {key}"):
        assert command in page


def test_systemd_unit_restarts_the_relay_without_a_limit() -> None:
    relay = read_unit(SERVICE)
    assert relay["Service"]["Restart"] == "always"
    # In any section but [Unit], systemd ignores this setting and gives up after five quick failures.
    assert relay["Unit"]["StartLimitIntervalSec"] == "0"


def merge_patch(whole: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: lists of named items merge by name, null deletes."""
    if isinstance(patch, dict) and isinstance(whole, dict):
        merged = {**whole, **{key: merge_patch(whole.get(key), value) for key, value in patch.items()}}
        return {key: value for key, value in merged.items() if value is not None}
    if isinstance(patch, list) and isinstance(whole, list) and all(isinstance(each, dict) for each in patch):
        names = [each["name"] for each in whole]
        merged_list = list(whole)
        for each in patch:
            if each["name"] in names:
                at = names.index(each["name"])
                merged_list[at] = merge_patch(whole[at], each)
            else:
                merged_list.append(each)
        return merged_list
    return patch


def test_kubernetes_patch_replaces_haproxy_with_the_relay() -> None:
    (stateful_set,) = (
        document
        for document in yaml_documents(DEPLOY / "kubernetes" / "brokers.yaml")
        if document["kind"] == "StatefulSet"
    )
    (patch,) = yaml_documents(RELAY / "kubernetes.yaml")
    whole = merge_patch(stateful_set, patch)
    kubernetes_validate.validate(whole, "1.29", strict=True)

    containers = {each["name"]: each for each in whole["spec"]["template"]["spec"]["initContainers"]}
    assert len(containers) == len(stateful_set["spec"]["template"]["spec"]["initContainers"])
    splitter, coordinator = containers["splitter"], containers["share-coordinator"]
    assert splitter["image"] == coordinator["image"]
    assert set(splitter["livenessProbe"]) == {"httpGet", "periodSeconds"}
    relay = load_config(environ=relay_environment(splitter)).config
    relay.check_relay()
    ports = {port["name"]: port["containerPort"] for port in splitter["ports"]}
    assert (relay.relay_listen.port, relay.relay_http.port) == (ports["interbroker"], ports["relay-http"])
    served = load_config(environ=relay_environment(coordinator)).config
    assert served.listen == relay.relay_coordinator
    assert served.advertise.port == relay.relay_listen.port


def test_readme_states_that_prometheus_cannot_reach_the_relay() -> None:
    manifests = yaml_documents(DEPLOY / "kubernetes" / "brokers.yaml")
    (policy,) = (each for each in manifests if each["kind"] == "NetworkPolicy")
    (patch,) = yaml_documents(RELAY / "kubernetes.yaml")
    splitter = patch["spec"]["template"]["spec"]["initContainers"][0]
    port = load_config(environ=relay_environment(splitter)).config.relay_http.port
    assert port not in {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]}
    notice = f"the kubelet's probes reach port {port}, but Prometheus does not"
    assert notice in (RELAY / "README.md").read_text("utf-8")


def relay_environment(container: dict[str, Any]) -> dict[str, str]:
    """Return the SHARE_COORDINATOR_ variables of a container with constant values; $(POD_NAME) is kafka-1."""
    return {
        each["name"]: each["value"].replace("$(POD_NAME)", "kafka-1")
        for each in container["env"]
        if "value" in each and each["name"].startswith("SHARE_COORDINATOR_")
    }
