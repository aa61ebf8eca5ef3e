"""Each problem of a share group has an alert and a dashboard panel.

tests/browser/test_accessibility.py checks the mark of each problem on the page, and
tests/unit/signals/test_monitor.py the events of problems. tests/deploy/test_share_group_alerts.py raises each
alert in a real Prometheus.
"""

import pytest

from coordinator.observe.signals import Problem
from tests.deploy.files import alert_rules
from tests.deploy.prometheus import find_metric_names
from tests.deploy.test_dashboards import dashboard_queries

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
def test_problem_has_one_alert_and_a_dashboard_panel(problem: Problem) -> None:
    alerts = [rule for rule in alert_rules() if f'problem="{problem.label}"' in rule["expr"]]
    assert len(alerts) == 1
    shown = set().union(*(find_metric_names(query.expression) for query in dashboard_queries()))
    assert f"share_coordinator_share_group_{FIGURES[problem]}" in shown
    assert "share_coordinator_share_group_problem" in shown
