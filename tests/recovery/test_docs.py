"""Test docs/recovery.md: every example command prints the documented output."""

import re
import shlex
from pathlib import Path

import pytest

from coordinator.recovery.checks.catalogue import CATALOGUE
from coordinator.recovery.checks.findings import FINDINGS
from coordinator.recovery.schema import HISTORY, RECORDS, STATES
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.share_groups import SimulatedShareGroups, write_log
from tests.unit.cli.command_line import CommandLine

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
RUN_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d+")
# Examples with this option need a running coordinator; test_jobs_on_coordinators.py runs them.
LIVE = "--live"


def read_examples() -> list[tuple[str, list[str]]]:
    """Return each command of the page and the lines of its output."""
    found = []
    for block in re.findall(r"```\n\$ (.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL):
        command, *lines = block.split("\n")
        found.append((command, lines))
    return found


def write_example_log(folder: Path) -> None:
    """Write the log of the page's examples."""
    log = SimulatedShareGroups(7, 12).run_steps(1500).log
    FAULTS["K8"](log)
    FAULTS["K1"](log)
    write_log(folder, log)


def test_examples_print_documented_output(
    share_coordinator: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_example_log(tmp_path / "backup")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARE_COORDINATOR_JOURNAL_SEGMENT_BYTES", str(1 << 20))
    # Other tests may have left a Spark session, which the commands would use.
    monkeypatch.setattr("coordinator.recovery.engines.is_spark_started", lambda: False)
    commands = [(command, lines) for command, lines in read_examples() if LIVE not in command]
    documented_jobs = {command.split()[2] for command, _ in read_examples()}
    assert documented_jobs == {
        *("audit", "explain", "diff", "archive", "rebuild", "rewrite"),
    }
    for command, lines in commands:
        result = share_coordinator(*shlex.split(command)[1:])
        assert result.exit_code in ((2,) if " audit " in command else (0,)), result.err
        assert matches_documented_output(result.out.splitlines(), lines), f"{command}\n{result.out}"


def matches_documented_output(printed: list[str], written: list[str]) -> bool:
    """Compare printed and documented lines; `...` stands for any lines, and run ids differ."""
    left = [RUN_ID.sub("RUN", line.rstrip()) for line in printed]
    pieces = " ".join(RUN_ID.sub("RUN", line) + "\0" for line in written).split("...\0")
    text = " ".join(f"{line}\0" for line in left)
    at = 0
    for piece in (piece.strip() for piece in pieces):
        found = text.find(piece, at)
        if found < 0 or (not at and found):
            return False
        at = found + len(piece)
    return not pieces[-1].strip() or at == len(text)


def test_every_check_is_documented() -> None:
    page = PAGE.read_text("utf-8")
    rows = [f"| {check.id} | {check.severity.value} | {check.title} |" for check in CATALOGUE.values()]
    assert "\n".join(rows) in page


def test_columns_of_data_frames_are_documented() -> None:
    page = PAGE.with_name("recovery-spark.md").read_text("utf-8")
    for name, schema in (
        ("records", RECORDS),
        ("history", HISTORY),
        ("states", STATES),
        ("findings", FINDINGS),
    ):
        columns = ", ".join(f"`{field.name}`" for field in schema)
        assert f"| {name} | {columns} |" in page
