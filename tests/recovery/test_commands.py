"""`share-coordinator recovery`, as a user sees it."""

import json
from pathlib import Path

import pytest

from coordinator.recovery import engines
from coordinator.recovery.manifest import read_manifest
from tests.recovery.logs_on_disk import TOPIC, batches_of, some_records, write_segments
from tests.unit.cli.calling import CommandLine


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have left a session active, which commands would take."""
    monkeypatch.setattr(engines, "_has_session", lambda: False)


@pytest.fixture
def disk(tmp_path: Path) -> str:
    write_segments(tmp_path / "disk" / f"{TOPIC}-0", batches_of(some_records(60, share_partitions=3)))
    return f"segments:{tmp_path / 'disk'}"


def test_states_are_printed_under_kafkas_names(share_coordinator: CommandLine, disk: str) -> None:
    exit_code, out, err = share_coordinator("recovery", "rebuild", "--from", disk)
    lines = out.splitlines()
    assert lines[0].split() == [
        *("GROUP", "TOPIC", "PARTITION", "STATE-EPOCH", "LEADER-EPOCH", "START-OFFSET", "COMPLETE-COUNT"),
        "BATCHES",
    ]
    assert lines[1].split()[:3] == ["group-1-0", "AAAAAAAAAAAAAAAAAAAAAA", "0"]
    assert lines[-1].startswith("3 share-partitions, ")
    assert lines[-1].endswith("from 60 records of 1 state partitions")
    assert (exit_code, err) == (0, "")


def test_json_has_the_states_and_what_was_read(share_coordinator: CommandLine, disk: str) -> None:
    _, out, _ = share_coordinator(
        "recovery", "rebuild", "--from", disk, "--as-of-offset", "0:30", "-o", "json", "--engine", "local"
    )
    said = json.loads(out)
    assert said["manifest"]["partitions"]["0"]["records"] == 30
    assert said["manifest"]["as_of_offsets"] == {"0": 30}
    assert {state["group_id"] for state in said["states"]} <= {f"group-1-{n}" for n in range(3)}


def test_states_go_to_a_folder(share_coordinator: CommandLine, disk: str, tmp_path: Path) -> None:
    to = tmp_path / "states"
    exit_code, out, _ = share_coordinator("recovery", "rebuild", "--from", disk, "--to", str(to))
    assert (exit_code, len(out.splitlines())) == (0, 1)
    assert read_manifest(to)["source"] == disk
    exit_code, _, err = share_coordinator("recovery", "rebuild", "--from", disk, "--to", str(to))
    assert exit_code == 2
    assert err.startswith("share-coordinator: --to=")
    assert err.count("\n") == 1


def test_an_archive_is_made_and_read(share_coordinator: CommandLine, disk: str, tmp_path: Path) -> None:
    to = str(tmp_path / "archive")
    assert share_coordinator("recovery", "archive", "--from", disk, "--to", to).out.startswith(
        "copied 60 records"
    )
    _, out, _ = share_coordinator("recovery", "archive", "--from", disk, "--to", to, "-o", "json")
    assert json.loads(out) == {"commit": 2, "records": 0, "ends": {"0": 60}, "gaps": {}}
    _, out, _ = share_coordinator("recovery", "rebuild", "--from", f"archive:{to}")
    assert out == share_coordinator("recovery", "rebuild", "--from", disk).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nowhere"], "--from=nowhere cannot be used: it must be kafka:TOPIC"),
        (["--from", "kafka:t"], "--bootstrap-servers= cannot be used"),
        (["--from", "journal:/no/such/folder"], "a folder that exists"),
        (["--from", "segments:/", "--engine", "flink"], "--engine=flink cannot be used"),
        (["--from", "segments:/", "--as-of-offset", "x"], "PARTITION:OFFSET"),
        (["--from", "segments:/", "--as-of-time", "soon"], "a time as 2026-11-20T09:41:00Z"),
        (["--from", "segments:/", "--as-of-time", "2026-01-01", "--as-of-offset", "0:1"], "without"),
        (["--from", "segments:/", "--bootstap-servers", "b:1"], "bootstrap-servers"),
    ],
)
def test_mistakes_are_told_in_one_line(
    share_coordinator: CommandLine, arguments: list[str], message: str
) -> None:
    exit_code, _, err = share_coordinator("recovery", "rebuild", *arguments)
    assert exit_code == 2
    assert message in err
    assert err.count("\n") == 1
