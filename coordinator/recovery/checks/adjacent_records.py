"""Compare a record with the record before it of the same share-partition: K2, K4, K6, K7, K10 to K14."""

from collections.abc import Callable

import numpy as np

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Findings
from coordinator.recovery.checks.record_histories import RUN, SNAPSHOT, TOMBSTONE, UNREADABLE, Histories
from coordinator.recovery.records import Bools, Ints
from coordinator.recovery.schema import NONE

_C, _W, _I = Severity.CRITICAL, Severity.WARNING, Severity.INFO

AddFinding = Callable[[str, Severity, Bools, Callable[[int], str], str], None]


def make_finding_adder(histories: Histories, found: Findings) -> AddFinding:
    """Return a function that adds a finding for each wrong entry of the histories.

    The last parameter, `at`, names the column with the log offset of the finding. The name of that column
    ends in `_at`. The name of the column with the timestamp ends in `_ms` instead.
    """

    def add_findings(
        check: str, severity: Severity, wrong: Bools, evidence: Callable[[int], str], at: str = "first_at"
    ) -> None:
        found.add_rows(
            check,
            severity,
            np.flatnonzero(wrong),
            share_partition=lambda row: histories.identities[int(histories.key[row])],
            key=histories.key,
            log_offset=histories[at],
            timestamp_ms=histories[at.removesuffix("at") + "ms"],
            evidence=evidence,
        )

    return add_findings


def check_adjacent_records(histories: Histories, found: Findings) -> None:
    """Check pairs of adjacent entries that come from different sources; the entries must be sorted."""
    if len(histories) < 2:
        return
    flag = make_finding_adder(histories, found)
    before = np.arange(-1, len(histories) - 1)
    met = np.zeros(len(histories), np.bool_)
    met[1:] = (histories.key[1:] == histories.key[:-1]) & (histories.source[1:] != histories.source[:-1])
    kind = histories["kind"]
    kind_before = np.where(met, kind[before], UNREADABLE)
    deleted = kind_before == TOMBSTONE
    epoch = histories["snapshot_epoch_first"]
    flag("K10", _C, deleted & (kind == RUN), lambda row: "the record before it is a tombstone", "first_at")
    flag("K11", _I, deleted & (kind == TOMBSTONE), lambda row: "a tombstone after a tombstone", "first_at")
    flag(
        "K4",
        _W,
        deleted & (kind == SNAPSHOT) & (epoch != 0) & (histories["is_cold"] == 0),
        lambda row: f"snapshot epoch {epoch[row]} after a tombstone",
        "first_at",
    )
    known = (kind_before == RUN) | (kind_before == SNAPSHOT)
    _check_updates(histories, (kind == RUN) & known, before, flag)
    _check_leader_epochs(histories, flag)
    _check_start_offsets(histories, flag)


def _check_updates(histories: Histories, update: Bools, before: Ints, flag: AddFinding) -> None:
    epoch, epoch_before = histories["snapshot_epoch_first"], histories["snapshot_epoch_last"][before]

    def epochs_text(row: int) -> str:
        return f"snapshot epoch {epoch[row]} after {epoch_before[row]}"

    flag("K2", _C, update & (epoch > epoch_before), epochs_text, "first_at")
    flag("K2", _W, update & (epoch < epoch_before), epochs_text, "first_at")
    digest = histories["digest_first"]
    again = update & (digest != 0) & (digest == histories["digest_last"][before])
    flag("K12", _W, again, lambda row: "the same as the record before it", "first_at")
    complete, complete_before = histories["complete_first"], histories["complete_last"][before]

    def counts_text(row: int) -> str:
        return f"complete count {complete[row]} after {complete_before[row]}"

    flag("K14", _W, update & (complete == NONE) & (complete_before >= 0), counts_text, "first_at")
    said = histories["start_said"]
    start_before = histories.previous_rows(_sets_start_offset(histories))
    stays = (said == NONE) | ((start_before >= 0) & (said == histories["start_last"][start_before]))
    back = update & stays & (complete >= 0) & (complete < complete_before)
    flag("K13", _W, back, lambda row: f"{counts_text(row)}, and the start offset stays", "first_at")
    _check_complete_counts(histories, start_before, flag)


def _check_complete_counts(histories: Histories, start_before: Ints, flag: AddFinding) -> None:
    """Check complete counts of records whose start offset can now be compared with an earlier record's."""
    met = (start_before >= 0) & (histories.source[start_before] != histories.source)
    start, complete = histories["start_first"], histories["complete_at_start"]
    complete_before = histories["complete_before_start"]
    stays = (start != NONE) & (start == histories["start_last"][start_before])
    flag(
        "K13",
        _W,
        met & stays & (complete >= 0) & (complete < complete_before),
        lambda row: (
            f"complete count {complete[row]} after {complete_before[row]}, and the start offset stays"
        ),
        "start_first_at",
    )


def _sets_start_offset(histories: Histories) -> Bools:
    """Return which entries set the start offset or make it unknown."""
    named: Bools = histories.is_reset | (histories["start_last"] != NONE)
    return named


def _check_leader_epochs(histories: Histories, flag: AddFinding) -> None:
    kind, leader = histories["kind"], histories["leader_first"]
    before = histories.previous_rows(histories.is_reset | (histories["leader_last"] != NONE))
    met = (before >= 0) & (histories.source[before] != histories.source)
    met &= np.isin(kind[before], (RUN, SNAPSHOT)) & (np.isin(kind, (RUN, SNAPSHOT))) & (leader != NONE)
    leader_before = histories["leader_last"][before]
    back = met & (leader < leader_before) & (histories["is_bare"] == 0)
    flag(
        "K6",
        _W,
        back,
        lambda row: f"leader epoch {leader[row]} after {leader_before[row]}",
        "leader_first_at",
    )


def _check_start_offsets(histories: Histories, flag: AddFinding) -> None:
    """Check the start offsets of updates; `generations` checks those of snapshots."""
    start = histories["start_first"]
    before = histories.previous_rows(_sets_start_offset(histories))
    met = (before >= 0) & (histories.source[before] != histories.source)
    met &= np.isin(histories["kind"][before], (RUN, SNAPSHOT)) & (histories["kind"] == RUN) & (start != NONE)
    start_before = histories["start_last"][before]
    back = met & (start < start_before)

    def offsets_text(row: int) -> str:
        return f"start offset {start[row]} after {start_before[row]}"

    ours = histories["ours"] != 0
    flag("K7", _C, back & ours, offsets_text, "start_first_at")
    flag("K7", _W, back & ~ours, offsets_text, "start_first_at")
