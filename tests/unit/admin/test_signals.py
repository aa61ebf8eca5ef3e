"""The signals of share groups over HTTP and in the metrics."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coordinator.metrics import Metrics, render_exposition, signal_families
from coordinator.observe.signals import GroupSignals, Problem, SignalMonitor
from coordinator.observe.signals.detectors import SignalEvent
from tests.unit.admin.admin_server import run_admin
from tests.unit.admin.test_state_routes import make_snapshot

STUCK = GroupSignals(group="b", lag=5, problem=Problem.STUCK, message="stuck", stuck_s=90.0, stuck_at="b:t:0")
IDLE = GroupSignals(group="c", lag=0)
BEHIND = GroupSignals(group="a", lag=100)
OBSERVE_PAGE = Path(__file__).parents[3] / "docs" / "observe.md"


def make_monitor(*groups: GroupSignals) -> SignalMonitor:
    monitor = SignalMonitor(None, topics=None, members=None, now_ms=lambda: 0)  # type: ignore[arg-type]
    monitor.groups = {each.group: each for each in groups}
    return monitor


async def test_without_a_monitor_signals_are_empty() -> None:
    async with run_admin([]) as coordinator:
        assert (await coordinator.get("/api/v1/signals")).json() == {"items": [], "total": 0, "problems": 0}
        assert (await coordinator.get("/api/v1/events")).json() == {"items": []}
        assert (await coordinator.get("/api/v1/signal?group=a")).status_code == 404


async def test_group_metrics_are_bounded_and_omit_unknown_values() -> None:
    metrics = Metrics()
    many = [GroupSignals(group=f"idle-{number}", lag=0) for number in range(500)]
    metrics.add_families(lambda: signal_families([*many, IDLE, BEHIND, STUCK]))
    text = (await render_exposition(metrics)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (lag,) = (family for name, family in families.items() if name.endswith("share_group_lag_records"))
    groups = [sample.labels["group"] for sample in lag.samples]
    assert len(groups) == 100
    # Groups are ordered by severity of the problem, then by lag.
    assert groups[:2] == ["b", "a"]
    (members,) = (family for name, family in families.items() if name.endswith("share_group_members"))
    assert members.samples == []
    (problem,) = (family for name, family in families.items() if name.endswith("share_group_problem"))
    assert [sample.labels for sample in problem.samples] == [{"group": "b", "problem": "stuck"}]


async def test_signals_are_listed_by_severity_and_filtered() -> None:
    async with run_admin([], signals=make_monitor(IDLE, BEHIND, STUCK)) as coordinator:
        listed = (await coordinator.get("/api/v1/signals")).json()
        assert [item["group"] for item in listed["items"]] == ["b", "a", "c"]
        assert (listed["total"], listed["problems"]) == (3, 1)
        listed = (await coordinator.get("/api/v1/signals?only_problems=true&limit=1")).json()
        assert [item["message"] for item in listed["items"]] == ["stuck"]
        listed = (await coordinator.get("/api/v1/signals?group=a")).json()
        assert [item["group"] for item in listed["items"]] == ["a"]


async def test_newest_events_are_listed() -> None:
    monitor = make_monitor()
    monitor.events.extend(SignalEvent(number, "a", "stuck", began=True, message="why") for number in range(3))
    async with run_admin([], signals=monitor) as coordinator:
        listed = (await coordinator.get("/api/v1/events?limit=2")).json()["items"]
    event = {"timestamp_ms": 1, "group": "a", "problem": "stuck", "began": True, "message": "why"}
    assert listed == [event, {**event, "timestamp_ms": 2}]


@pytest.mark.parametrize(("sort", "order"), [("problem", ["b", "a", "c"]), ("lag", ["a", "b", "c"])])
async def test_groups_are_listed_with_problem_and_lag_and_sorted_by_them(sort: str, order: list[str]) -> None:
    records = [make_snapshot(group) for group in ("a", "b", "c")]
    async with run_admin(records, signals=make_monitor(STUCK, BEHIND)) as coordinator:
        path = f"/api/v1/groups?sort={sort}&descending=true"
        items = (await coordinator.get(path)).json()["items"]
        assert [item["group"] for item in items] == order
        shown = {item["group"]: (item["problem"], item["lag"], item["in_flight_records"]) for item in items}
        assert shown == {"a": ("none", 100, 0), "b": ("stuck", 5, 0), "c": ("none", None, None)}


def read_documented_keda_trigger() -> dict[str, str]:
    """Return the metadata of the scaler in docs/observe.md."""
    (example,) = re.findall(r"^```yaml\n(triggers:.*?)^```$", OBSERVE_PAGE.read_text("utf-8"), re.M | re.S)
    (trigger,) = yaml.safe_load(example)["triggers"]
    assert trigger["type"] == "metrics-api"
    metadata: dict[str, str] = trigger["metadata"]
    return metadata


@pytest.mark.parametrize(("lag", "value"), [(0, 0), (123, 123), (-1, None)])
async def test_response_meets_contract_of_keda_metrics_api_scaler(lag: int, value: int | None) -> None:
    """The scaler sends GET, requires status 200, and parses JSON regardless of the content type.

    The value at `valueLocation` must be a number; null is an error, so KEDA does not scale on an unknown lag.
    """

    trigger = read_documented_keda_trigger()
    url = urlsplit(trigger["url"])
    async with run_admin([], signals=make_monitor(GroupSignals(group="workers", lag=lag))) as coordinator:
        response = await coordinator.get(f"{url.path}?{url.query}")
        assert response.status_code == 200
        # A GJSON path without dots is the name of a field of the JSON object.
        assert trigger["valueLocation"].isidentifier()
        assert response.json()[trigger["valueLocation"]] == value
        other = await coordinator.get(f"{url.path}?group=nobody")
        assert other.status_code == 404
    assert float(trigger["targetValue"]) > 0
