"""Test the reports of an audit: verdict, findings with explanations, and skipped checks."""

import json
import re
from pathlib import Path

import pytest

from coordinator.recovery.audit import AuditOptions, AuditResult
from coordinator.recovery.checks.catalogue import CATALOGUE
from coordinator.recovery.report import EXAMPLES_MAX, as_json, as_text, finding_sections, format_place
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.share_groups import SimulatedShareGroups, audit_segments, write_log
from tests.unit.cli.command_line import CommandLine

EVIL = "<b>&\"'|`_*[x](y)"
# A group id with a bidirectional override and a terminal escape.
HOSTILE = "\u202eevil\x9b31m"


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = SimulatedShareGroups(3, 40, names=("group-0", EVIL)).run_steps(900).log
    for name in ("K1", "K14", "R4", "R9", "P2"):
        FAULTS[name](log)
    return write_log(tmp_path_factory.mktemp("log"), log)


@pytest.fixture(scope="module")
def audit_result(log_folder: Path) -> AuditResult:
    return audit_segments(log_folder, AuditOptions(limits=CLEAN_LIMITS._replace(updates_max=1)))


@pytest.fixture(scope="module")
def hostile_audit(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """An audit that has findings only about the group with the hostile name."""
    log = SimulatedShareGroups(3, names=(HOSTILE,)).run_steps(600).log
    FAULTS["K1"](log)
    return audit_segments(write_log(tmp_path_factory.mktemp("log"), log), AuditOptions(limits=CLEAN_LIMITS))


def test_text_starts_with_verdict_and_ends_with_unchecked(audit_result: AuditResult) -> None:
    lines = as_text(audit_result).splitlines()
    assert (
        lines[0]
        == f"Recovery audit of {audit_result.manifest['source']}: {audit_result.summary_line.upper()}"
    )
    assert "after it: NO: " in " ".join(" ".join(lines).split())
    severities = [line.split()[0] for line in lines if re.match(r"(CRITICAL|WARNING|INFO) ", line)]
    assert severities == sorted(severities, key=("CRITICAL", "WARNING", "INFO").index)
    commands = {group.command for group in audit_result.verdict.groups}
    assert all(len(line) <= 100 or line.strip() in commands for line in lines)
    assert {line.split()[2] for line in lines if line.startswith("not run")} == {
        f"{check}:" for check in audit_result.not_checked
    }
    (group, *_) = audit_result.verdict.groups
    assert any(line.strip() == group.command for line in lines)


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("P4", "P4 in 1 state partition"),
        ("K9", "yes"),
    ],
)
def test_headline_is_yes_only_if_the_whole_log_was_read(fault: str, answer: str, tmp_path: Path) -> None:
    log = SimulatedShareGroups(3).run_steps(600).log
    limits = FAULTS[fault](log) or CLEAN_LIMITS
    found = audit_segments(write_log(tmp_path, log), AuditOptions(limits=limits))
    assert found.verdict.headline.endswith(answer)
    passed = next(line for line in as_text(found).splitlines() if line.startswith("passed"))
    assert ("in what could be read:" in passed) == (fault == "P4")


def test_finding_without_state_partition_is_reported_for_the_log() -> None:
    row = {"group_id": None, "state_partition": -1, "log_offset": -1, "last_log_offset": -1, "count": 1}
    assert format_place(row) == "the log"
    assert format_place({**row, "count": 3}) == "the log, 3 times"
    assert format_place({**row, "state_partition": 0, "log_offset": 4, "last_log_offset": 4}) == (
        "state partition 0, offset 4"
    )


def test_examples_are_limited_and_all_findings_are_counted(audit_result: AuditResult) -> None:
    (section,) = (each for each in finding_sections(audit_result) if each.check.id == "K9")
    assert len(section.rows) > EXAMPLES_MAX > len(section.examples)
    text = as_text(audit_result)
    assert section.count_text in text
    assert f"... and {len(section.rows) - len(section.examples)} more; by group: " in " ".join(text.split())


def test_json_report_has_all_findings_checks_and_partitions(audit_result: AuditResult) -> None:
    report = json.loads(as_json(audit_result))
    assert (report["verdict"], report["exit_code"]) == (audit_result.summary_line, 2)
    assert len(report["findings"]) == len(audit_result.findings)
    assert all(each["meaning"] and each["advice"] for each in report["findings"])
    assert set(report["passed"]) | {each["check"] for each in report["findings"]} | set(
        report["not_checked"]
    ) == set(CATALOGUE)
    assert sum(each["records"] for each in report["partitions"]) == report["manifest"]["totals"]["records"]


def test_json_contains_no_control_characters(hostile_audit: AuditResult) -> None:
    report = as_json(hostile_audit)
    assert all(line.isprintable() for line in report.split("\n"))
    assert HOSTILE in {each["group_id"] for each in json.loads(report)["findings"]}


def test_clean_report_is_short(tmp_path: Path) -> None:
    run = audit_segments(
        write_log(tmp_path / "log", SimulatedShareGroups(3).run_steps(50).log),
        AuditOptions(limits=CLEAN_LIMITS),
    )
    text = as_text(run)
    assert text.startswith(f"Recovery audit of segments:{tmp_path / 'log'}: clean\n")
    assert "updates after it: yes" in text


def test_empty_log_has_report(tmp_path: Path) -> None:
    (tmp_path / "log" / "__share_group_state-0").mkdir(parents=True)
    (tmp_path / "log" / "__share_group_state-0" / f"{0:020}.log").write_bytes(b"")
    run = audit_segments(tmp_path / "log")
    assert (run.summary_line, len(run.states)) == ("clean", 0)
    assert as_text(run).startswith("Recovery audit of ")


def test_audit_command_has_exit_codes_reports_and_baseline(
    share_coordinator: CommandLine, log_folder: Path, tmp_path: Path
) -> None:
    source = f"segments:{log_folder}"
    command = (
        "recovery",
        "audit",
        "--from",
        source,
        "--set=share.coordinator.snapshot.update.records.per.snapshot=12",
    )
    kept = tmp_path / "kept"
    result = share_coordinator(*command, "--to", str(kept))
    assert result.exit_code == 2
    assert result.out.startswith(f"Recovery audit of {source}: ")
    assert {path.name for path in kept.iterdir()} == {
        *("_manifest.json", "states.parquet", "findings.parquet", "ranges.parquet")
    }
    result = share_coordinator(*command, "--baseline", str(kept), "-o", "json")
    assert "X3" not in json.loads(result.out)["not_checked"]
    # A baseline that lost states is refused: the comparison would not miss them.
    states = kept / "states.parquet"
    for lost in (min(states.iterdir()), states):
        lost.rename(tmp_path / "aside")
        result = share_coordinator(*command, "--baseline", str(kept))
        assert (result.exit_code, result.out) == (3, "")
        assert f"{states} is damaged" in result.err
        (tmp_path / "aside").rename(lost)
    # A clean log has exit code 0.
    clean = tmp_path / "clean"
    write_log(clean, SimulatedShareGroups(3).run_steps(400).log)
    result = share_coordinator("recovery", "audit", "--from", f"segments:{clean}")
    assert result.exit_code == 0, result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "segments:/no/such/folder"], "an existing directory"),
        (["--from", "segments:/", "--baseline", "/no/such/folder"], "a run that finished"),
        (["--from", "segments:/", "--every", "1s"], "a directory with --every"),
        (["--from", "segments:/", "--every", "soon"], "a duration such as 30s, 5m or 1h"),
        (["--from", "segments:/", "--every", "5m", "--metrics-listen", "9097"], "HOST:PORT"),
        (["--from", "segments:/", "--baselin", "x"], "cannot be used"),
        ([], "--from"),
        (["--from"], "--from"),
        (["--from", "segments:/", "--state-partitions", "x"], "--state-partitions"),
        (["--from", "segments:/", "--state-partitions", "-1"], "--state-partitions"),
        (["--from", "segments:/", "-o", "yaml"], "yaml"),
    ],
)
def test_audit_that_cannot_run_has_exit_code_three(
    share_coordinator: CommandLine, arguments: list[str], message: str
) -> None:
    result = share_coordinator("recovery", "audit", *arguments)
    assert (result.exit_code, result.out) == (3, "")
    assert message in result.err
    # For an invalid option, Typer prints the usage before the error.
    assert result.err.count("\n") == 1 or result.err.startswith("Usage:")
