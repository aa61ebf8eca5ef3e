"""Test the dashboard and the alerts with a real Prometheus that scrapes real processes.

Together, the processes expose every metric: a coordinator with an audited and archived journal, a coordinator
in a group with a Kafka topic, and an observer of an active share group.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

from coordinator.client import FencedStateEpoch, ShareCoordinatorClient
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.deploy.files import DASHBOARD, GRAFANA, alert_rules, read_yaml, recording_rules
from tests.deploy.prometheus import PrometheusServer, find_metric_names
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.observer import ObserverProcess
from tests.kafka.processes import ConditionTimeout, wait_until
from tests.kafka.recovery_process import RecoveryProcess
from tests.kafka.rig import BuiltInRig

# Metrics that have no series as long as no problem exists.
_SILENT = {"share_coordinator_prune_failures_total", "share_coordinator_share_group_problem", "ALERTS"}
# The maximum number of seconds of a wait for a scrape, on a busy machine.
_SCRAPED_S = 300
# Series that Prometheus itself generates.
_NOT_SCRAPED = {"up", "ALERTS"}


class DashboardQuery(NamedTuple):
    """An expression of the dashboard, and the panel or variable that contains it."""

    place: str
    expression: str


def read_dashboard() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return shown


def dashboard_queries() -> Iterator[DashboardQuery]:
    """Yield every expression as Grafana would send it, with all coordinators selected."""
    for panel in read_dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield DashboardQuery(panel["title"], _replace_variables(target["expr"]))
    for annotation in read_dashboard()["annotations"]["list"]:
        yield DashboardQuery(annotation["name"], annotation["expr"])
    for variable in read_dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            # label_values(SELECTOR, LABEL)
            selector = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
            yield DashboardQuery(variable["label"], _replace_variables(selector))


def _replace_variables(expression: str) -> str:
    filled = expression.replace("$__rate_interval", "10s").replace("$job", ".*").replace("$instance", ".*")
    assert "$" not in filled, expression
    return filled


def test_panels_have_title_description_and_separate_positions() -> None:
    panels = read_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        squares = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert taken.isdisjoint(squares), panel["title"]
        assert max(x for x, _ in squares) < 24, panel["title"]
        taken |= squares
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["targets"], panel["title"]


def test_grafana_provisioning_has_dashboard_and_data_source() -> None:
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    uids = {
        holder["datasource"]["uid"]
        for panel in read_dashboard()["panels"]
        for holder in (panel, *panel.get("targets", []))
        if "datasource" in holder
    }
    assert uids == {"${datasource}"}, "the data source must be a variable"
    (provider,) = read_yaml(GRAFANA / "provisioning" / "dashboards" / "share-coordinator.yml")["providers"]
    assert provider["options"] == {"path": "/etc/grafana/dashboards"}


@pytest.fixture(scope="module")
def coordinators(
    built_in: BuiltInRig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[CoordinatorProcess]]:
    # Short intervals for snapshots and pruning.
    # The test writes the state of a group without consumers, whose start offset never moves.
    not_stuck = {"signals.stuck.seconds": "3600"}
    journal = {
        **not_stuck,
        "share.coordinator.snapshot.update.records.per.snapshot": "1",
        "share.coordinator.state.topic.prune.interval.ms": "500",
    }
    group = {
        **not_stuck,
        "bootstrap.servers": built_in.broker.bootstrap,
        "share.coordinator.state.topic.name": "dashboards-state",
        "ownership": "group",
        "group.id": "watched-coordinators",
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(CoordinatorProcess(tmp_path_factory.mktemp(log), log=log, settings=settings))
            for log, settings in (("journal", journal), ("kafka", group))
        ]


@pytest.fixture(scope="module")
def recovery_processes(
    coordinators: list[CoordinatorProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RecoveryProcess]]:
    """Processes that audit and archive the journal of the first coordinator periodically."""
    folder = tmp_path_factory.mktemp("recovery")
    with ExitStack() as stack:
        started = []
        for job in ("audit", "archive"):
            log = folder / f"{job}.log"
            process = RecoveryProcess(job, coordinators[0].data, every="20s", log=log)
            stack.callback(process.kill)
            process.start()
            started.append(process)
        yield started


class ObservedGroup:
    """An observer, and a share group with one member that accepts records as they are produced."""

    def __init__(self, built_in: BuiltInRig, observer: ObserverProcess) -> None:
        self._client = built_in.client
        self._client.create_topic("observed")
        self._client.set_group_config("observed-group", {"share.auto.offset.reset": "earliest"})
        self.observer = observer
        self._consumer = self._client.share_consumer("observed-group", "observed")
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._consume_until_stopped, name="consumer of the observed group"
        )
        self._thread.start()

    def _consume_until_stopped(self) -> None:
        first = 0
        while not self._stop.wait(0.2):
            self._client.produce("observed", 10, first=first)
            first += 10
            records = self._consumer.poll()
            if records:
                self._consumer.acknowledge(["ACCEPT"] * len(records))

    def close(self) -> None:
        self.observer.kill()
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture(scope="module")
def observed_group(built_in: BuiltInRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedGroup]:
    group = ObservedGroup(
        built_in, ObserverProcess(tmp_path_factory.mktemp("observer"), built_in.broker.bootstrap)
    )
    try:
        group.observer.start()
        yield group
    finally:
        group.close()


@pytest.fixture(scope="module")
def prometheus(
    coordinators: list[CoordinatorProcess],
    recovery_processes: list[RecoveryProcess],
    observed_group: ObservedGroup,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PrometheusServer]:
    """A Prometheus that has scraped both coordinators, the observer, an audit and an archive."""
    ports = [each.http_port for each in coordinators] + [each.port for each in recovery_processes]
    server = PrometheusServer(
        tmp_path_factory.mktemp("prometheus"),
        [f"127.0.0.1:{port}" for port in ports],
        observers=[f"127.0.0.1:{observed_group.observer.http_port}"],
    )
    try:
        server.start()
        wait_until(
            lambda: len(server.query("share_coordinator_ready == 1")) == 3,
            seconds=_SCRAPED_S,
            what="three processes are scraped",
        )
        # These metrics appear only after the first run of the audit or the archive.
        first_results = (
            "share_coordinator_audit_verdict == 0",
            'share_coordinator_archive_runs_total{result="whole"} > 0',
        )
        for process, result in zip(recovery_processes, first_results, strict=True):
            process.wait_ready(partial(server.query, result), seconds=_SCRAPED_S)
        yield server
    finally:
        server.kill()


def send_valid_and_invalid_requests(coordinator: CoordinatorProcess, turn: int) -> None:
    """Send some requests from a client, and invalid bytes from another client."""
    key = SharePartitionKey("watched", TOPIC_ID, 0)

    async def write() -> None:
        async with ShareCoordinatorClient(f"127.0.0.1:{coordinator.port}") as client:
            await client.initialize(key, turn, 0)
            for last_offset in range(3):
                batch = StateBatch(0, last_offset, ACKNOWLEDGED, 1)
                await client.write(key, state_epoch=turn, leader_epoch=0, start_offset=0, batches=[batch])
            await client.read(key, 0)
            with suppress(FencedStateEpoch):
                await client.write(key, state_epoch=turn - 1, leader_epoch=0, start_offset=0, batches=[])

    asyncio.run(write())
    with socket.create_connection(("127.0.0.1", coordinator.port), timeout=120) as noise:
        noise.sendall(b"\xff" * 8)
        while noise.recv(1):
            pass


def scraped_metric_names(prometheus: PrometheusServer) -> set[str]:
    return set(prometheus.fetch_api_data("label/__name__/values"))


@pytest.mark.broker
@pytest.mark.needs("prometheus")
def test_every_metric_of_dashboard_and_alerts_exists(
    prometheus: PrometheusServer, coordinators: list[CoordinatorProcess]
) -> None:
    recorded = {rule["record"] for rule in recording_rules()}
    # /metrics lists families without a series, too.
    listed = {
        line.split()[2].decode()
        for coordinator in coordinators
        for line in coordinator.get("/metrics")[1].splitlines()
        if line.startswith(b"# TYPE ")
    }
    known = scraped_metric_names(prometheus) | listed | recorded | _NOT_SCRAPED
    asked = {query: find_metric_names(query.expression) for query in dashboard_queries()}
    for rule in alert_rules():
        asked[DashboardQuery(rule["alert"], rule["expr"])] = find_metric_names(rule["expr"])
    unknown = {query: names - known for query, names in asked.items() if names - known}
    assert unknown == {}
    assert len(asked) > 60


@pytest.mark.broker
@pytest.mark.needs("prometheus")
def test_every_query_of_dashboard_returns_data(
    prometheus: PrometheusServer, coordinators: list[CoordinatorProcess]
) -> None:
    silent_at_first = {
        query for query in dashboard_queries() if not _SILENT & find_metric_names(query.expression)
    }
    turns = count(1)

    def find_silent_queries() -> set[DashboardQuery]:
        send_valid_and_invalid_requests(coordinators[0], next(turns))
        silent_at_first.difference_update(
            [query for query in silent_at_first if prometheus.query(query.expression)]
        )
        return silent_at_first

    try:
        wait_until(lambda: not find_silent_queries(), seconds=_SCRAPED_S, what="every query shows something")
    except ConditionTimeout:
        assert silent_at_first == set()


@pytest.mark.broker
@pytest.mark.needs("prometheus")
def test_healthy_coordinators_raise_no_alert(prometheus: PrometheusServer) -> None:
    def evaluate_rules() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.fetch_api_data("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] == "ok" for rule in rules) else []

    rules = wait_until(evaluate_rules, seconds=_SCRAPED_S, what="every rule was evaluated")
    assert len(rules) == len(alert_rules()) + len(recording_rules())

    def alert_states() -> list[tuple[str, str]]:
        rules = wait_until(evaluate_rules, seconds=_SCRAPED_S, what="every rule was evaluated")
        alerts = [(rule["name"], alert) for rule in rules for alert in rule.get("alerts", [])]
        # Other tests use the same broker, and their groups may have problems.
        return [
            (name, alert["state"])
            for name, alert in alerts
            if alert["labels"].get("group", "watched") in ("watched", "observed-group")
        ]

    def is_no_alert_raised() -> bool:
        """Return whether no alert is pending or firing. A late scrape may cause an alert, which resolves
        soon.
        """
        raised = alert_states()
        assert [name for name, state in raised if state == "firing"] == []
        return not raised

    wait_until(is_no_alert_raised, seconds=_SCRAPED_S, what="no alert is raised")
