"""The commands `journal verify` and `journal dump`: output and exit codes."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.errors import LogError
from coordinator.log.journal import Journal
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.cli.command_line import CommandLine

NOW_MS = 1_700_000_000_123


def make_record(partition: int, group: str = "orders") -> StateRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=4,
        create_timestamp=NOW_MS,
        write_timestamp=NOW_MS,
        state_batches=pack_batches((5, 9, 2, 1)),
    )
    return StateRecord(SharePartitionKey(group, TOPIC_ID, partition), value)


@pytest.fixture
def journal_folder(tmp_path: Path) -> Path:
    """A journal with one record in each of the state partitions 0 to 2."""
    asyncio.run(_write_records(tmp_path / "data", [make_record(number) for number in range(3)]))
    return tmp_path / "data"


async def _write_records(folder: Path, records: list[StateRecord]) -> None:
    journal = Journal(folder, state_partitions=4, segment_bytes=1 << 20, sync="os")
    await journal.open()
    for number, each in enumerate(records):
        done: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
        journal.append(
            number,
            [encode_record(each)],
            NOW_MS,
            lambda _, error, done=done: done.set_result(error),
        )
        assert await done is None
    await journal.close()


def damage_first_record(folder: Path) -> Path:
    """Flip one byte of the first record, after which the journal has later commits.

    Return the segment file that contains the record.
    """
    (file,) = [path for path in sorted(folder.iterdir()) if b"orders" in path.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(b"orders")] ^= 1
    file.write_bytes(data)
    return file


def test_verify_of_an_intact_journal_succeeds(share_coordinator: CommandLine, journal_folder: Path) -> None:
    outcome = share_coordinator("journal", "verify", str(journal_folder))
    assert (outcome.exit_code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["FILE", "BYTES", "USED", "FIRST-COMMIT", "COMMITS", "RECORDS"]
    assert lines[1].split()[-1] == "3"
    assert "4 state partitions, 3 records in" in outcome.out
    assert lines[-1] == "The journal is intact."


def test_verify_prints_json(share_coordinator: CommandLine, journal_folder: Path) -> None:
    shown = json.loads(share_coordinator("journal", "verify", "-o", "json", str(journal_folder)).out)
    assert (shown["whole"], shown["damage"], shown["torn_tail"]) == (True, None, None)
    assert shown["end_offsets"] == [1, 1, 1, 0]
    assert [segment["records"] for segment in shown["segments"]] == [3]


def test_verify_of_a_damaged_journal_reports_the_position(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    file = damage_first_record(journal_folder)
    outcome = share_coordinator("journal", "verify", str(journal_folder))
    assert outcome.exit_code == 1
    assert outcome.err.startswith(f"share-coordinator: {file} is damaged at byte ")
    assert "is intact" not in outcome.out
    shown = json.loads(share_coordinator("journal", "verify", "-o", "json", str(journal_folder)).out)
    assert shown["whole"] is False
    assert shown["damage"]["file"] == str(file)
    assert set(shown["damage"]) == {"file", "position", "found", "advice"}


def test_dump_of_a_damaged_journal_ends_with_one_error_line(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    file = damage_first_record(journal_folder)
    outcome = share_coordinator("journal", "dump", str(journal_folder))
    assert outcome.exit_code == 1
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"share-coordinator: {file} is damaged at byte ")


def test_dump_prints_json_lines_of_selected_state_partitions(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    outcome = share_coordinator("journal", "dump", str(journal_folder), "-p", "2", "-p", "0")
    shown = [json.loads(line) for line in outcome.out.splitlines()]
    assert [entry["state_partition"] for entry in shown] == [0, 2]
    assert shown[1]["key"]["data"]["partition"] == 2
    assert shown[1]["value"]["data"]["startOffset"] == 4


def test_dump_escapes_control_characters(share_coordinator: CommandLine, tmp_path: Path) -> None:
    asyncio.run(_write_records(tmp_path / "data", [make_record(0, "\x9b31mred\u202e日本")]))
    outcome = share_coordinator("journal", "dump", str(tmp_path / "data"))
    assert all(line.isprintable() for line in outcome.out.split("\n"))
    assert r"\u009b31mred\u202e日本" in outcome.out


def test_dump_of_an_empty_state_partition_is_empty(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    assert share_coordinator("journal", "dump", str(journal_folder), "-p", "3") == (0, "", "")
    unknown = share_coordinator("journal", "dump", str(journal_folder), "-p", "999")
    assert (unknown.exit_code, unknown.out) == (2, "")
    assert "--partition=999 cannot be used: it must be from 0 to " in unknown.err


def test_dump_of_a_journal_whose_creation_was_interrupted_is_empty(
    share_coordinator: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / f"{1:020d}.journal").write_bytes(bytes(1 << 20))
    for partition in ((), ("-p", "0")):
        assert share_coordinator("journal", "dump", str(tmp_path), *partition) == (0, "", "")


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_folder_without_a_journal_is_an_error(
    share_coordinator: CommandLine, tmp_path: Path, command: str
) -> None:
    outcome = share_coordinator("journal", command, str(tmp_path))
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.err == f"share-coordinator: there is no journal in {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_missing_folder_is_a_usage_error(
    share_coordinator: CommandLine, tmp_path: Path, command: str
) -> None:
    outcome = share_coordinator("journal", command, str(tmp_path / "missing"))
    assert outcome.exit_code == 2
    assert "does not exist" in outcome.err


@pytest.mark.slow
def test_journal_that_was_longer_is_reported_as_a_truncated_copy(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    (file,) = [path for path in sorted(journal_folder.iterdir()) if b"orders" in path.read_bytes()]
    with file.open("r+b") as cut:
        cut.truncate(file.read_bytes().rindex(b"orders"))
    for command in ("verify", "dump"):
        outcome = share_coordinator("journal", command, str(journal_folder))
        assert outcome.exit_code == 1
        (line,) = outcome.err.splitlines()
        assert (
            "it was longer once, so a copy of it may have broken off; copy the journal's folder again" in line
        )
        assert "is intact" not in outcome.out
    assert (
        "is damaged and was read around the damage"
        in share_coordinator("recovery", "rebuild", "--from", f"journal:{journal_folder}").err
    )
