"""The checks of an audit: id, severity, meaning and what to do.

R checks concern a single record, K checks the history of a share-partition, P checks a state partition, X
checks something outside the log.
"""

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """The severity of a finding."""

    CRITICAL = "critical"
    """State is lost or wrong, or would be after a recovery."""
    WARNING = "warning"
    """Somebody should look at it."""
    INFO = "info"
    """Worth knowing; nothing is wrong."""


# Most severe first.
SEVERITIES = tuple(Severity)


class Effect(StrEnum):
    """The effect of a finding on the state that a restart would load."""

    NONE = "none"
    """The state is not affected."""
    DOUBT = "doubt"
    """The state may be wrong."""
    WRONG = "wrong"
    """A record is wrong; the state before it was right."""
    MISPLACED = "misplaced"
    """The state is right, in a state partition where no coordinator reads it."""
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
        "Kafka's coordinator refuses to load the whole state partition for one such record; ours serves "
        "all other share-partitions of it and refuses this one.",
        "Find out who wrote it (the log offset says when). Deleting the group's state, or a snapshot "
        "written over it, makes the share-partition usable again.",
    ),
    Check(
        "R2",
        _W,
        "record of an unknown type",
        "Every coordinator skips it. Somebody writes to the topic who should not, or a newer release did.",
        "Look at who may write to the topic.",
    ),
    Check(
        "R3",
        _C,
        "update without a value, or record without a key",
        "No coordinator writes such a record, and Kafka's cannot load the state partition because of it.",
        "Find out who wrote it; restore the topic from segments or an archive without it.",
    ),
    Check(
        "R4",
        _C,
        "impossible state batch",
        "A batch ends before it begins, has a delivery state that is never stored, or a delivery count "
        "that no broker reaches. A share-partition leader that reads it may refuse it, and then nothing "
        "is delivered.",
        "Alter the offsets of the share group (kafka-share-groups.sh --reset-offsets), which writes a "
        "clean snapshot.",
    ),
    Check(
        "R5",
        _W,
        "state batches of a record are unsorted or overlap",
        "Coordinators write them sorted and disjoint. Loading merges them, so no state is lost.",
        "Find out which release wrote it.",
    ),
    Check(
        "R6",
        _W,
        "state batch below the start offset of its own record",
        "Coordinators cut batches off at the start offset. Loading does it too, so no state is lost.",
        "Find out which release wrote it.",
    ),
    Check(
        "R7",
        _W,
        "negative number where none may be",
        "A start offset or delivery complete count below -1, or a negative epoch.",
        "Find out which release wrote it; state that is read from it may be refused by leaders.",
    ),
    Check(
        "R8",
        _C,
        "record in the wrong state partition",
        "No coordinator looks for the share-partition there: its state is lost to it. If there are many, "
        "the number of partitions of the topic was changed.",
        "Rewrite the log to the number of partitions that it should have: recovery rewrite.",
    ),
    Check(
        "R9",
        _I,
        "record that is larger than it need be",
        "Equal neighbouring batches are not merged (Kafka 4.3 and older leave some), more records are in "
        "flight than a broker allows, or the record is near the limit for a message.",
        "Nothing, if brokers are of Kafka 4.3 or older.",
    ),
    Check(
        "R10",
        _W,
        "clocks disagree",
        "A snapshot was created after it was written, or was written at another time than its record "
        "says, or the times of records step back. Reading up to a time is not exact then.",
        "Look at the clocks of the brokers and coordinators.",
    ),
    # Histories of share-partitions.
    Check(
        "K1",
        _C,
        "state loss: updates without any snapshot",
        "The log has updates of the share-partition and no snapshot before or after them: it was pruned "
        "past the latest snapshot, or records are lost. A coordinator that loads it has a stub of the "
        "state.",
        "Restore the share-partition from an archive or a backup of the segments (recovery rewrite), or "
        "alter its offsets so that it begins anew.",
    ),
    Check(
        "K1b",
        _I,
        "updates before the first snapshot that is left",
        "As a pruned log looks: their snapshot is gone, and a later one holds all they say.",
        "Nothing.",
    ),
    Check(
        "K2",
        _C,
        "update names another snapshot epoch than the record before it",
        "Higher (critical): the snapshot between is missing. Lower (warning): a late write of a fenced "
        "owner.",
        "Compare with the segments of another replica; look for a second coordinator.",
    ),
    Check(
        "K3",
        _C,
        "snapshot epochs do not count up by one",
        "A gap means that a snapshot is missing; a repeat or a step back, that two coordinators write.",
        "Compare with the segments of another replica; look for a second coordinator.",
    ),
    Check(
        "K4",
        _W,
        "first snapshot after a deletion does not begin at snapshot epoch 0",
        "Records between are missing, or somebody else wrote it.",
        "Compare with the segments of another replica.",
    ),
    Check(
        "K5",
        _C,
        "state epoch goes back",
        "A later snapshot has a lower state epoch without a deletion between: it was written from an old "
        "state.",
        "Look for a second coordinator; alter the offsets of the share group to begin anew.",
    ),
    Check(
        "K6",
        _W,
        "leader epoch goes back",
        "Only an initialise resets it, to 0. A fenced leader may have been served.",
        "Look for a second coordinator.",
    ),
    Check(
        "K7",
        _C,
        "start offset goes back",
        "Records that were done are delivered again. In a log with owner epochs (ours) that is critical; "
        "Kafka 4.3 and older accept late writes that do so, there it is a warning.",
        "With Kafka 4.3 or older: upgrade. Else look for a second coordinator.",
    ),
    Check(
        "K8",
        _C,
        "snapshot forgets what was known",
        "A snapshot does not hold what the records before it amount to: progress was lost when it was "
        "written, or records between are missing.",
        "Restore the share-partition as of the offset before it (recovery rebuild --as-of-offset) and "
        "compare.",
    ),
    Check(
        "K9",
        _W,
        "more updates without a snapshot than the limit",
        "Recovery takes longer, and pruning is held back. A cold snapshot resets the count, too.",
        "Compare snapshot.update.records.per.snapshot of the coordinator with the limit of this audit.",
    ),
    Check(
        "K10",
        _C,
        "update after a deletion",
        "A write revived half of a state that was deleted: a stub without state epoch and history.",
        "Delete the state of the share-partition again, or alter its offsets.",
    ),
    Check(
        "K11",
        _I,
        "deletion of what is not there",
        "Deleted twice, or before it was ever written. Harmless.",
        "Nothing.",
    ),
    Check(
        "K12",
        _W,
        "the same update twice",
        "A write was sent again after its answer got lost, or two coordinators write. The state is the same.",
        "If there are many, look at time-outs between brokers and the coordinator.",
    ),
    Check(
        "K13",
        _W,
        "delivery complete count does not fit",
        "It is not the number of finished records in flight, or went back while the start offset stayed. "
        "The lag that is shown to users is wrong; deliveries are not.",
        "Nothing, if all leaders are of one release; it is set anew by the next write.",
    ),
    Check(
        "K14",
        _W,
        "update without a delivery complete count after one with it",
        "Kafka forgets the count then. Brokers of different releases lead the share-partition in turn.",
        "Bring all brokers to one release.",
    ),
    # State partitions.
    Check(
        "P1",
        _W,
        "pruning lags",
        "More records than the limit could be pruned and are not, or an old snapshot holds back many that "
        "came after it.",
        "recovery plan-prune says what holds pruning back.",
    ),
    Check(
        "P2",
        _C,
        "hole in the log",
        "Log offsets are missing: damage, or somebody switched compaction on.",
        "Take the segments of another replica or an archive; look at cleanup.policy of the topic.",
    ),
    Check(
        "P3",
        _C,
        "two writers",
        "Producers take turns in one ownership, or a producer epoch goes back. Records of a fenced owner "
        "that were fenced off are a warning: they do not count.",
        "Make sure that one coordinator owns each state partition; look at who else may write to the topic.",
    ),
    Check(
        "P4",
        _C,
        "damaged log",
        "A batch fails its checksum or is cut off, or the leader epoch of the log goes back. The rest of the "
        "log is read all the same.",
        "Take the segments of another replica or an archive; look at the disk. recovery rewrite --incomplete "
        "writes the rest to a new log.",
    ),
    Check(
        "P5",
        _C,
        "topic is not set up as a state topic must be",
        "With deletion by time or size, or with compaction, Kafka removes records that are needed.",
        "Set the configs of the topic as the finding says.",
    ),
    Check(
        "P6",
        _W,
        "transaction that does not end",
        "Somebody wrote to the topic in a transaction that is still open. Readers of committed records "
        "stop there.",
        "Abort it (kafka-transactions.sh), and find out who writes to the topic.",
    ),
    Check(
        "P7",
        _I,
        "state partition takes long to recover",
        "Its share-partitions cannot be served until it is loaded.",
        "recovery replay-cost and plan-prune say why.",
    ),
    # Outside the log.
    Check(
        "X1",
        _C,
        "live coordinator answers something else than the log holds",
        "It would answer differently after a restart, or does not see all of the log.",
        "recovery diff shows both sides; restarting the coordinator makes it load the log.",
    ),
    Check(
        "X2",
        _C,
        "groups and state do not fit together",
        "Critical: a group's share-partition has no state in the log. Warning: state of a topic or "
        "partition that the cluster does not have any more, which nobody deletes.",
        "Alter the offsets of the group where state is missing; delete state that leaked.",
    ),
    Check(
        "X3",
        _C,
        "state vanished or went back since the earlier audit",
        "A share-partition is gone without a deletion, or its start offset or an epoch is lower than it "
        "was. Nothing in the log itself shows a share-partition that was pruned away as a whole.",
        "Restore it from the earlier audit's source, an archive or a backup (recovery rewrite).",
    ),
    Check(
        "X4",
        _C,
        "rewritten log does not hold what its source holds",
        "recovery rewrite read its target anew and found a difference.",
        "Do not use the target. Empty it and rewrite again.",
    ),
    Check(
        "X5",
        _W,
        "state and data partition do not fit together",
        "State is beyond the end of the data partition, or its start offset far below the first record.",
        "Alter the offsets of the share group; the topic may have been made anew with the same id by a "
        "restore.",
    ),
    Check(
        "X6",
        _C,
        "two ways of folding the log disagree",
        "A sample was folded record by record with the coordinator's own code, and came out differently.",
        "This is a bug in this release: report it with the manifest of this audit.",
    ),
)

CATALOGUE: dict[str, Check] = {check.id: check for check in _CHECKS}


# The effects of critical findings; checks that are not named have none.
_EFFECTS = {
    **dict.fromkeys(("K1", "K2", "K3", "P2", "P4", "X2", "X3"), Effect.MISSING),
    **dict.fromkeys(("R1", "R3", "R4", "K5", "K7", "K8"), Effect.WRONG),
    "R8": Effect.MISPLACED,
}
# Checks whose warnings make a state doubtful.
_DOUBTFUL_WARNINGS = frozenset({"K2", "K4", "K6", "K7", "R7", "X3", "X5"})


def effect_of(check_id: str, severity: Severity) -> Effect:
    """Return what a finding says about the state; a critical one always says something."""
    if severity is Severity.CRITICAL:
        return _EFFECTS.get(check_id, Effect.DOUBT)
    if severity is Severity.WARNING and check_id in _DOUBTFUL_WARNINGS:
        return Effect.DOUBT
    return Effect.NONE


def order_of(check_id: str) -> int:
    """Return the place of a check in the catalogue."""
    return list(CATALOGUE).index(check_id)
