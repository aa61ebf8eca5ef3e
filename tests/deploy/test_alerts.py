"""Test that deploy/prometheus has valid rules, and unit tests and a runbook section for every alert."""

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.config import Config
from coordinator.operate.admin.page_routes import RUNBOOK_PATH, render_runbook
from tests.deploy.files import ALERTS, PROMETHEUS, alert_rules, read_yaml, recording_rules
from tests.kafka.jars import REPOSITORY
from tests.kafka.toolchain import program_path

ALERTS_TEST = PROMETHEUS / "alerts_test.yml"
RUNBOOK = REPOSITORY / "docs" / "operations.md"
EACH_ALERT = pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: str(rule["alert"]))

Rule = dict[str, Any]


def run_promtool(*arguments: str) -> str:
    program = program_path("promtool")
    assert program is not None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.needs("promtool")
def test_promtool_accepts_configuration_and_rules() -> None:
    assert "SUCCESS" in run_promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    rules = len(alert_rules()) + len(recording_rules())
    assert f"{rules} rules found" in run_promtool("check", "rules", str(ALERTS))


@pytest.mark.needs("promtool")
def test_alerts_pass_their_unit_tests() -> None:
    assert "SUCCESS" in run_promtool("test", "rules", str(ALERTS_TEST))


def alerts_in_unit_tests(is_selected: Callable[[Rule], bool]) -> set[str]:
    return {
        check["alertname"]
        for test in read_yaml(ALERTS_TEST)["tests"]
        for check in test["alert_rule_test"]
        if is_selected(check)
    }


def test_every_alert_is_raised_in_one_unit_test_and_not_in_another() -> None:
    alerts = {rule["alert"] for rule in alert_rules()}
    assert alerts_in_unit_tests(lambda check: bool(check.get("exp_alerts"))) == alerts
    assert alerts_in_unit_tests(lambda check: not check.get("exp_alerts")) == alerts


@EACH_ALERT
def test_alert_has_severity_summary_and_runbook_link(rule: Rule) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "runbook_url"}
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url == f"http://{Config().http}{RUNBOOK_PATH}"
    assert anchor in re.findall(r' id="([^"]+)"', render_runbook(RUNBOOK.read_bytes()).decode())


def runbook_section(alert: str) -> str:
    """Return the runbook section of an alert; "" if it is missing."""
    found = re.search(rf"^### {alert}\n(.*?)(?=^##|\Z)", RUNBOOK.read_text("utf-8"), re.M | re.S)
    return found[1] if found else ""


@EACH_ALERT
def test_runbook_explains_alert_and_action(rule: Rule) -> None:
    text = runbook_section(rule["alert"])
    for heading in ("**Means.**", "**Do.**"):
        assert len(text.partition(heading)[2].split()) > 10, f"{rule['alert']}: no text after {heading}"


def test_runbook_has_exactly_the_existing_alerts() -> None:
    headings = re.findall(r"^### (Share\w*)$", RUNBOOK.read_text("utf-8"), re.M)
    assert headings == [rule["alert"] for rule in alert_rules()]


@pytest.mark.parametrize("rule", recording_rules(), ids=lambda rule: str(rule["record"]))
def test_runbook_explains_recording_rule(rule: Rule) -> None:
    assert f"`{rule['record']}`" in RUNBOOK.read_text("utf-8")
