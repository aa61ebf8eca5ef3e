"""Test the built images with an unmodified broker and a share consumer, also when containers are killed.

All of these tests are in one file, so that pytest-xdist runs them in one process with one engine.
"""

import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.certificates import CertificateAuthority
from tests.deploy.compose import ComposeStack, image_tag, resolve_services, running_stack
from tests.deploy.container import CoordinatorContainer
from tests.deploy.engine import CONFINED, NEEDED, DockerEngine, repeat_option, running_engine
from tests.deploy.files import alert_rules, recording_rules
from tests.deploy.local_images import (
    REVISION,
    VERSION,
    build_project_image,
    make_haproxy_image,
    make_kafka_image,
    make_prometheus_image,
    make_python_image,
)
from tests.e2e.delivery_recorder import (
    DeliveryRecorder,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import (
    Broker,
    ConditionTimeout,
    HAProxy,
    KafkaClient,
    KafkaJars,
    ShareGroupTool,
    StandaloneRig,
    fetch_jars,
    free_ports,
    wait_until,
)

pytestmark = [pytest.mark.needs(*NEEDED), pytest.mark.timeout(1800)]


ORDER = re.compile(r"order (\d+)$", re.M)
ENOUGH_ORDERS = 80


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    """An engine with the stand-in for Python's image."""
    with running_engine() as running:
        make_python_image(running)
        yield running


@pytest.fixture(scope="module")
def serve_image(engine: DockerEngine) -> str:
    return build_project_image(engine, "serve")


@pytest.fixture(scope="module")
def rig(
    engine: DockerEngine, serve_image: str, newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneRig]:
    """A broker and HAProxy as processes, and the coordinator in a container."""
    directory = tmp_path_factory.mktemp("container")
    port, http_port, interbroker_port = free_ports(3)
    with ExitStack() as stack:
        coordinator = CoordinatorContainer(engine, serve_image, directory, port=port, http_port=http_port)
        stack.callback(coordinator.discard)
        coordinator.start()
        broker = Broker(newest_jars, directory, interbroker_port=interbroker_port)
        haproxy = HAProxy(
            directory, port=interbroker_port, broker_port=broker.internal_port, coordinator_port=port
        )
        stack.callback(haproxy.kill)
        haproxy.start()
        stack.callback(broker.kill)
        broker.start()
        client = KafkaClient(newest_jars, broker.bootstrap, directory)
        stack.callback(client.close)
        tool = ShareGroupTool(newest_jars, broker.bootstrap)
        yield StandaloneRig(broker, client, tool, haproxy, coordinator)


@pytest.fixture
def container(rig: StandaloneRig) -> CoordinatorContainer:
    assert isinstance(rig.coordinator, CoordinatorContainer)
    return rig.coordinator


def test_image_declares_user_volume_ports_and_entry_point(engine: DockerEngine, serve_image: str) -> None:
    (known,) = json.loads(engine.docker("inspect", serve_image))
    assert known["Config"]["User"] == "10001"
    assert list(known["Config"]["Volumes"]) == ["/data"]
    assert sorted(known["Config"]["ExposedPorts"]) == ["9095/tcp", "9096/tcp"]
    assert known["Config"]["Healthcheck"]["Test"][0] == "CMD"
    # A shell would not forward SIGTERM.
    assert known["Config"]["Entrypoint"] == ["share-coordinator"]
    assert known["Config"]["Cmd"] == ["serve"]
    labels = {name.rpartition(".")[2]: value for name, value in known["Config"]["Labels"].items()}
    assert labels.items() >= {"title": "share-coordinator", "version": VERSION, "revision": REVISION}.items()
    assert labels["licenses"] == "Apache-2.0"
    assert f"share-coordinator {VERSION} " in engine.docker("run", "--rm", serve_image, "--version")
    # The image contains the compiled module.
    loaded = "from coordinator.fastpath import compiled; print(compiled)"
    assert "_compiled" in engine.docker("run", "--rm", "--entrypoint", "python3", serve_image, "-c", loaded)


def test_container_with_tls_becomes_healthy(engine: DockerEngine, serve_image: str, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    issued = CertificateAuthority(folder).issue_certificate("coordinator")
    tokens = folder / "tokens"
    tokens.write_text("somebody read what-only-somebody-knows\n")
    # Only the user of the image may read the secrets.
    for secret in (folder, issued.combined_file, tokens):
        os.chown(secret, 10001, -1)
        secret.chmod(0o700)
    port, http_port = free_ports(2)
    settings = {
        "SHARE_COORDINATOR_LISTEN": f"127.0.0.1:{port}",
        "SHARE_COORDINATOR_HTTP": f"127.0.0.1:{http_port}",
        "SHARE_COORDINATOR_HTTP_SSL_CERTIFICATE_LOCATION": f"/tls/{issued.combined_file.name}",
        "SHARE_COORDINATOR_HTTP_TOKEN_FILE": "/tls/tokens",
    }
    started = engine.docker(
        *("run", "--detach", "--network", "host", *CONFINED, "--health-interval", "1s"),
        *("--volume", f"{folder}:/tls:ro", *repeat_option("--env", settings), serve_image),
    )
    wait_until_healthy(engine, started)
    engine.docker("rm", "--force", "--volumes", started)


def wait_until_healthy(engine: DockerEngine, container: str) -> None:
    def read_health() -> Any:
        return json.loads(engine.docker("inspect", "--format", "{{json .State.Health}}", container))

    try:
        wait_until(lambda: read_health()["Status"] == "healthy", seconds=120, what="it is healthy")
    except ConditionTimeout as error:
        logs = engine.docker("logs", "--tail", "20", container)
        raise ConditionTimeout(f"{error}\n{read_health()}\n{logs}") from None


@pytest.mark.broker
def test_container_is_healthy_without_privileges(
    engine: DockerEngine, container: CoordinatorContainer
) -> None:
    wait_until_healthy(engine, container.NAME)
    assert container.inspect()["HostConfig"]["ReadonlyRootfs"] is True
    status = dict(
        line.split(":", 1)
        for line in engine.docker("exec", container.NAME, "cat", "/proc/1/status").splitlines()
    )
    assert set(status["Uid"].split()) == {"10001"}
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    # The image contains the runbook page, and the process that reads a log for the delivery history can
    # start.
    assert container.get("/runbook")[0] == 200
    code, body = container.get(f"/api/v1/delivery-history?group=none&topic={'A' * 22}&partition=0")
    assert (code, b"has no records" in body) == (404, True), body


@pytest.mark.broker
def test_recovery_image_reads_journal_of_coordinator(
    engine: DockerEngine, rig: StandaloneRig, container: CoordinatorContainer
) -> None:
    """The recovery image mounts the journal read-only while the coordinator runs."""
    topic, group, topic_id = new_topic(rig.client, "recovered")
    produce_records(rig.client, topic, 1, first=0, count=20)
    recorder = DeliveryRecorder()
    consumer = rig.client.share_consumer(group, topic)
    recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, 20, seconds=120)
    consumer.close()
    image = build_project_image(engine, "recovery")

    def run_recovery(job: str, *arguments: str, network: str) -> Any:
        said = engine.docker(
            *("run", "--rm", "--network", network, *CONFINED, "--tmpfs", "/tmp"),
            *("--volume", f"{container.VOLUME}:/data:ro", image, "recovery", job),
            *("--from", "journal:/data", "--output", "json", *arguments),
        )
        return json.loads(said)

    states = run_recovery("rebuild", network="none")["states"]
    (found,) = [state for state in states if (state["group_id"], state["topic_id"]) == (group, topic_id)]
    shown = container.share_partition(group, topic_id, 0)
    assert shown is not None
    assert (found["start_offset"], found["state_epoch"]) == (shown["start_offset"], shown["state_epoch"])
    runs = [
        [(run["first_offset"], run["last_offset"], run["delivery_count"]) for run in batches]
        for batches in (found["state_batches"], shown["in_flight"]["items"])
    ]
    assert runs[0] == runs[1]
    assert shown["start_offset"] > 0
    # The audit compares the log with the running coordinator.
    live = ("--live", f"127.0.0.1:{container.port}")
    audit = run_recovery("audit", *live, network="host")
    assert (audit["verdict"], audit["exit_code"]) == ("clean", 0)
    assert "X1" not in audit["not_checked"]


@pytest.fixture(scope="module")
def stack(
    engine: DockerEngine, serve_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComposeStack]:
    """All services of docker-compose.yml but Grafana."""
    jars = fetch_jars(image_tag(resolve_services()["kafka"]["image"]))
    images = {
        "COORDINATOR_IMAGE": serve_image,
        "HAPROXY_IMAGE": make_haproxy_image(engine),
        "KAFKA_IMAGE": make_kafka_image(engine, jars, tmp_path_factory.mktemp("compose")),
        "PROMETHEUS_IMAGE": make_prometheus_image(engine),
    }
    with running_stack(engine.environment, images) as running:
        yield running


def get_json(port: int, path: str) -> Any:
    """Return the JSON response of a server on this machine, or None if the server does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            return json.load(answer)
    except OSError:
        return None


def read_printed_orders(stack: ComposeStack) -> set[int]:
    """Return the orders that the share consumer has printed."""
    return {int(number) for number in ORDER.findall(stack.run("logs", "--no-color", "consumer"))}


def wait_for_services(stack: ComposeStack, condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition`; on a timeout, add the output of the services."""
    try:
        return wait_until(condition, seconds=600, what=what)
    except ConditionTimeout as error:
        raise ConditionTimeout(f"{error}\n{stack.status_and_logs()}") from None


@pytest.mark.broker
@pytest.mark.needs("docker-compose", "prometheus")
def test_compose_services_lose_no_order_when_coordinator_is_killed(stack: ComposeStack) -> None:
    wait_for_services(stack, lambda: len(read_printed_orders(stack)) > ENOUGH_ORDERS, "orders are consumed")
    stack.run("kill", "coordinator")
    before = read_printed_orders(stack)
    stack.run("start", "coordinator")
    goal = max(before) + ENOUGH_ORDERS
    # All orders up to the goal are consumed, including those in flight at the kill.
    wait_for_services(
        stack, lambda: {*range(1, goal)} <= read_printed_orders(stack), "all orders are consumed"
    )
    listed = wait_for_services(
        stack,
        lambda: get_json(stack.http_port, "/api/v1/share-partitions?group=workers"),
        "the API shows the group",
    )
    assert [each["partition"] for each in listed["items"]] == [0, 1, 2]


@pytest.mark.broker
@pytest.mark.needs("docker-compose", "prometheus")
def test_prometheus_scrapes_coordinator_and_evaluates_rules(stack: ComposeStack) -> None:
    def has_result(expression: str) -> bool:
        answer = get_json(stack.prometheus_port, f"/api/v1/query?query={quote(expression)}")
        return answer is not None and bool(answer["data"]["result"])

    wait_for_services(stack, lambda: has_result('up{job="share-coordinator"} == 1'), "Prometheus scrapes it")
    wait_for_services(stack, lambda: has_result("share_coordinator_ready == 1"), "Prometheus sees it ready")
    moves = 'share_coordinator_rpc_requests_total{api="WriteShareGroupState",code="NONE"} > 0'
    wait_for_services(stack, lambda: has_result(moves), "Prometheus sees writes")
    known = wait_for_services(
        stack, lambda: get_json(stack.prometheus_port, "/api/v1/rules"), "it shows its rules"
    )
    rules = [rule for group in known["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {
        *(rule["alert"] for rule in alert_rules()),
        *(rule["record"] for rule in recording_rules()),
    }
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
