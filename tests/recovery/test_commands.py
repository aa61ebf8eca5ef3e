"""Test the commands of `share-coordinator recovery`."""

import json
from pathlib import Path

import pytest

from coordinator.recovery import engines
from coordinator.recovery.manifest import read_manifest
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import encode_batch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record, topic_id_text
from tests.kafka.ports import free_ports
from tests.recovery.logs_on_disk import TOPIC, encode_batches, make_varied_records, write_segments
from tests.recovery.share_groups import SimulatedShareGroups, write_log
from tests.unit.cli.command_line import CommandLine


@pytest.fixture(autouse=True)
def _hide_spark_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide an active Spark session of other tests, which the commands would use."""
    monkeypatch.setattr(engines, "is_spark_started", lambda: False)


@pytest.fixture
def source_option(tmp_path: Path) -> str:
    write_segments(
        tmp_path / "disk" / f"{TOPIC}-0", encode_batches(make_varied_records(60, share_partitions=3))
    )
    return f"segments:{tmp_path / 'disk'}"


def test_json_has_states_and_manifest(share_coordinator: CommandLine, source_option: str) -> None:
    options = ("--from", source_option, "--as-of-offset", "0:30", "-o", "json", "--engine", "local")
    _, out, _ = share_coordinator("recovery", "rebuild", *options)
    report = json.loads(out)
    assert report["manifest"]["partitions"]["0"]["records"] == 30
    assert report["manifest"]["as_of_offsets"] == {"0": 30}
    assert {state["group_id"] for state in report["states"]} <= {f"group-1-{n}" for n in range(3)}


@pytest.mark.parametrize("cut", [("--as-of-offset", "0:30"), ("--as-of-time", "2100-01-01T00:00Z")])
def test_cut_skips_comparison_with_current_cluster(
    cut: tuple[str, str], share_coordinator: CommandLine, source_option: str
) -> None:
    # No broker listens at this address, but the command sends no request to it.
    options = ("--from", source_option, "--bootstrap-servers", "127.0.0.1:1", "-o", "json", *cut)
    not_checked = json.loads(share_coordinator("recovery", "audit", *options).out)["not_checked"]
    why = "the log was read up to a cut, and only the current state of the cluster is known"
    assert (not_checked["X2"], not_checked["X5"]) == (why, why)


def test_rebuild_writes_states_to_directory(
    share_coordinator: CommandLine, source_option: str, tmp_path: Path
) -> None:
    to = tmp_path / "states"
    exit_code, out, _ = share_coordinator("recovery", "rebuild", "--from", source_option, "--to", str(to))
    assert (exit_code, len(out.splitlines())) == (0, 1)
    assert read_manifest(to)["source"] == source_option
    exit_code, _, err = share_coordinator("recovery", "rebuild", "--from", source_option, "--to", str(to))
    assert exit_code == 2
    assert err.startswith("share-coordinator: --to=")
    assert err.count("\n") == 1


def test_archive_is_written_and_read(
    share_coordinator: CommandLine, source_option: str, tmp_path: Path
) -> None:
    to = str(tmp_path / "archive")
    assert share_coordinator("recovery", "archive", "--from", source_option, "--to", to).out.startswith(
        "copied 60 records"
    )
    _, out, _ = share_coordinator("recovery", "archive", "--from", source_option, "--to", to, "-o", "json")
    assert json.loads(out) == {"commit": 2, "records": 0, "ends": {"0": 60}, "gaps": {}, "damages": []}
    _, out, _ = share_coordinator("recovery", "rebuild", "--from", f"archive:{to}")
    assert out == share_coordinator("recovery", "rebuild", "--from", source_option).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nowhere"], "--from=nowhere cannot be used: it must be kafka:TOPIC"),
        (["--from", "segments:"], "--from=segments: cannot be used"),
        (["--from", "kafka:t"], "--bootstrap-servers is missing"),
        (["--from", "journal:/no/such/folder"], "an existing directory"),
        (["--from", "segments:/", "--engine", "flink"], "--engine=flink cannot be used"),
        (["--from", "segments:/", "--as-of-offset", "x"], "PARTITION:OFFSET"),
        (["--from", "segments:/", "--as-of-time", "soon"], "a time as 2026-11-20T09:41:00Z"),
        (["--from", "segments:/", "--as-of-time", "2026-01-01", "--as-of-offset", "0:1"], "without"),
        (["--from", "segments:/", "--bootstap-servers", "b:1"], "bootstrap-servers"),
        (["--from", "segments:/", "--as-of-offset", "0:1,0:2"], "one offset of state partition 0"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    share_coordinator: CommandLine, arguments: list[str], message: str
) -> None:
    exit_code, _, err = share_coordinator("recovery", "rebuild", *arguments)
    assert exit_code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("live", ["nowhere", "host:", "host:0", "host:99999", "a:1,b"])
@pytest.mark.parametrize(("job", "exit_code"), [("audit", 3), ("diff", 2)])
def test_invalid_address_is_reported_before_log_is_read(
    share_coordinator: CommandLine, source_option: str, job: str, exit_code: int, live: str
) -> None:
    result = share_coordinator("recovery", job, "--from", source_option, "--live", live)
    assert (result.exit_code, result.out) == (exit_code, "")
    assert result.err.startswith(f"share-coordinator: --live={live} cannot be used: it must be HOST:PORT")
    assert result.err.count("\n") == 1


def test_audit_with_internal_error_is_not_a_warning(
    share_coordinator: CommandLine, source_option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("coordinator.recovery.audit.audit", raise_error)
    outcome = share_coordinator("recovery", "audit", "--from", source_option)
    assert (outcome.exit_code, outcome.out) == (3, "")
    assert outcome.err.startswith("share-coordinator: internal error: ZeroDivisionError: no such")


def test_audit_without_reachable_coordinator_is_not_clean(
    share_coordinator: CommandLine, tmp_path: Path
) -> None:
    write_log(tmp_path / "log", SimulatedShareGroups(3).run_steps(200).log)
    log = f"segments:{tmp_path / 'log'}"
    assert share_coordinator("recovery", "audit", "--from", log).exit_code == 0
    (port,) = free_ports(1)
    result = share_coordinator("recovery", "audit", "--from", log, "--live", f"127.0.0.1:{port}")
    assert (result.exit_code, result.out.splitlines()[0]) == (
        1,
        f"Recovery audit of {log}: clean; not checked: X1",
    )
    assert "not run    X1: the coordinator cannot be reached" in result.out


def test_diff_without_reachable_coordinator_fails(share_coordinator: CommandLine, source_option: str) -> None:
    (port,) = free_ports(1)
    result = share_coordinator("recovery", "diff", "--from", source_option, "--live", f"127.0.0.1:{port}")
    assert result.exit_code == 3
    assert "the comparison failed: " in result.err


def test_rebuild_reports_ignored_bytes(share_coordinator: CommandLine, tmp_path: Path) -> None:
    (path,) = write_segments(tmp_path / "disk" / f"{TOPIC}-0", encode_batches(make_varied_records(60)))
    path.write_bytes(path.read_bytes() + bytes(7))
    result = share_coordinator("recovery", "rebuild", "--from", f"segments:{tmp_path / 'disk'}")
    assert result.exit_code == 0
    assert result.err == (
        "share-coordinator: 7 bytes after the last valid batch were ignored: "
        "a write that is interrupted or in progress\n"
    )


@pytest.mark.parametrize(
    ("group", "quoted"),
    [
        ("group", "group"),
        ("--all", "--all"),
        ("it's\ntwo \xa0", "$'it\\'s\\U0000000atwo \\U000000a0'"),
    ],
)
def test_any_group_name_and_time_can_be_explained(
    group: str, quoted: str, share_coordinator: CommandLine, tmp_path: Path
) -> None:
    key = SharePartitionKey(group, bytes([1] * 16), 0)
    records = [
        encode_record(StateRecord(key, ShareSnapshotValue(0, 1, 1, -1, 1, 1, b""))),
        # The topic is compacted wrongly (P2), so that the group is suspect and the audit prints a command.
        encode_record(StateRecord(key, ShareUpdateValue(0, 1, 7, b""))),
    ]
    batches = [encode_batch(5 * at, 2**48 + at, [record]) for at, record in enumerate(records)]
    write_segments(tmp_path / f"{TOPIC}-0", batches)
    log = f"segments:{tmp_path}"
    result = share_coordinator("recovery", "audit", "--from", log)
    command = f"share-coordinator recovery explain --from {log} -- {quoted} {topic_id_text(key.topic_id)} 0"
    assert command in (line.strip() for line in result.out.splitlines())
    assert "since 10889-08-02T05:31:50.657Z" in " ".join(result.out.split())
    name, topic, partition = key.group_id, topic_id_text(key.topic_id), "0"
    result = share_coordinator("recovery", "explain", "--from", log, "--", name, topic, partition)
    assert result.exit_code == 0, result.err
    assert [line.split()[:2] for line in result.out.splitlines()[1:3]] == [
        ["0", "10889-08-02T05:31:50.656Z"],
        ["5", "10889-08-02T05:31:50.657Z"],
    ]
