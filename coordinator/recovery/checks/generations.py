"""Compare a snapshot with the generation before it (a snapshot and its updates): K3, K5, K7, K8, K9 and K13.

K8 finds lost progress: a snapshot must contain the state of the snapshot before it and of the updates between
them. The snapshot may contain more state batches, because the write that caused the snapshot had batches,
too. No write causes a cold snapshot, so a cold snapshot must be equal to the state before it.
"""

import numpy as np

from coordinator.recovery.batch_overlay import join_batches, overlay_batches, remove_offsets_below
from coordinator.recovery.checks.adjacent_records import AddFinding, make_finding_adder
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Findings
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.record_histories import RUN, SNAPSHOT, Histories, fold_groups
from coordinator.recovery.decode import StateBatches
from coordinator.recovery.partials import batch_floors
from coordinator.recovery.records import Bools, Ints
from coordinator.recovery.schema import NONE

_C, _W = Severity.CRITICAL, Severity.WARNING


def check_generations(histories: Histories, limits: Limits, found: Findings) -> None:
    """Check the generations whose first and next snapshot are known; `merge_runs` must be called before."""
    reset = histories.is_reset
    base = histories.previous_rows(reset)
    closed = reset & (base >= 0) & (histories["behind_gap"] == 0)
    if not closed.any():
        return
    flag = make_finding_adder(histories, found)
    before = np.arange(-1, len(histories) - 1)
    has_run = closed & (histories["kind"][before] == RUN)
    many = np.zeros(len(histories), np.bool_)
    many[before[has_run]] = histories["updates"][before[has_run]] > limits.updates_max + 1
    flag_long_update_sequences(histories, many, flag)
    both = closed & (histories["kind"] == SNAPSHOT) & (histories["kind"][base] == SNAPSHOT)
    _check_epochs(histories, both, base, flag)
    anew = histories["state_epoch"] > histories["state_epoch"][base]
    goes_on = both & ~anew & (histories["is_bare"] == 0)
    _check_progress(histories, goes_on, base, before, flag)
    rows = np.flatnonzero(goes_on)
    if len(rows):
        _check_lost_progress(histories, rows, base[rows], has_run[rows], flag)


def flag_long_update_sequences(histories: Histories, many: Bools, flag: AddFinding) -> None:
    """Add findings for sequences of too many updates without a snapshot."""
    updates = histories["updates"]
    flag("K9", _W, many, lambda row: f"{updates[row]} updates without a snapshot", "first_at")


def _check_epochs(histories: Histories, both: Bools, base: Ints, flag: AddFinding) -> None:
    epoch, state_epoch = histories["snapshot_epoch_first"], histories["state_epoch"]
    flag(
        "K3",
        _C,
        both & (epoch != epoch[base] + 1),
        lambda row: f"snapshot epoch {epoch[row]} after {epoch[base[row]]}",
        "first_at",
    )
    flag(
        "K5",
        _C,
        both & (state_epoch < state_epoch[base]),
        lambda row: f"state epoch {state_epoch[row]} after {state_epoch[base[row]]}",
        "first_at",
    )


def _check_progress(histories: Histories, goes_on: Bools, base: Ints, before: Ints, flag: AddFinding) -> None:
    start, complete = histories["start_first"], histories["complete_first"]
    named = histories.previous_rows(histories.is_reset | (histories["start_last"] != NONE))
    start_before, complete_before = histories["start_last"][named], histories["complete_last"][before]
    back = goes_on & (start < start_before) & (histories["state_epoch"] == histories["state_epoch"][base])

    def offsets_text(row: int) -> str:
        return f"start offset {start[row]} of a snapshot after {start_before[row]}"

    ours = histories["ours"] != 0
    flag("K7", _C, back & ours, offsets_text, "first_at")
    flag("K7", _W, back & ~ours, offsets_text, "first_at")
    fewer = goes_on & (start == start_before) & (complete >= 0) & (complete < complete_before)
    flag(
        "K13",
        _W,
        fewer,
        lambda row: (
            f"complete count {complete[row]} of a snapshot after {complete_before[row]}, and the "
            f"start offset stays"
        ),
        "first_at",
    )


def _check_lost_progress(
    histories: Histories, rows: Ints, base: Ints, has_run: Bools, flag: AddFinding
) -> None:
    """Compare the snapshots in `rows` with the generations that begin with the snapshots in `base`."""
    generation = np.arange(len(rows))
    members = np.concatenate([base, rows[has_run] - 1])
    owners = np.concatenate([generation, generation[has_run]])
    # A snapshot may end one generation and begin the next, so both groups of rows are selected separately.
    order = np.argsort(members, kind="stable")
    members, owners = members[order], owners[order]
    wanted = np.zeros(len(histories), np.bool_)
    wanted[members] = True
    prior = fold_groups(histories.folded.take(wanted), owners, len(rows))
    ends = np.zeros(len(histories), np.bool_)
    ends[rows] = True
    snapshots = histories.folded.take(ends)
    floor = batch_floors(snapshots["start_offset"])
    known = overlay_batches(remove_offsets_below(prior.batches, floor[prior.batches.row]))
    held = snapshots.batches
    cold = histories["is_cold"][rows] != 0
    both = overlay_batches(join_batches(known, held))
    forgets = rows_with_different_batches(both, held, len(rows))
    other = cold & rows_with_different_batches(known, held, len(rows))
    wrong = np.zeros(len(histories), np.bool_)
    wrong[rows[forgets | other]] = True
    number = np.zeros(len(histories), np.int64)
    number[rows] = generation

    def evidence_text(row: int) -> str:
        at = int(number[row])
        if forgets[at]:
            return f"{_first_missing_batch(both, held, at)} was known before it"
        return f"{_first_missing_batch(held, known, at)} is in it, but it should only renew what was known"

    flag("K8", _C, wrong, evidence_text, "first_at")


def rows_with_different_batches(one: StateBatches, other: StateBatches, rows: int) -> Bools:
    """Return which rows have different batches; both arguments are sorted by row and offset."""
    counts, other_counts = (np.bincount(each.row, minlength=rows) for each in (one, other))
    different: Bools = counts != other_counts
    same = ~different
    left, right = one.take(same[one.row]), other.take(same[other.row])
    unequal = np.zeros(len(left.row), np.bool_)
    for column, other_column in zip(left, right, strict=True):
        unequal |= column != other_column
    different[left.row[unequal]] = True
    return different


def _first_missing_batch(one: StateBatches, other: StateBatches, row: int) -> str:
    """Format the first batch of a row in `one` that `other` lacks."""
    has = {batch[1:] for batch in _batch_tuples(other, row)}
    for batch in _batch_tuples(one, row):
        if batch[1:] not in has:
            _, first, last, state, count = batch
            return f"({first}-{last}, state {state}, count {count})"
    return "nothing"


def _batch_tuples(batches: StateBatches, row: int) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in batches.take(batches.row == row)), strict=True))
