"""Test that the chart of deploy/helm passes helm lint, and that its objects and configuration are valid."""

import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from coordinator.config import Config, load_config
from coordinator.operate.admin.page_routes import RUNBOOK_PATH
from tests.deploy.files import DEPLOY, container_environment

CHART = DEPLOY / "helm" / "share-coordinator"
NAMESPACE = "queues"
NOT_IN_KUBERNETES = ("ServiceMonitor", "PrometheusRule")

JOURNAL: dict[str, Any] = {}
TOPIC = {"log": {"type": "kafka"}, "kafka": {"bootstrapServers": "kafka:9092"}, "replicas": 3}
SECURED = {
    **TOPIC,
    "kafka": {"bootstrapServers": "kafka:9093", "secretName": "kafka-client"},
    "listener": {"tlsSecretName": "listener-tls"},
    "http": {"tlsSecretName": "http-tls", "tokenSecretName": "readers"},
    "metrics": {"serviceMonitor": True, "prometheusRule": True, "dashboard": True},
    "networkPolicy": {"extraEgress": [{"ports": [{"port": 443}]}]},
    "settings": {
        "max.connections": 500,
        "share.coordinator.write.timeout.ms": 4000,
        "stop.timeout.ms": 60_000,
    },
}
STRIMZI: dict[str, Any] = yaml.safe_load((DEPLOY / "observe" / "strimzi-values.yaml").read_text("utf-8"))
OBSERVE = {"mode": "observe", "kafka": {"bootstrapServers": "kafka:9092", "secretName": "kafka-client"}}
VALUES = pytest.mark.parametrize(
    "values",
    [JOURNAL, TOPIC, SECURED, OBSERVE, STRIMZI],
    ids=["journal", "topic", "secured", "observe", "strimzi"],
)

Object = dict[str, Any]

pytestmark = pytest.mark.needs("helm")


def run_helm(*arguments: str, values: Object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["helm", *arguments, "--values", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def render_chart(values: Object) -> list[Object]:
    command = ("template", "jobs", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.34.0")
    done = run_helm(*command, values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def find_object(objects: list[Object], kind: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pod_environment(objects: list[Object]) -> dict[str, str]:
    pod_fields = {"metadata.name": "jobs-share-coordinator-0", "metadata.namespace": NAMESPACE}
    return container_environment(_find_container(objects), pod_fields)


@VALUES
def test_helm_lint_reports_nothing(values: Object) -> None:
    done = run_helm("lint", "--strict", "--kube-version", "1.34.0", str(CHART), values=values)
    assert done.returncode == 0, done.stdout


@VALUES
@pytest.mark.parametrize("release", ["1.29", kubernetes_validate.latest_version()])
def test_every_object_matches_kubernetes_schemas(values: Object, release: str) -> None:
    objects = [each for each in render_chart(values) if each["kind"] not in NOT_IN_KUBERNETES]
    assert len(objects) >= (3 if values.get("mode") == "observe" else 4)
    for each in objects:
        kubernetes_validate.validate(each, release, strict=True)


@VALUES
def test_environment_is_valid_configuration(values: Object) -> None:
    objects = render_chart(values)
    variables = pod_environment(objects)
    accepted = {name: value for name, value in variables.items() if not name.endswith("_LOCATION")}
    if values in (SECURED, STRIMZI):
        mounts = {mount["mountPath"] for mount in _find_container(objects)["volumeMounts"]}
        for name in variables.keys() - accepted.keys():
            assert variables[name].rpartition("/")[0] in mounts, name
        return
    config = load_config(environ=accepted).config
    if values is OBSERVE:
        assert config.bootstrap_servers == "kafka:9092"
        return
    assert config.log == ("kafka" if values else "journal")
    assert config.ownership == ("group" if values else "static")
    host = config.advertise.host.split(".")
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    assert services & set(host), "the advertised name is the name of a service"


@VALUES
def test_pod_is_confined(values: Object) -> None:
    objects = render_chart(values)
    pod, container = find_object(objects, "StatefulSet")["spec"]["template"]["spec"], _find_container(objects)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_observer_has_no_listener_and_no_volume() -> None:
    objects = render_chart(OBSERVE)
    assert _find_container(objects)["args"] == ["observe"]
    assert [port["name"] for port in _find_container(objects)["ports"]] == ["http"]
    stateful_set = find_object(objects, "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in stateful_set
    service = find_object(objects, "Service")
    assert stateful_set["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"]["app.kubernetes.io/name"] == "share-coordinator-observer"
    assert service["spec"]["publishNotReadyAddresses"]


def test_strimzi_user_may_only_read_and_describe() -> None:
    user = yaml.safe_load((DEPLOY / "observe" / "strimzi-user.yaml").read_text("utf-8"))
    acls = user["spec"]["authorization"]["acls"]
    assert {operation for acl in acls for operation in acl["operations"]} == {"Describe", "Read"}
    assert user["metadata"]["name"] == STRIMZI["kafka"]["secretName"]


def test_properties_for_hosted_cluster_are_valid() -> None:
    path = DEPLOY / "observe" / "hosted.properties"
    secret = {"SHARE_COORDINATOR_SASL_PASSWORD": "secret", "SHARE_COORDINATOR_BOOTSTRAP_SERVERS": "host:9092"}
    config = load_config(file=path, environ=secret).config
    assert (config.security_protocol, config.sasl.username) == ("SASL_SSL", "API_KEY")


def test_journal_is_on_persistent_volume() -> None:
    stateful_set = find_object(render_chart(JOURNAL), "StatefulSet")
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert pod_environment(render_chart(JOURNAL))["SHARE_COORDINATOR_DATA_DIR"] == "/data"


def test_secured_values_use_each_secret_and_setting() -> None:
    objects = render_chart(SECURED)
    pod = find_object(objects, "StatefulSet")["spec"]["template"]["spec"]
    secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {"listener-tls", "http-tls", "readers", "kafka-client"}
    variables = pod_environment(objects)
    assert variables["SHARE_COORDINATOR_LISTEN_SECURITY_PROTOCOL"] == "SSL"
    assert variables["SHARE_COORDINATOR_MAX_CONNECTIONS"] == "500"
    assert variables["SHARE_COORDINATOR_WRITE_TIMEOUT_MS"] == "4000"
    assert "SHARE_COORDINATOR_LISTEN_PLAINTEXT_ALLOWED" not in variables
    assert _find_container(objects)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert {"ports": [{"port": 443}]} in find_object(objects, "NetworkPolicy")["spec"]["egress"]
    assert pod["terminationGracePeriodSeconds"] == 75


def test_rules_and_dashboard_equal_files_of_repository() -> None:
    objects = render_chart(SECURED)
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8")
    served = f"https://jobs-share-coordinator.{NAMESPACE}.svc:9096{RUNBOOK_PATH}"
    here = f"http://{Config().http}{RUNBOOK_PATH}"
    assert here in alerts
    assert find_object(objects, "PrometheusRule")["spec"] == yaml.safe_load(alerts.replace(here, served))
    published = "https://docs.example/operations/"
    metrics = SECURED["metrics"] | {"runbookUrl": published}
    rules = find_object(render_chart(SECURED | {"metrics": metrics}), "PrometheusRule")["spec"]
    assert rules == yaml.safe_load(alerts.replace(here, published))
    dashboard = (DEPLOY / "grafana" / "dashboards" / "share-coordinator.json").read_text("utf-8")
    assert find_object(objects, "ConfigMap")["data"] == {"share-coordinator.json": dashboard}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 2}, "replicas"),
        ({"log": {"type": "kafka"}}, "bootstrapServers"),
        ({"listner": {}}, "listner"),
        ({"mode": "observe"}, "bootstrapServers"),
    ],
)
def test_invalid_values_are_refused_by_schema(values: Object, named: str) -> None:
    done = run_helm("lint", str(CHART), "--kube-version", "1.34.0", values=values)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def _find_container(objects: list[Object]) -> Object:
    (container,) = find_object(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container
