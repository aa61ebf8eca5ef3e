"""Each problem of a share group has an alert, a dashboard panel, a runbook section and an event.

tests/browser/test_accessibility.py checks its mark on the page, and tests/deploy/test_share_group_alerts.py
raises each alert in a real Prometheus.
"""

import json

import pytest

from coordinator.observe.signals import GroupSignals, Problem
from coordinator.observe.signals.monitor import SignalEvent, SignalMonitor
from tests.deploy.files import DASHBOARD, alert_rules
from tests.deploy.prometheus import metric_names

# The metric that shows the course of each problem.
FIGURES = {
    Problem.NO_CONSUMERS: "members",
    Problem.POISON: "near_delivery_limit_records",
    Problem.OUTAGE: "released_records_per_second",
    Problem.STUCK: "stuck_seconds",
    Problem.LOST_BEFORE_DELIVERY: "lost_records",
}
EACH_PROBLEM = pytest.mark.parametrize(
    "problem", [problem for problem in Problem if problem is not Problem.NONE], ids=lambda each: each.label
)


@EACH_PROBLEM
def test_problem_has_one_alert(problem: Problem) -> None:
    alerts = [rule for rule in alert_rules() if f'problem="{problem.label}"' in rule["expr"]]
    assert len(alerts) == 1


@EACH_PROBLEM
def test_problem_has_a_dashboard_panel(problem: Problem) -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    shown = {
        name
        for panel in panels
        for target in panel.get("targets", [])
        for name in metric_names(target["expr"].replace("$__rate_interval", "1m"))
    }
    assert f"share_coordinator_share_group_{FIGURES[problem]}" in shown
    assert "share_coordinator_share_group_problem" in shown


@EACH_PROBLEM
def test_problem_raises_an_event_when_it_begins_and_ends(problem: Problem) -> None:
    events: list[SignalEvent] = []
    monitor = SignalMonitor(
        None,  # type: ignore[arg-type]
        topics=None,
        members=None,
        now_ms=lambda: 7,
        event_raised=events.append,
    )
    found = {"workers": GroupSignals(group="workers", problem=problem, message="why")}
    monitor._raise_events(found)
    monitor.groups = found
    monitor._raise_events({"workers": GroupSignals(group="workers")})
    assert [(event.group, event.problem, event.began) for event in events] == [
        ("workers", problem.label, True),
        ("workers", problem.label, False),
    ]
    assert events[0].message == "why"
