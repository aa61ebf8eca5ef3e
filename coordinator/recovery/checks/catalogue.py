"""Define the checks of an audit: id, severity, title, meaning and advice.

R checks concern a single record, K checks the history of a share-partition, P checks a state partition, and
X checks data outside the log.
"""

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """The severity of a finding."""

    CRITICAL = "critical"
    """State is lost or wrong, or would be after a recovery."""
    WARNING = "warning"
    """An operator should investigate it."""
    INFO = "info"
    """For information; no action is needed."""


# Most severe first.
SEVERITIES = tuple(Severity)


class FindingEffect(StrEnum):
    """The effect of a finding on the state that a restart would load."""

    NONE = "none"
    """The state is not affected."""
    DOUBT = "doubt"
    """The state may be wrong."""
    WRONG = "wrong"
    """A record is wrong; the state before it was correct."""
    MISPLACED = "misplaced"
    """The state is correct, but in a state partition where no coordinator reads it."""
    MISSING = "missing"
    """Records are missing; another copy of the log may have them."""


class Check(NamedTuple):
    """One check. `severity` is the highest of its findings; each finding has its own."""

    id: str
    severity: Severity
    title: str
    meaning: str
    advice: str


_C, _W, _I = SEVERITIES

_CHECKS = (
    # Records.
    Check(
        "R1",
        _C,
        "record that cannot be decoded",
        "One such record prevents Kafka's coordinator from loading the whole state partition. This "
        "coordinator refuses requests for its share-partition and serves all others.",
        "Use the log offset to find the producer of the record. To make the share-partition usable "
        "again, delete the group's state or write a new snapshot.",
    ),
    Check(
        "R2",
        _W,
        "record of an unknown type",
        "Every coordinator skips it. A newer release, or a client that should not write to the topic, "
        "wrote it.",
        "Check which clients may write to the topic.",
    ),
    Check(
        "R3",
        _C,
        "update without a value, or record without a key",
        "No coordinator writes such a record, and Kafka's cannot load the state partition because of it.",
        "Find the producer of the record. Restore the topic without it, from segments or an archive.",
    ),
    Check(
        "R4",
        _C,
        "impossible state batch",
        "A batch ends before it begins, has a delivery state that is never stored, or has a delivery "
        "count that no broker reaches. A share-partition leader that reads it may refuse it, and then "
        "delivers no records.",
        "Alter the offsets of the share group (kafka-share-groups.sh --reset-offsets), which writes a "
        "valid snapshot.",
    ),
    Check(
        "R5",
        _W,
        "state batches of a record are unsorted or overlap",
        "Coordinators write them sorted and disjoint. They are merged when they are loaded, so no state "
        "is lost.",
        "Find out which release wrote the record.",
    ),
    Check(
        "R6",
        _W,
        "state batch below the start offset of its own record",
        "Coordinators remove state batches below the start offset. They are also removed when they are "
        "loaded, so no state is lost.",
        "Find out which release wrote the record.",
    ),
    Check(
        "R7",
        _W,
        "invalid negative number",
        "A start offset or delivery complete count is below -1, or an epoch is negative.",
        "Find out which release wrote the record. Share-partition leaders may refuse state that is "
        "loaded from it.",
    ),
    Check(
        "R8",
        _C,
        "record in the wrong state partition",
        "No coordinator looks for the share-partition there, so its state is lost. If there are many "
        "such records, the number of partitions of the topic was changed.",
        "Rewrite the log to the correct number of partitions: recovery rewrite.",
    ),
    Check(
        "R9",
        _I,
        "record that is larger than necessary",
        "Equal adjacent batches are not merged (Kafka 4.3 and older leave some), more records are in "
        "flight than a broker allows, or the record is close to the limit of a message.",
        "Nothing if the brokers run Kafka 4.3 or older.",
    ),
    Check(
        "R10",
        _W,
        "clocks disagree",
        "A snapshot was created after it was written, its write time differs from that of its record, "
        "or record times decrease. Reading up to a time is then inexact.",
        "Check the clocks of the brokers and coordinators.",
    ),
    # Histories of share-partitions.
    Check(
        "K1",
        _C,
        "state loss: updates without any snapshot",
        "The log has updates of the share-partition but no snapshot before or after them: it was pruned "
        "past the latest snapshot, or records are lost. A coordinator that loads it has incomplete "
        "state.",
        "Restore the share-partition from an archive or a backup of the segments (recovery rewrite), or "
        "alter its offsets to start with new state.",
    ),
    Check(
        "K1b",
        _I,
        "updates before the first remaining snapshot",
        "This is normal in a pruned log: their snapshot was deleted, and a later snapshot contains "
        "their state.",
        "Nothing.",
    ),
    Check(
        "K2",
        _C,
        "update names another snapshot epoch than the record before it",
        "A higher epoch (critical): the snapshot between them is missing. A lower epoch (warning): a "
        "late write of a fenced owner.",
        "Compare with the segments of another replica. Check whether a second coordinator is running.",
    ),
    Check(
        "K3",
        _C,
        "snapshot epochs do not increase by one",
        "A gap means that a snapshot is missing. A repeated or lower epoch means that two coordinators "
        "write.",
        "Compare with the segments of another replica. Check whether a second coordinator is running.",
    ),
    Check(
        "K4",
        _W,
        "first snapshot after a deletion does not start at snapshot epoch 0",
        "Records between them are missing, or another program wrote the snapshot.",
        "Compare with the segments of another replica.",
    ),
    Check(
        "K5",
        _C,
        "state epoch decreases",
        "A later snapshot has a lower state epoch without a deletion between them: it was written from "
        "old state.",
        "Check whether a second coordinator is running. Alter the offsets of the share group to start "
        "with new state.",
    ),
    Check(
        "K6",
        _W,
        "leader epoch decreases",
        "Only InitializeShareGroupState resets it, to 0. Requests of a fenced leader may have been accepted.",
        "Check whether a second coordinator is running.",
    ),
    Check(
        "K7",
        _C,
        "start offset decreases",
        "Records that were completed are delivered again. With owner epochs in the log (this project's "
        "coordinator), this is critical. Kafka 4.3 and older accept late writes that cause it, so there "
        "it is a warning.",
        "With Kafka 4.3 or older, upgrade. Otherwise check whether a second coordinator is running.",
    ),
    Check(
        "K8",
        _C,
        "snapshot without earlier state",
        "A snapshot does not contain the state of the records before it: progress was lost when it was "
        "written, or records between them are missing.",
        "Restore the share-partition as of the offset before the snapshot (recovery rebuild "
        "--as-of-offset) and compare.",
    ),
    Check(
        "K9",
        _W,
        "more updates without a snapshot than the limit",
        "Recovery takes longer, and the log cannot be pruned. A cold snapshot resets the count, too.",
        "Compare snapshot.update.records.per.snapshot of the coordinator with the limit of this audit.",
    ),
    Check(
        "K10",
        _C,
        "update after a deletion",
        "A write recreated a part of deleted state, without state epoch and history.",
        "Delete the state of the share-partition again, or alter its offsets.",
    ),
    Check(
        "K11",
        _I,
        "deletion of state that does not exist",
        "The state was deleted twice, or before its first write. This is harmless.",
        "Nothing.",
    ),
    Check(
        "K12",
        _W,
        "the same update twice",
        "A client retried a write whose response was lost, or two coordinators write. The state is the same.",
        "If there are many, check for timeouts between brokers and the coordinator.",
    ),
    Check(
        "K13",
        _W,
        "inconsistent delivery complete count",
        "It differs from the number of finished records in flight, or decreased while the start offset "
        "did not change. The reported lag is wrong; deliveries are not affected.",
        "Nothing if all leaders run the same release. The next write corrects it.",
    ),
    Check(
        "K14",
        _W,
        "update without a delivery complete count after an update with a count",
        "Kafka loses the count in this case. Brokers of different releases lead the share-partition "
        "alternately.",
        "Upgrade all brokers to one release.",
    ),
    # State partitions.
    Check(
        "P1",
        _W,
        "pruning lags",
        "More records than the limit could be pruned and are not, or an old snapshot prevents many "
        "later records from being pruned.",
        "The report and the manifest name the share-partition that needs the oldest record.",
    ),
    Check(
        "P2",
        _C,
        "gap in the log",
        "Log offsets are missing, because of damage or because compaction was enabled.",
        "Use the segments of another replica or an archive. Check cleanup.policy of the topic.",
    ),
    Check(
        "P3",
        _C,
        "two writers",
        "Producers alternate within one ownership, or a producer epoch decreases. If the records belong "
        "to a fenced owner, this is a warning, because they do not count.",
        "Make sure that one coordinator owns each state partition. Check which other clients may write "
        "to the topic.",
    ),
    Check(
        "P4",
        _C,
        "damaged log",
        "A batch has a wrong checksum or is truncated, or the leader epoch of the log decreases. The "
        "rest of the log is still read.",
        "Use the segments of another replica or an archive, and check the disk. recovery rewrite "
        "--incomplete writes the rest to a new log.",
    ),
    Check(
        "P5",
        _C,
        "topic configuration unsuitable for state",
        "With deletion by time or size, or with compaction, Kafka removes records that are needed.",
        "Change the configuration of the topic as the finding states.",
    ),
    Check(
        "P6",
        _W,
        "open transaction",
        "A client wrote to the topic in a transaction that is still open. Readers of committed records "
        "stop there.",
        "Abort the transaction (kafka-transactions.sh), and find out which client writes to the topic.",
    ),
    Check(
        "P7",
        _I,
        "state partition takes long to recover",
        "Its share-partitions cannot be served until it is loaded.",
        "The report names the share-partition that needs the oldest record.",
    ),
    # Outside the log.
    Check(
        "X1",
        _C,
        "live coordinator and log differ",
        "The coordinator's state would change with a restart, or it does not see all of the log.",
        "recovery diff shows both sides. To make the coordinator load the log, restart it.",
    ),
    Check(
        "X2",
        _C,
        "groups and state do not match",
        "Critical: a group's share-partition has no state in the log. Warning: state of a topic or "
        "partition that no longer exists in the cluster, and that nothing deletes.",
        "If state is missing, alter the offsets of the group. Delete state that remains.",
    ),
    Check(
        "X3",
        _C,
        "state vanished or went back since the earlier audit",
        "A share-partition is missing without a deletion, or its start offset or an epoch is lower than "
        "before. The log alone cannot show that all records of a share-partition were pruned.",
        "Restore it from the earlier audit's source, an archive or a backup (recovery rewrite).",
    ),
    Check(
        "X4",
        _C,
        "rewritten log differs from its source",
        "recovery rewrite read its target again and found a difference.",
        "Do not use the target. Empty it and run the rewrite again.",
    ),
    Check(
        "X5",
        _W,
        "state and data partition do not match",
        "The state is beyond the end of the data partition, or its start offset is far below the first "
        "record.",
        "Alter the offsets of the share group. A restore may have recreated the topic with the same id.",
    ),
)

CATALOGUE: dict[str, Check] = {check.id: check for check in _CHECKS}


# The effects of critical findings. Other checks have Effect.DOUBT.
_EFFECTS = {
    **dict.fromkeys(("K1", "K2", "K3", "P2", "P4", "X2", "X3"), FindingEffect.MISSING),
    **dict.fromkeys(("R1", "R3", "R4", "K5", "K7", "K8"), FindingEffect.WRONG),
    "R8": FindingEffect.MISPLACED,
}
# Checks whose warnings have Effect.DOUBT.
_DOUBTFUL_WARNINGS = frozenset({"K2", "K4", "K6", "K7", "R7", "X3", "X5"})


def finding_effect(check_id: str, severity: Severity) -> FindingEffect:
    """Return the effect of a finding. A critical finding always has one."""
    if severity is Severity.CRITICAL:
        return _EFFECTS.get(check_id, FindingEffect.DOUBT)
    if severity is Severity.WARNING and check_id in _DOUBTFUL_WARNINGS:
        return FindingEffect.DOUBT
    return FindingEffect.NONE


def check_position(check_id: str) -> int:
    """Return the position of a check in the catalogue."""
    return list(CATALOGUE).index(check_id)
