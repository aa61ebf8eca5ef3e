"""The signals of share groups over HTTP and in the metrics."""

from prometheus_client.parser import text_string_to_metric_families

from coordinator.metrics import Metrics, exposition
from coordinator.signals import GroupSignals, Problem
from tests.unit.admin.admin_server import admin, async_test

STUCK = GroupSignals(group="b", lag=5, problem=Problem.STUCK, message="stuck", stuck_s=90.0, stuck_at="b:t:0")
IDLE = GroupSignals(group="c", lag=0)
BEHIND = GroupSignals(group="a", lag=100)


@async_test
async def test_without_a_monitor_signals_are_empty() -> None:
    async with admin([]) as coordinator:
        assert (await coordinator.get("/api/v1/signals")).json() == {"items": [], "total": 0, "problems": 0}
        assert (await coordinator.get("/api/v1/events")).json() == {"items": []}
        assert (await coordinator.get("/api/v1/signal?group=a")).status_code == 404


@async_test
async def test_group_metrics_are_bounded_and_omit_unknown_values() -> None:
    metrics = Metrics()
    many = [GroupSignals(group=f"idle-{number}", lag=0) for number in range(500)]
    metrics.attach_signals(lambda: [*many, IDLE, BEHIND, STUCK])
    text = (await exposition(metrics)).decode()
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
