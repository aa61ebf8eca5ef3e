"""Test the jobs explain and rewrite on local logs."""

import tracemalloc
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import load_config
from coordinator.errors import ConfigError
from coordinator.operate.migration import MigrationOptions as Allowed
from coordinator.operate.migration import MigrationRefused
from coordinator.recovery.audit import AuditOptions
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.explain import explain
from coordinator.recovery.history import read_history
from coordinator.recovery.job import ResultsIncomplete
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.rewrite import RewriteResult, rewrite
from coordinator.recovery.share_partitions import deduplicate, row_share_partition
from coordinator.recovery.sources.base import LogCut, ReadPlan, Source
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.segments import SegmentSource
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_batches import StateBatch, unpack
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.log_strategies import comparable_rows, shard_core_rows
from tests.recovery.logs_on_disk import TOPIC, encode_batches, write_segments
from tests.recovery.share_groups import (
    STATE_PARTITIONS,
    SimulatedShareGroups,
    audit_segments,
    copy_to_other_partition,
    write_log,
)

LOCAL = LocalEngine(1)
EXECUTE = Allowed(execute=True)


@pytest.fixture
def share_groups() -> SimulatedShareGroups:
    return SimulatedShareGroups(6).run_steps(500)


@pytest.fixture
def source(share_groups: SimulatedShareGroups, tmp_path: Path) -> SegmentSource:
    return SegmentSource(str(write_log(tmp_path / "log", share_groups.log)))


# explain


def test_long_history_is_decoded_in_chunks(tmp_path: Path) -> None:
    key, count = SharePartitionKey("group", bytes(16), 1), 50_000
    record = encode_record(StateRecord(key, ShareUpdateValue(0, 1, 1, b"", -1)))
    write_segments(tmp_path / f"{TOPIC}-0", encode_batches([record] * count, size=5_000))
    steps = iter(read_history(LOCAL, SegmentSource(str(tmp_path)), [key]).steps)
    tracemalloc.start()
    try:
        next(steps)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Decoded rows need about 530 bytes each.
    assert peak_bytes < 300 * count
    assert sum(1 for _ in steps) == count - 1


def test_explain_shows_state_of_shard_after_each_step(
    share_groups: SimulatedShareGroups, source: SegmentSource
) -> None:
    for leader in share_groups.leaders[:3]:
        explanation = explain(source, leader.key)
        number = state_partition(leader.key, STATE_PARTITIONS)
        mine = [each for each in share_groups.log[number] if each.record.key == leader.key]
        assert [event.step.log_offset for event in explanation.events] == [each.log_offset for each in mine]
        assert explanation.events[-1].step.after == share_groups.shards[number].state(leader.key)
        assert explanation.events[0].what.startswith("snapshot 0 initialised: state epoch 1")
        assert explanation.state_partition == number
        assert explanation.to_json_values()["events"][0]["state"]["start_offset"] == 0


def test_explain_of_record_shows_only_steps_that_changed_it(
    share_groups: SimulatedShareGroups, source: SegmentSource
) -> None:
    leader = share_groups.leaders[0]
    released = next(
        batch.first_offset
        for records in share_groups.log.values()
        for each in records
        if each.record.key == leader.key
        for batch in unpack(getattr(each.record.value, "state_batches", b""))
        if batch.delivery_state == 0
    )
    explanation = explain(source, leader.key, released)
    descriptions = [event.what for event in explanation.events]
    assert "released, to be delivered again (AVAILABLE) at delivery 1" in descriptions
    assert all(before != after for before, after in pairwise(descriptions))
    assert len(descriptions) < explanation.steps
    early = explain(source, leader.key, 10_000)
    assert early.summary.startswith("record 10000: nothing is stored of it")


def test_explain_of_unknown_share_partition_is_refused(source: SegmentSource) -> None:
    with pytest.raises(ConfigError, match=r"one that segments:.* has records of"):
        explain(source, SharePartitionKey("nobody", bytes(16), 0))


def test_explain_finds_share_partition_in_wrong_state_partition(
    share_groups: SimulatedShareGroups, tmp_path: Path
) -> None:
    key = share_groups.leaders[0].key
    number = state_partition(key, STATE_PARTITIONS)
    log = {number: [], (number + 1) % STATE_PARTITIONS: share_groups.log[number]}
    log.setdefault(3 - sum(log), [])
    explanation = explain(SegmentSource(str(write_log(tmp_path / "moved", log))), key)
    assert explanation.state_partition == (number + 1) % STATE_PARTITIONS


# rewrite


def rewrite_journal(
    source: Source, folder: Path, partitions: int, options: Allowed = EXECUTE, **more: Any
) -> RewriteResult:
    config = load_config({"journal.segment.bytes": str(1 << 20)}).config
    target = f"journal:{folder}"
    return rewrite(LOCAL, source, target, config, state_partitions=partitions, options=options, **more)


def test_log_is_rewritten_and_rewritten_back(
    share_groups: SimulatedShareGroups, source: SegmentSource, tmp_path: Path
) -> None:
    there, back, work = tmp_path / "there", tmp_path / "back", tmp_path / "work"
    planned = rewrite_journal(source, there, 7, Allowed(), work=work)
    assert (planned.is_successful, planned.executed, there.exists()) == (True, False, False)
    assert not work.exists()
    work.mkdir()
    (work / ".hidden").touch()
    assert rewrite_journal(source, there, 7, work=work).is_successful
    assert [each.name for each in work.iterdir()] == [".hidden"]
    assert rewrite_journal(JournalSource(str(there)), back, STATE_PARTITIONS).is_successful
    names = ("start_offset", "delivery_complete_count", "state_epoch", "leader_epoch", "leader_epoch_max")
    states = {key: state for shard in share_groups.shards for key, state in shard.items()}
    for folder in (there, back):
        found = comparable_rows(rebuild(LOCAL, JournalSource(str(folder))).states.to_pylist())
        for row, wanted in zip(
            sorted(found, key=_share_partition_fields),
            sorted(shard_core_rows(states), key=_share_partition_fields),
            strict=True,
        ):
            assert {name: row[name] for name in (*names, "state_batches")} == {
                name: wanted[name] for name in (*names, "state_batches")
            }


def _share_partition_fields(row: dict[str, object]) -> tuple[object, ...]:
    return (row["group_id"], row["topic_id"], row["partition"])


def _states_in_journal(journal: Path) -> dict[SharePartitionKey, dict[str, Any]]:
    rows = rebuild(LOCAL, JournalSource(str(journal))).states.to_pylist()
    return {row_share_partition(row): row for row in rows}


def test_rewrite_uses_state_in_hash_partition_of_two_states(
    share_groups: SimulatedShareGroups, tmp_path: Path
) -> None:
    key = copy_to_other_partition(share_groups.log, share_groups.leaders)
    source = SegmentSource(str(write_log(tmp_path / "log", share_groups.log)))
    done = rewrite_journal(source, tmp_path / "there", 7)
    assert done.is_successful
    wanted = share_groups.shards[state_partition(key, STATE_PARTITIONS)].state(key)
    assert wanted is not None
    assert _states_in_journal(tmp_path / "there")[key]["start_offset"] == wanted.start_offset > 0
    (note,) = done.notes
    assert note.endswith(
        f"another state partition has the valid state: {key} in state partition {STATE_PARTITIONS - 1}"
    )


def test_rewrite_refuses_source_that_is_written_meanwhile(source: SegmentSource, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert rewrite_journal(source, first, 5).is_successful

    class WrittenJournal(JournalSource):
        """A journal to which a record is appended before each plan after the first plan."""

        plans = 0

        def plan(self, cut: LogCut) -> ReadPlan:
            plan = super().plan(cut)
            object.__setattr__(self, "plans", self.plans + 1)
            return replace(plan, ends=plan.ends | {0: plan.ends[0] + self.plans - 1})

    with pytest.raises(MigrationRefused, match=r"state partition 0 of the source was written .* Nothing was"):
        rewrite_journal(WrittenJournal(str(first)), tmp_path / "second", 5)
    assert not (tmp_path / "second").exists()


def test_states_missing_in_work_folder_are_an_error(
    source: SegmentSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster whose executors write to local disks, the second phase does not find the states."""
    monkeypatch.setattr("coordinator.recovery.rewrite.write_states_file", lambda *arguments: None)
    with pytest.raises(ResultsIncomplete, match="states were folded and 0 were read from"):
        rewrite_journal(source, tmp_path / "there", 7)
    assert not (tmp_path / "there").exists()


def test_newest_of_misplaced_states_is_used(source: SegmentSource) -> None:
    row = rebuild(LOCAL, source).states.to_pylist()[0]
    place = state_partition(row_share_partition(row), 5)
    newest, older, placed = (
        {**row, "state_partition": (place + away) % 5, "last_write_ms": ms}
        for away, ms in ((1, 9), (2, 8), (0, 1))
    )
    key = row_share_partition(row)

    def deduplicate_rows(rows: list[dict[str, object]], state_partitions: int | None) -> object:
        return deduplicate(rows, state_partitions, lambda each: each)

    found = ({key: newest}, [(key, older["state_partition"])])
    assert deduplicate_rows([older, newest], 5) == deduplicate_rows([newest, older], 5) == found
    assert deduplicate_rows([newest, placed], 5) == ({key: placed}, [(key, newest["state_partition"])])
    assert deduplicate_rows([placed, newest], None) == ({key: newest}, [(key, place)])


def test_rewrite_refuses_target_with_different_state(source: SegmentSource, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    assert rewrite_journal(source, folder, 5).is_successful
    again = rewrite_journal(source, folder, 5)
    assert (again.is_successful, again.actions) == (True, {"already there": again.share_partitions})
    with pytest.raises(ConfigError, match=r"it must be 5, which journal:.* has already"):
        rewrite_journal(source, folder, 6)
    with pytest.raises(ConfigError, match="it must be at most 10000"):
        rewrite_journal(source, tmp_path / "large", 10_001)
    other = SegmentSource(str(write_log(tmp_path / "other", SimulatedShareGroups(9).run_steps(200).log)))
    with pytest.raises(MigrationRefused, match="the target has state that differs from the source"):
        rewrite_journal(other, folder, 5)
    assert rewrite_journal(other, folder, 5, Allowed(execute=True, replace=True)).is_successful
    with pytest.raises(ConfigError, match="another place than --from"):
        rewrite_journal(JournalSource(str(folder)), folder, 5)


def test_log_is_restored_as_of_before_a_fault(share_groups: SimulatedShareGroups, tmp_path: Path) -> None:
    before = SimulatedShareGroups(6).run_steps(500)
    FAULTS["K8"](share_groups.log)
    source = SegmentSource(str(write_log(tmp_path / "spoilt", share_groups.log)))
    found = audit_segments(tmp_path / "spoilt", AuditOptions(limits=CLEAN_LIMITS)).findings.to_pylist()
    (bad,) = (row for row in found if row["check"] == "K8")
    cut = LogCut({bad["state_partition"]: bad["log_offset"]})
    assert rewrite_journal(source, tmp_path / "restored", STATE_PARTITIONS, cut=cut).is_successful
    key = SharePartitionKey.parse(f"{bad['group_id']}:{bad['topic_id']}:{bad['partition']}")
    held = _states_in_journal(tmp_path / "restored")[key]
    intact = SegmentSource(str(write_log(tmp_path / "intact", before.log)))
    wanted = explain(intact, key, cut=cut).events[-1].step.after
    assert wanted is not None
    batches = [StateBatch(**batch) for batch in held["state_batches"]]
    assert (batches, held["start_offset"]) == (list(unpack(wanted.batches)), wanted.start_offset)


def test_rewrite_of_pruned_history_requires_incomplete_option(
    share_groups: SimulatedShareGroups, tmp_path: Path
) -> None:
    log = {number: records[30:] for number, records in share_groups.log.items()}
    source = SegmentSource(str(write_log(tmp_path / "pruned", log)))
    target = tmp_path / "there"

    rewrite_part = partial(rewrite_journal, source, target, STATE_PARTITIONS, cut=LogCut({1: 40}))
    for options in (Allowed(), EXECUTE):
        with pytest.raises(MigrationRefused, match="the beginning of state partition 1 was pruned"):
            rewrite_part(options)
    assert not target.exists()
    (note,) = rewrite_part(Allowed(), incomplete=True).notes
    assert "missing or incomplete" in note
    assert rewrite_part(EXECUTE, incomplete=True).is_successful
