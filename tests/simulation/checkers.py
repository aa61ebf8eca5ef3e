"""Check a history for violated guarantees, without knowledge of the coordinator's implementation.

`linearize` has the linearizability checker, which implies most of these checks. The checkers here test single
guarantees: their errors are easier to read, and they do not depend on `model`, which could be wrong.
"""

from itertools import pairwise

from protocol.state_batches import StateBatch, unpack
from protocol.state_records import SharePartitionKey
from tests.simulation.history import (
    DELETE,
    INITIALIZE,
    NEVER,
    READ,
    SUMMARY,
    WRITE,
    History,
    Operation,
    Violation,
)
from tests.simulation.linearize import StartState, TopicKnown, check_linearizable
from tests.simulation.model import Progress, offset_progress


def permit_stale_reads(history: History, age_s: float) -> None:
    """Permit reads to return a state that was current up to `age_s` seconds before the request.

    The function moves the start times of reads and refused operations in the history back by `age_s`, so that
    all checkers accept responses with older state.
    """
    if not age_s:
        return
    for op in history.ops:
        if op.kind in (READ, SUMMARY) or (op.known and not op.accepted):
            op.invoked = (op.invoked[0] - age_s, op.invoked[1])
            # Operations with the same client name take effect in order, so the moved read gets another client
            # name.
            op.client = f"{op.client}, {op.number}"


def check_state_batches_are_well_formed(history: History) -> None:
    """Check that the batches of each read are ascending, disjoint, merged, and not below the start offset."""
    for op in history.ops:
        if op.kind == READ and op.accepted:
            batches = unpack(op.answer.state_batches)
            for before, after in pairwise(batches):
                touching = after.first_offset == before.last_offset + 1
                if after.first_offset <= before.last_offset or (touching and after[2:] == before[2:]):
                    raise Violation(f"batches overlap or are not merged: {before} {after} in {op}")
            if any(not _is_batch_at_or_after(batch, op.answer.start_offset) for batch in batches):
                raise Violation(f"a batch is inverted or below the start offset in {op}")


def _is_batch_at_or_after(batch: StateBatch, start_offset: int) -> bool:
    return start_offset <= batch.first_offset <= batch.last_offset


def check_acknowledged_writes_are_durable(history: History) -> None:
    """Check that a read that begins after the acknowledgement of a write shows at least that write.

    A write and a read are not compared if an initialize or delete may have reset the state in between.
    """
    for key, ops in history.operations_by_key():
        resets = [op for op in ops if op.kind in (INITIALIZE, DELETE) and _may_take_effect(op)]
        acknowledged: list[tuple[Operation, int, Progress]] = [
            (op, part.start_offset, offset_progress(part.state_batches))
            for op in ops
            if op.kind == WRITE and op.accepted
            for part in op.parts
        ]
        for read in ops:
            if read.kind != READ or not read.accepted:
                continue
            shown = {entry[0]: entry[1:] for entry in offset_progress(read.answer.state_batches)}
            for write, start_offset, progress in acknowledged:
                assert write.answered is not None
                if write.answered > read.invoked or any(
                    _reset_may_be_between(reset, write, read) for reset in resets
                ):
                    continue
                _check_read_shows_write(key, write, read, start_offset, progress, shown)


def _check_read_shows_write(
    key: SharePartitionKey,
    write: Operation,
    read: Operation,
    start_offset: int,
    progress: Progress,
    shown: dict[int, tuple[int, ...]],
) -> None:
    if read.answer.start_offset < start_offset:
        raise Violation(f"the start offset of {key} is below an acknowledged write's:\n  {write}\n  {read}")
    for user_offset, *count_and_state in progress:
        if user_offset >= read.answer.start_offset and list(shown.get(user_offset, ())) < count_and_state:
            raise Violation(f"offset {user_offset} of {key} lost an acknowledged write:\n  {write}\n  {read}")


def _may_take_effect(op: Operation) -> bool:
    return op.accepted or not op.known


def _reset_may_be_between(reset: Operation, earlier: Operation, later: Operation) -> bool:
    """Return whether a reset may have taken effect between the start of `earlier` and the end of `later`."""
    end = (reset.answered if reset.known else reset.deadline) or NEVER
    assert later.answered is not None
    return end > earlier.invoked and reset.invoked < later.answered


def check_refused_writes_are_invisible(history: History, start_state: StartState = lambda key: None) -> None:
    """Check that no read returns a refused write, which its unique delivery count identifies."""
    for key, ops in history.operations_by_key():
        refused: dict[int, Operation] = {}
        for op in ops:
            if op.kind == WRITE and op.known and not op.accepted:
                for part in op.parts:
                    for _, count, _ in offset_progress(part.state_batches):
                        refused[count] = op
        start = start_state(key)
        for _, count, _ in () if start is None else start.progress:
            refused.pop(count, None)
        for op in ops:
            if op.kind == WRITE and _may_take_effect(op):
                for part in op.parts:
                    for _, count, _ in offset_progress(part.state_batches):
                        refused.pop(count, None)
        for op in ops:
            if op.kind == READ and op.accepted:
                for _, count, _ in offset_progress(op.answer.state_batches):
                    if count in refused:
                        raise Violation(f"{key} shows a refused write:\n  {refused[count]}\n  {op}")


def check_epochs_never_decrease(history: History) -> None:
    """Check that no lower epoch is accepted or returned after a higher epoch, except after a deletion."""
    for key, ops in history.operations_by_key():
        deletions = [op for op in ops if op.kind == DELETE and _may_take_effect(op)]
        for name, read_epochs in (("state epoch", _state_epochs), ("leader epoch", _leader_epochs)):
            ops_with_epochs = [
                (op, epochs) for op in ops if op.accepted and (epochs := read_epochs(op)) is not None
            ]
            for earlier, (lowest, _) in ops_with_epochs:
                for later, (_, highest) in ops_with_epochs:
                    assert earlier.answered is not None
                    if earlier.answered < later.invoked and highest < lowest:
                        if any(_reset_may_be_between(deletion, earlier, later) for deletion in deletions):
                            continue
                        raise Violation(f"the {name} of {key} fell:\n  {earlier}\n  {later}")


def _state_epochs(op: Operation) -> tuple[int, int] | None:
    """Return the minimum state epoch after an operation, and the maximum state epoch at its acceptance."""
    if op.kind == INITIALIZE:
        epochs = [part.state_epoch for part in op.parts]
        return max(epochs), min(epochs)
    if op.kind == WRITE:
        # A write may have a higher state epoch than the stored state.
        return 0, min(part.state_epoch for part in op.parts)
    if op.kind == READ:
        return op.answer.state_epoch, op.answer.state_epoch
    if op.kind == SUMMARY and op.answer.start_offset != -1:
        return op.answer.state_epoch, op.answer.state_epoch
    return None


def _leader_epochs(op: Operation) -> tuple[int, int] | None:
    """Return the minimum leader epoch after an operation, and the maximum one at its acceptance."""
    if op.kind == READ:
        epochs = [part.leader_epoch for part in op.parts]
        return max(epochs), min(epochs)
    if op.kind == WRITE:
        return 0, min(part.leader_epoch for part in op.parts)
    return None


def check_start_offset_never_decreases(history: History) -> None:
    """Check that the start offset never decreases within a state epoch without a reset in between."""
    for key, ops in history.operations_by_key():
        resets = [op for op in ops if op.kind in (INITIALIZE, DELETE) and _may_take_effect(op)]
        shown = [op for op in ops if op.kind in (READ, SUMMARY) and op.accepted]
        for earlier in shown:
            for later in shown:
                assert earlier.answered is not None
                if (
                    earlier.answered < later.invoked
                    and earlier.answer.state_epoch == later.answer.state_epoch
                    and later.answer.start_offset < earlier.answer.start_offset
                    and not any(_reset_may_be_between(reset, earlier, later) for reset in resets)
                ):
                    raise Violation(f"the start offset of {key} fell:\n  {earlier}\n  {later}")


def check_history(
    history: History, topic_known: TopicKnown = lambda key: True, start_state: StartState = lambda key: None
) -> int:
    """Run all checkers; return for how many share-partitions the linearizability checker gave up."""
    check_state_batches_are_well_formed(history)
    check_acknowledged_writes_are_durable(history)
    check_refused_writes_are_invisible(history, start_state)
    check_epochs_never_decrease(history)
    check_start_offset_never_decreases(history)
    return check_linearizable(history, topic_known, start_state)
