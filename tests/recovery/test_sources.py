"""Test segment files and journals as sources: records that are read, ignored or refused."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.cluster.kafka.broker_results import ListedOffset
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import RebuildResult, rebuild
from coordinator.recovery.sources import LogCut, open_source
from coordinator.recovery.sources.base import (
    END,
    LogRange,
    PrunedError,
    Source,
    parse_offsets,
)
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.sources.topic import TopicSource
from protocol.record_batch import encode_batch
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import (
    TOPIC,
    encode_batches,
    load_expected_states,
    make_varied_records,
    open_journal,
    read_log_offsets,
    write_journal,
    write_segments,
)
from tests.unit.log.environments import append_durably

ALONE = LocalEngine(1)


def rebuild_locally(source: Source, cut: LogCut | None = None) -> RebuildResult:
    return rebuild(ALONE, source, cut=cut)


def state_rows(run: RebuildResult) -> list[dict[str, object]]:
    return comparable_rows(sort_by_key(run.states.to_pylist()))


def test_all_partitions_of_brokers_disk_are_rebuilt(tmp_path: Path) -> None:
    partitions = {p: encode_batches(make_varied_records(400, seed=p)) for p in range(3)}
    for p, batches in partitions.items():
        write_segments(tmp_path / f"{TOPIC}-{p}", batches, batches_in_file=20)
    (tmp_path / "orders-0").mkdir()
    run = rebuild_locally(open_source(f"segments:{tmp_path}"))
    assert state_rows(run) == load_expected_states(partitions)
    assert run.manifest["totals"]["records"] == 1_200
    assert run.manifest["partitions"]["1"]["read_to"] == 400


def test_directory_of_partition_or_topic_is_selected_by_name(tmp_path: Path) -> None:
    write_segments(tmp_path / "states-4", encode_batches(make_varied_records(10)))
    write_segments(tmp_path / "other-1", encode_batches(make_varied_records(20)))
    assert list(read_log_offsets(SegmentSource(str(tmp_path / "states-4")))) == [4]
    assert list(read_log_offsets(SegmentSource(str(tmp_path / "other")))) == [1]
    with pytest.raises(ConfigError, match="it has those of other, states"):
        SegmentSource(str(tmp_path)).plan(LogCut())
    with pytest.raises(ConfigError, match="it has none"):
        SegmentSource(str(tmp_path / "nothing")).plan(LogCut())
    (tmp_path / "other-1").rename(tmp_path / "other-99999999999")
    with pytest.raises(ConfigError, match="it has none"):
        SegmentSource(str(tmp_path / "other")).plan(LogCut())
    with pytest.raises(ConfigError, match="an existing directory"):
        SegmentSource(str(tmp_path / "no" / "thing")).plan(LogCut())


def test_incomplete_last_batch_is_ignored_and_reported(tmp_path: Path) -> None:
    batches = encode_batches(make_varied_records(100))
    (path,) = write_segments(tmp_path / f"{TOPIC}-0", batches)
    torn = encode_batch(100, 5, [(b"key", b"value")])[:-3]
    path.write_bytes(path.read_bytes() + torn)
    run = rebuild_locally(SegmentSource(str(tmp_path)))
    assert state_rows(run) == load_expected_states({0: batches})
    assert run.ranges.column("unread_bytes").to_pylist()[-1] == len(torn)
    path.write_bytes(b"".join(batches) + bytes(4_096))
    assert state_rows(rebuild_locally(SegmentSource(str(tmp_path)))) == load_expected_states({0: batches})


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        # A damaged length field, so that all bytes up to the end of the file would belong to the batch.
        (lambda data, at: data[: at + 8] + b"\x00\x01\x00\x00" + data[at + 12 :], "is cut off"),
        (lambda data, at: data[: at + 8] + b"\x40\x00\x00\x00" + data[at + 12 :], "is cut off"),
        (lambda data, at: data[: at + 8] + b"\xf0\x00\x00\x00" + data[at + 12 :], "there is no batch"),
        # A disk block that contains only zeros.
        (lambda data, at: data[:at] + bytes(512) + data[at + 512 :], "there is no batch"),
        # All following bytes are replaced by invalid ones.
        (lambda data, at: data[:at] + bytes(range(1, 200)) * 100, "is cut off"),
        (lambda data, at: data[:at] + b"\xff" * 9_000, "there is no batch"),
    ],
    ids=["length", "gigabyte", "negative", "zeros", "others", "ones"],
)
def test_damage_in_last_segment_is_not_an_incomplete_write(
    tmp_path: Path, spoilt: Callable[[bytes, int], bytes], why: str
) -> None:
    batches = encode_batches(make_varied_records(200))
    (path,) = write_segments(tmp_path / f"{TOPIC}-0", batches)
    position = sum(map(len, batches[:3]))
    path.write_bytes(spoilt(path.read_bytes(), position))
    run = rebuild_locally(SegmentSource(str(tmp_path)))
    damage, *_ = run.manifest["damages"]
    assert (damage["state_partition"], damage["first"]) == (0, 21)
    assert re.search(
        f"{why}.* at byte {position}|at byte {position}.*{why}|{why} at byte {position}", damage["what"]
    )
    assert run.manifest["totals"]["unread_bytes"] == 0


@pytest.mark.parametrize("kept", [1, 11, 12, 16, 17, 40])
def test_incomplete_batch_of_any_length_is_ignored(tmp_path: Path, kept: int) -> None:
    batches = encode_batches(make_varied_records(100))
    (path,) = write_segments(tmp_path / f"{TOPIC}-0", batches)
    path.write_bytes(path.read_bytes() + encode_batch(100, 5, [(b"key", b"value")])[:kept])
    run = rebuild_locally(SegmentSource(str(tmp_path)))
    assert state_rows(run) == load_expected_states({0: batches})
    assert run.ranges.column("unread_bytes").to_pylist()[-1] == kept


def test_records_before_and_after_damage_are_read(tmp_path: Path) -> None:
    batches = encode_batches(make_varied_records(100))
    source = SegmentSource(str(tmp_path))
    flipped = batches[7][:70] + b"?" + batches[7][71:]
    for spoilt in (batches[7][:-5], flipped, bytes(100)):
        write_segments(tmp_path / f"{TOPIC}-3", [*batches[:7], spoilt, *batches[8:]])
        run = rebuild_locally(source)
        (damage,) = run.manifest["damages"]
        assert (damage["first"], damage["last"], run.manifest["totals"]["records"]) == (49, 55, 93)
        assert f"at byte {sum(map(len, batches[:7]))}" in damage["what"]
    assert read_log_offsets(source) == {3: [*range(49), *range(56, 100)]}
    run = rebuild_locally(source, LogCut({3: 49}))
    assert state_rows(run) == load_expected_states({3: batches[:7]})
    assert run.manifest["damages"] == []
    assert [each["first"] for each in rebuild_locally(source, LogCut({3: 50})).manifest["damages"]] == [49]


def test_records_of_topic_around_damage_are_read() -> None:
    batches = encode_batches(make_varied_records(28))
    answer = b"".join([*batches[:2], batches[2][:-1] + b"?", batches[3]])

    class DamagedTopic(TopicSource):
        async def _fetch(self, log_range: LogRange, put: Callable[[bytes], bool]) -> None:
            put(answer)

    source = DamagedTopic("topic", "nobody:1")
    chunks = list(source.read(LogRange(2, 0, 28, 28)))
    assert [offset for each in chunks for offset in each.log_offset] == [*range(14), *range(21, 28)]
    (damage,) = (damage for each in chunks for damage in each.damages)
    assert (damage.state_partition, damage.first, damage.last) == (2, 14, 20)
    assert "topic-2: the batch at byte" in damage.what
    (before,) = source.read(LogRange(2, 0, 14, 14))
    assert (len(before), before.damages) == (14, ())


def test_write_in_progress_at_planning_is_ignored(tmp_path: Path) -> None:
    batches = encode_batches(make_varied_records(100))
    (path,) = write_segments(tmp_path / f"{TOPIC}-0", batches[:-2])
    path.write_bytes(b"".join(batches[:-2]) + batches[-2][:50])
    source = SegmentSource(str(tmp_path))
    (planned,) = source.plan(LogCut()).ranges
    path.write_bytes(b"".join(batches))
    *_, last = source.read(planned)
    assert (last.log_offset[-1], last.unread_bytes) == (7 * (len(batches) - 2) - 1, 50)


def test_pruned_records_in_remaining_segment_are_not_read(tmp_path: Path) -> None:
    write_segments(tmp_path / f"{TOPIC}-0", encode_batches(make_varied_records(100)))
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 33\n")
    assert read_log_offsets(SegmentSource(str(tmp_path))) == {0: list(range(33, 100))}


def test_cut_by_offset_returns_earlier_state(tmp_path: Path) -> None:
    partitions = {p: encode_batches(make_varied_records(300, seed=p)) for p in range(2)}
    for p, batches in partitions.items():
        write_segments(tmp_path / f"{TOPIC}-{p}", batches, batches_in_file=10)
    source = SegmentSource(str(tmp_path))
    cut = {0: 151, 1: 0}
    assert state_rows(rebuild_locally(source, LogCut(cut))) == load_expected_states(partitions, before=cut)
    with pytest.raises(ConfigError, match="7:1 cannot be used: it must be of a state partition there is"):
        rebuild_locally(source, LogCut({7: 1}))


def test_cut_by_time_ends_before_first_later_record(tmp_path: Path) -> None:
    batches = encode_batches(make_varied_records(300))
    write_segments(tmp_path / f"{TOPIC}-0", batches, batches_in_file=10)
    source = SegmentSource(str(tmp_path))
    # The log has seven records per millisecond, from the timestamp 1000 on.
    assert state_rows(rebuild_locally(source, LogCut(time_ms=1_019))) == load_expected_states(
        {0: batches}, before={0: 140}
    )
    assert state_rows(rebuild_locally(source, LogCut(time_ms=9_999))) == load_expected_states({0: batches})
    assert state_rows(rebuild_locally(source, LogCut(time_ms=1))) == []


def test_cut_below_pruned_start_is_refused_and_above_is_doubtful(tmp_path: Path) -> None:
    write_segments(tmp_path / f"{TOPIC}-0", encode_batches(make_varied_records(100), base_offset=500))
    source = SegmentSource(str(tmp_path))
    with pytest.raises(ConfigError, match="0:499 cannot be used: it must be at or above 500"):
        rebuild_locally(source, LogCut({0: 499}))
    (note,) = rebuild_locally(source, LogCut({0: 550})).manifest["notes"]
    assert "the beginning of 1 state partitions was pruned" in note
    assert rebuild_locally(source).manifest["notes"] == []


async def test_journal_is_rebuilt_while_coordinator_uses_it(tmp_path: Path) -> None:
    records = {p: make_varied_records(600, seed=p) for p in range(4)}
    await asyncio.to_thread(write_journal, tmp_path, records)
    batches = {p: encode_batches(found, size=5) for p, found in records.items()}
    source = JournalSource(str(tmp_path))

    def drop_write_times(found: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{**row, "last_write_ms": 0} for row in found]

    journal = open_journal(tmp_path)
    await journal.open()
    run = await asyncio.to_thread(rebuild_locally, source)
    assert len(source.plan(LogCut()).ranges[0].place.segments) > 2
    assert drop_write_times(state_rows(run)) == drop_write_times(load_expected_states(batches))
    await append_durably(journal, 2, make_varied_records(3, seed=9))
    cut = {p: 100 * p for p in range(4)}
    assert {p: len(found) for p, found in read_log_offsets(source, LogCut(cut)).items()} == {
        1: 100,
        2: 200,
        3: 300,
    }
    assert len(read_log_offsets(source)[2]) == 603
    await journal.close()


def test_dropped_journal_segment_raises_pruned_error(tmp_path: Path) -> None:
    write_journal(tmp_path, {1: make_varied_records(3_000)})
    source = JournalSource(str(tmp_path))
    first = source.plan(LogCut()).ranges[0]
    (tmp_path / first.place.segments[0].file).unlink()
    with pytest.raises(PrunedError):
        list(source.read(first))


TOPIC_IDS = map(lambda number: bytes([number]) * 16, count(1))


class BusyTopic(TopicSource):
    """A topic that is recreated before each connection, and written and pruned after each ListOffsets."""

    @asynccontextmanager
    async def _connect_to_brokers(self) -> AsyncIterator[Any]:
        busy = SimpleNamespace(start=0, end=100, leader=lambda partition: 1)
        busy.pin_topic_id = partial(next, TOPIC_IDS)

        def list_offset(offset: int) -> dict[int, ListedOffset]:
            busy.start, busy.end = busy.end, busy.end + 100
            return {0: ListedOffset(0, offset)}

        async def describe_topic() -> SimpleNamespace:
            return SimpleNamespace(partitions=1)

        async def list_start_offsets(*asked: object) -> dict[int, ListedOffset]:
            return list_offset(busy.start)

        async def list_end_offsets(*asked: object) -> dict[int, ListedOffset]:
            return list_offset(busy.end)

        busy.describe_topic, busy.list_start_offsets, busy.list_end_offsets = (
            describe_topic,
            list_start_offsets,
            list_end_offsets,
        )
        yield busy


def test_start_of_topic_is_never_newer_than_its_end() -> None:
    source = BusyTopic("topic", "nobody:1")
    plan = source.plan(LogCut())
    # The snapshot that made the first hundred records redundant is within the read range.
    assert (plan.starts, plan.ends) == ({0: 0}, {0: 200})
    with pytest.raises(LogUnavailable, match="topic was deleted and created again while it was read"):
        list(source.read(plan.ranges[0]))


def test_directory_without_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has none"):
        JournalSource(str(tmp_path)).plan(LogCut())
    with pytest.raises(ConfigError, match="an existing directory"):
        JournalSource(str(tmp_path / "nothing")).plan(LogCut())


def test_offsets_are_parsed() -> None:
    assert parse_offsets("0:12, 3:4") == {0: 12, 3: 4}
    assert parse_offsets("0:99999999999999999999") == {0: END}
    for text in ("", "1", "1:", "a:1", "1:-2", "1:2,", "0:1,0:2", "\u00b2:1"):
        with pytest.raises(ConfigError):
            parse_offsets(text)


def test_empty_log_has_no_states(tmp_path: Path) -> None:
    (tmp_path / f"{TOPIC}-0").mkdir()
    (tmp_path / f"{TOPIC}-0" / f"{0:020}.log").write_bytes(b"")
    source = SegmentSource(str(tmp_path))
    assert rebuild(ALONE, source).ranges.num_rows == 0
    assert state_rows(rebuild_locally(source)) == []
    (tmp_path / f"{TOPIC}-0" / f"{0:020}.log").unlink()
    (damage,) = rebuild(ALONE, source).manifest["damages"]
    assert damage["what"] == "there is no segment file"
