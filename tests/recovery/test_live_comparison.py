"""Test the comparison of a log with a live coordinator: `diff`, and check X1 of an audit."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, AuditResult
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.external_checks import LiveCheck
from coordinator.recovery.live_comparison import diff, row_to_comparable_state
from coordinator.recovery.live_coordinator import LiveState
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.share_partitions import is_in_hash_partition, row_share_partition
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_checkpoints import checkpoint_states
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.logs_on_disk import TOPIC, encode_batches, write_segments
from tests.recovery.share_groups import (
    STATE_PARTITIONS,
    SimulatedShareGroups,
    audit_segments,
    copy_to_other_partition,
    write_log,
)

LOCAL = LocalEngine(1)


@pytest.fixture
def audit_result(tmp_path: Path) -> AuditResult:
    return audit_segments(
        write_log(tmp_path / "before", SimulatedShareGroups(5).run_steps(300).log),
        AuditOptions(limits=CLEAN_LIMITS),
    )


Answers = Callable[[], Mapping[SharePartitionKey, LiveState]]


@pytest.fixture
def set_live_responses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], None]:
    """Return a function that sets how the live coordinator's responses are made when it is read."""

    def replace_read_states(make_answers: Answers) -> None:
        async def read_states(live: str, leader_epochs: object) -> Mapping[SharePartitionKey, LiveState]:
            return make_answers()

        monkeypatch.setattr("coordinator.recovery.live_comparison.read_states", read_states)

    return replace_read_states


def state_rows(run: AuditResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.states.to_pylist()
    return found


def make_live_state(row: Mapping[str, Any], **changed: Any) -> LiveState:
    """Return the responses of a coordinator that has this state, except for the changed fields."""
    held = row_to_comparable_state(row)._asdict() | changed
    summary = ("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")
    read = ("state_epoch", "start_offset", "batches")
    return LiveState({name: held[name] for name in summary}, {name: held[name] for name in read})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"start_offset": 3}, "start offset 3, in the log "),
        ({"leader_epoch": 77}, "leader epoch 77, in the log "),
        ({"delivery_complete_count": 1_000}, "delivery complete count 1000, in the log "),
        ({"batches": b""}, "0 state batches, in the log "),
        (None, "the coordinator has no state of it"),
    ],
)
def test_state_that_differs_from_live_coordinator_is_found(
    changed: Mapping[str, Any] | None,
    what: str,
    audit_result: AuditResult,
    tmp_path: Path,
    set_live_responses: Callable[[Answers], None],
) -> None:
    states = state_rows(audit_result)
    wrong = next(row for row in states if row["state_batches"])

    answers = {row_share_partition(row): make_live_state(row) for row in states}
    given = LiveState(None, None) if changed is None else make_live_state(wrong, **changed)
    set_live_responses(lambda: answers | {row_share_partition(wrong): given})
    source = SegmentSource(str(tmp_path / "before"))
    found = diff(LOCAL, source, "nobody:1")
    assert [each.key for each in found.different] == [row_share_partition(wrong)]
    assert found.different[0].what.startswith(what)
    assert (found.compared, found.equal) == (len(states), len(states) - 1)


@pytest.mark.parametrize(
    ("pruned_to", "answered", "counts"),
    [
        (0, 10, (1, 0, 0)),
        (0, 77, (0, 1, 0)),
        # After the snapshot at 0 was pruned, the state before the snapshot at 12 is unknown.
        (5, 10, (0, 0, 1)),
        (12, 10, (0, 0, 1)),
        (5, 12, (1, 0, 0)),
        (12, 12, (1, 0, 0)),
    ],
)
def test_state_pruned_during_live_comparison_is_reported_as_unknown(
    pruned_to: int,
    answered: int,
    counts: tuple[int, int, int],
    tmp_path: Path,
    set_live_responses: Callable[[Answers], None],
) -> None:
    key = SharePartitionKey("group", bytes(16), 1)
    values: list[ShareSnapshotValue | ShareUpdateValue] = [ShareSnapshotValue(0, 0, 1, 0, 1, 1, b"", -1, -1)]
    values += [ShareUpdateValue(0, 1, offset, b"", -1) for offset in range(1, 12)]
    values.append(ShareSnapshotValue(1, 0, 1, 12, 1, 1, b"", -1, -1))
    batches = encode_batches([encode_record(StateRecord(key, value)) for value in values], size=1)
    write_segments(tmp_path / f"{TOPIC}-0", batches[:10])
    source = SegmentSource(str(tmp_path))
    run = rebuild(LOCAL, source)

    def write_prune_and_answer() -> dict[SharePartitionKey, LiveState]:
        write_segments(tmp_path / f"{TOPIC}-0", batches)
        (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {pruned_to}\n")
        (row,) = run.states.to_pylist()
        return {key: make_live_state(row, start_offset=answered)}

    set_live_responses(write_prune_and_answer)
    found = diff(LOCAL, source, "nobody:1")
    assert (found.equal_later, len(found.different), len(found.unknown)) == counts
    assert found.equal == 0


def test_state_after_checkpoint_of_archive_is_found_by_diff(
    tmp_path: Path, set_live_responses: Callable[[Answers], None]
) -> None:
    key = SharePartitionKey("group", bytes(16), 1)
    values: list[ShareSnapshotValue | ShareUpdateValue] = [ShareSnapshotValue(0, 7, 1, 0, 1, 1, b"", -1, -1)]
    values += [ShareUpdateValue(0, 1, offset, b"", -1) for offset in range(1, 6)]
    batches = encode_batches([encode_record(StateRecord(key, value)) for value in values], size=1)
    log, copied = SegmentSource(str(tmp_path)), tmp_path / "archive"

    def archive_first_batches(count: int) -> None:
        write_segments(tmp_path / f"{TOPIC}-0", batches[:count])
        archive(log, copied)

    archive_first_batches(4)
    checkpoint_states(LOCAL, copied, interval_ms=1, now_ms=0)
    (row,) = rebuild(LOCAL, log).states.to_pylist()

    def copy_and_answer() -> dict[SharePartitionKey, LiveState]:
        archive_first_batches(6)
        return {key: make_live_state(row, start_offset=5)}

    set_live_responses(copy_and_answer)
    found = diff(LOCAL, ArchiveSource(str(copied)), "nobody:1")
    assert (found.equal_later, found.different) == (1, [])


def test_state_in_two_state_partitions_is_compared_in_its_hash_partition(
    tmp_path: Path, set_live_responses: Callable[[Answers], None]
) -> None:
    groups = SimulatedShareGroups(5).run_steps(300)
    key = copy_to_other_partition(groups.log, groups.leaders)
    folder = write_log(tmp_path / "log", groups.log)
    source = SegmentSource(str(folder))
    first = audit_segments(folder)
    assert sum(row_share_partition(row) == key for row in state_rows(first)) == 2
    placed = {
        row_share_partition(row): row
        for row in state_rows(first)
        if is_in_hash_partition(row, STATE_PARTITIONS)
    }

    set_live_responses(lambda: {each: make_live_state(row) for each, row in placed.items()})
    again = audit_segments(
        folder,
        AuditOptions(
            baseline=Baseline(first.manifest, lambda number: first.states),
            external=[LiveCheck(source, "nobody:1")],
        ),
    )
    assert "R8" in again.manifest["checks"]
    assert {"X1", "X3"}.isdisjoint([*again.manifest["checks"], *again.not_checked])


def test_state_listed_by_coordinator_but_missing_in_log_is_a_difference(
    audit_result: AuditResult, tmp_path: Path, set_live_responses: Callable[[Answers], None]
) -> None:
    source = SegmentSource(str(tmp_path / "before"))
    states = {row_share_partition(row): row for row in state_rows(audit_result)}
    lost = SharePartitionKey("lost", bytes(16), 3)
    gone = SharePartitionKey("gone", bytes(16), 3)

    answers = {key: make_live_state(row) for key, row in states.items()}
    set_live_responses(lambda: {**answers, lost: LiveState({"start_offset": 5}), gone: LiveState(None, None)})
    listed = [lost, gone, *states]
    found = diff(LOCAL, source, "live", listed=listed)
    assert [(each.key, each.what) for each in found.different] == [
        (lost, "the coordinator has state of it, the log has none")
    ]
    assert found.compared == len(states) + 2


def test_differences_beyond_limit_are_counted_but_not_listed(
    audit_result: AuditResult, tmp_path: Path, set_live_responses: Callable[[Answers], None]
) -> None:
    states = state_rows(audit_result)

    set_live_responses(
        lambda: {row_share_partition(row): make_live_state(row, leader_epoch=77) for row in states}
    )
    found = diff(LOCAL, SegmentSource(str(tmp_path / "before")), "nobody:1", limit=2)
    assert (len(found.different), found.unlisted) == (2, len(states) - 2)
    assert (found.compared, found.equal) == (len(states), 0)
