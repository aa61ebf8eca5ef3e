"""Test that deploy/kubernetes is valid and consistent, and contains the same files as deploy/."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from coordinator.config import load_config
from tests.deploy.files import (
    BROKER_LOGGING,
    DEPLOY,
    HAPROXY_CFG,
    container_environment,
    yaml_documents,
)
from tests.deploy.scripts import run_without_starting_the_broker
from tests.kafka.broker import ONE_OF_THREE
from tests.kafka.jars import REPOSITORY, fetch_jars

BROKERS = DEPLOY / "kubernetes" / "brokers.yaml"
COORDINATORS = DEPLOY / "kubernetes" / "coordinators.yaml"
BOTH = pytest.mark.parametrize("path", [BROKERS, COORDINATORS], ids=lambda path: path.stem)

# The oldest supported release: sidecar containers are enabled by default since 1.29.
OLDEST = "1.29"
# Kinds of the Prometheus operator, for which no schema is available offline.
OPERATORS = ("ServiceMonitor",)

Object = dict[str, Any]


def list_objects(path: Path, kind: str) -> list[Object]:
    return [document for document in yaml_documents(path) if document["kind"] == kind]


def find_pod(path: Path) -> Object:
    (stateful_set,) = list_objects(path, "StatefulSet")
    template: Object = stateful_set["spec"]["template"]
    return template


def list_containers(path: Path) -> list[Object]:
    spec = find_pod(path)["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def find_container(path: Path, name: str) -> Object:
    (found,) = [each for each in list_containers(path) if each["name"] == name]
    return found


def is_subset_of(labels: Object, of: Object) -> bool:
    return labels.items() <= of.items()


def pod_labels(path: Path) -> Object:
    """Return the pod labels of the manifest, and the labels that Kubernetes adds to the first pod."""
    (stateful_set,) = list_objects(path, "StatefulSet")
    first = stateful_set["spec"].get("ordinals", {}).get("start", 0)
    return {
        **find_pod(path)["metadata"]["labels"],
        "statefulset.kubernetes.io/pod-name": f"{stateful_set['metadata']['name']}-{first}",
        "apps.kubernetes.io/pod-index": str(first),
    }


@BOTH
@pytest.mark.parametrize("release", [OLDEST, kubernetes_validate.latest_version()])
def test_every_object_matches_kubernetes_schemas(path: Path, release: str) -> None:
    validated = [
        kubernetes_validate.validate(document, release, strict=True)
        for document in yaml_documents(path)
        if document["kind"] not in OPERATORS
    ]
    assert len(validated) >= 5
    assert {release.startswith(version) for version in validated} == {True}


@BOTH
def test_every_container_is_confined(path: Path) -> None:
    spec = find_pod(path)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in list_containers(path):
        context = {**spec["securityContext"], **each["securityContext"]}
        assert context["runAsUser"] > 0
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in each["resources"]["limits"]


@BOTH
def test_selectors_match_pods(path: Path) -> None:
    labels = pod_labels(path)
    (stateful_set,) = list_objects(path, "StatefulSet")
    assert is_subset_of(stateful_set["spec"]["selector"]["matchLabels"], labels)
    for budget in list_objects(path, "PodDisruptionBudget"):
        assert is_subset_of(budget["spec"]["selector"]["matchLabels"], labels)
        assert budget["spec"]["maxUnavailable"] == 1
    for policy in list_objects(path, "NetworkPolicy"):
        assert is_subset_of(policy["spec"]["podSelector"]["matchLabels"], labels)
    one_pod = "statefulset.kubernetes.io/pod-name"
    for service in list_objects(path, "Service"):
        selector = service["spec"]["selector"]
        assert one_pod in selector or is_subset_of(selector, labels)
    names = {service["metadata"]["name"] for service in list_objects(path, "Service")}
    assert stateful_set["spec"]["serviceName"] in names


@BOTH
def test_network_policy_and_services_match_container_ports(path: Path) -> None:
    listens = {port["containerPort"] for each in list_containers(path) for port in each["ports"]}
    (policy,) = list_objects(path, "NetworkPolicy")
    let_in = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert let_in == listens
    served = {port["port"] for service in list_objects(path, "Service") for port in service["spec"]["ports"]}
    assert served == listens


@BOTH
def test_service_monitor_uses_job_name_of_alerts(path: Path) -> None:
    (monitor,) = list_objects(path, "ServiceMonitor")
    assert set(monitor["spec"]) == {"jobLabel", "selector", "endpoints"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint == {"port": "http", "path": "/metrics", "interval": "15s"}
    labels = monitor["spec"]["selector"]["matchLabels"]
    (service,) = [
        each for each in list_objects(path, "Service") if is_subset_of(labels, each["metadata"]["labels"])
    ]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "share-coordinator"
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    http = find_container(path, "share-coordinator")["ports"][1]
    assert http == {"name": "http", "containerPort": 9096}


def coordinator_environment(path: Path) -> dict[str, str]:
    """Return the environment of the coordinator in the first pod."""
    pod_fields = {
        "metadata.name": pod_labels(path)["statefulset.kubernetes.io/pod-name"],
        "metadata.namespace": "default",
        "metadata.labels['apps.kubernetes.io/pod-index']": pod_labels(path)["apps.kubernetes.io/pod-index"],
    }
    return container_environment(find_container(path, "share-coordinator"), pod_fields)


@BOTH
def test_coordinators_are_configured_as_group(path: Path) -> None:
    config = load_config(environ=coordinator_environment(path)).config
    assert (config.log, config.ownership) == ("kafka", "group")
    assert (config.listen.host, config.http.host) == ("0.0.0.0", "0.0.0.0")
    assert config.log_format == "json"
    hosts = {service["metadata"]["name"] for service in list_objects(path, "Service")}
    advertised = config.advertise.host.split(".")
    if path is BROKERS:
        assert advertised == ["kafka-1"]
        assert config.broker_id == 1
        bootstrap = {server.partition(":")[0] for server in config.bootstrap_servers.split(",")}
        assert {*advertised, *bootstrap} <= hosts
    else:
        assert advertised == ["share-coordinator-0", "share-coordinators", "default", "svc"]
        assert advertised[1] in hosts


def is_allowed(rules: list[Object], direction: str, labels: Object, port: int) -> bool:
    """Return whether a network policy rule allows pods of this namespace with these labels at the port."""
    return any(
        port in {each["port"] for each in rule["ports"]}
        and any(
            is_subset_of(peer["podSelector"].get("matchLabels", {}), labels)
            for peer in rule.get(direction, [])
            if "podSelector" in peer
        )
        for rule in rules
    )


@BOTH
def test_coordinators_reach_each_other_and_the_brokers(path: Path) -> None:
    config = load_config(environ=coordinator_environment(path)).config
    (policy,) = list_objects(path, "NetworkPolicy")
    ingress, egress = policy["spec"]["ingress"], policy["spec"]["egress"]
    brokers = pod_labels(BROKERS)
    assert is_allowed(egress, "to", pod_labels(path), config.advertise.port)
    for labels in (pod_labels(path), brokers):
        assert is_allowed(ingress, "from", labels, config.advertise.port)
    for server in config.bootstrap_servers.split(","):
        assert is_allowed(egress, "to", brokers, int(server.partition(":")[2]))


@BOTH
def test_coordinator_container_matches_image(path: Path) -> None:
    said = dict(
        line.split(" ", 1)
        for line in (REPOSITORY / "Dockerfile").read_text("utf-8").partition("AS base\n")[2].splitlines()
        if line.startswith(("USER ", "EXPOSE ", "CMD ", "ENTRYPOINT "))
        and line not in ("USER root", 'CMD ["recovery", "--help"]')
    )
    each = find_container(path, "share-coordinator")
    context = {**find_pod(path)["spec"]["securityContext"], **each["securityContext"]}
    assert str(context["runAsUser"]) == said["USER"]
    assert [str(port["containerPort"]) for port in each["ports"]] == said["EXPOSE"].split()
    assert "command" not in each, "the entry point of the image"
    assert each["args"] == json.loads(said["CMD"])


@BOTH
def test_grace_period_exceeds_stop_timeout(path: Path) -> None:
    config = load_config(environ=coordinator_environment(path)).config
    assert find_pod(path)["spec"]["terminationGracePeriodSeconds"] * 1000 > config.stop_timeout_ms + 10_000


def list_probes(path: Path) -> Iterator[tuple[str, Object]]:
    for name, value in find_container(path, "share-coordinator").items():
        if name.endswith("Probe"):
            yield name, value


@BOTH
def test_probes_use_livez_and_readyz(path: Path) -> None:
    """The manifests have no startup probe, because this probe would kill a coordinator that waits for its
    brokers.
    """
    assert {name: probe["httpGet"] for name, probe in list_probes(path)} == {
        "livenessProbe": {"path": "/livez", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }


def test_splitter_and_coordinator_are_sidecars_of_broker() -> None:
    spec = find_pod(BROKERS)["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["splitter", "share-coordinator"]
    assert {each["restartPolicy"] for each in spec["initContainers"]} == {"Always"}
    assert [each["name"] for each in spec["containers"]] == ["kafka"]
    assert find_container(BROKERS, "splitter").keys().isdisjoint({"env", "envFrom"}), (
        "the defaults of the file"
    )


def test_brokers_resolve_each_other_before_they_are_ready() -> None:
    (stateful_set,) = list_objects(BROKERS, "StatefulSet")
    spec = stateful_set["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    first = spec["ordinals"]["start"]
    pods = [f"kafka-{first + index}" for index in range(spec["replicas"])]
    by_name = {service["metadata"]["name"]: service["spec"] for service in list_objects(BROKERS, "Service")}
    settings = ONE_OF_THREE.read_text("utf-8")
    for name in pods:
        assert f"{name}:9093" in settings
        assert by_name[name]["selector"] == {"statefulset.kubernetes.io/pod-name": name}
        assert by_name[name]["publishNotReadyAddresses"] is True
        assert by_name[name]["clusterIP"] == "None"


def test_config_map_equals_files_of_deploy() -> None:
    _, files = list_objects(BROKERS, "ConfigMap")
    assert files["data"] == {
        "haproxy.cfg": HAPROXY_CFG.read_text("utf-8"),
        "broker-K.properties": ONE_OF_THREE.read_text("utf-8"),
        "log4j2.properties": BROKER_LOGGING.read_text("utf-8"),
    }
    (volume,) = [each for each in find_pod(BROKERS)["spec"]["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == files["metadata"]["name"]


@pytest.mark.broker
def test_storage_is_formatted_at_first_start_and_reused(tmp_path: Path) -> None:
    kafka = find_container(BROKERS, "kafka")
    jars = fetch_jars(kafka["image"].rpartition(":")[2])
    cluster, _ = list_objects(BROKERS, "ConfigMap")
    settings = tmp_path / "broker-K.properties"
    data = tmp_path / "data"
    settings.write_text(ONE_OF_THREE.read_text("utf-8").replace("/var/lib/kafka/data", str(data)))
    elsewhere = {"/etc/share-groups/broker-K.properties": settings, "/tmp/broker": tmp_path / "broker"}
    (script,) = kafka["args"]
    for said in ("Formatting", "already formatted"):
        printed = run_without_starting_the_broker(
            script, jars, tmp_path, elsewhere, {**cluster["data"], "K": "2"}
        )
        assert said in printed
    formatted = (data / "meta.properties").read_text("utf-8")
    assert "node.id=2" in formatted
    assert f"directory.id={cluster['data']['ID_2']}" in formatted
