"""Check a history for violated guarantees, without knowledge of the coordinator's implementation.

`linearize` has the linearizability checker. Its model has no batches, so their form is checked here.
"""

from itertools import pairwise

from protocol.state_batches import StateBatch, unpack
from tests.simulation.history import READ, SUMMARY, History, Violation
from tests.simulation.linearize import StartState, TopicKnown, check_linearizable


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


def check_history(
    history: History, topic_known: TopicKnown = lambda key: True, start_state: StartState = lambda key: None
) -> int:
    """Run both checkers; return for how many share-partitions the linearizability checker gave up."""
    check_state_batches_are_well_formed(history)
    return check_linearizable(history, topic_known, start_state)
