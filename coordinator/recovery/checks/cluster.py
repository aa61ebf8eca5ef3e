"""Compare a state log with a cluster's topic configs (P5), share groups (X2) and consumed topics (X5).

This module only compares; `coordinator.recovery.external_checks` queries the cluster.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.schema import NONE
from coordinator.recovery.share_partitions import Row, row_identity
from protocol.state_records import parse_topic_id

_C, _W = Severity.CRITICAL, Severity.WARNING

# The required configs of a state topic: name, valid value, and the severity of a finding about another value.
_CONFIGS = (
    ("cleanup.policy", "delete", _C),
    ("retention.ms", "-1", _C),
    ("retention.bytes", "-1", _C),
    ("unclean.leader.election.enable", "false", _W),
)
_MIN_ISR = 2

TopicPartition = tuple[bytes, int]


def check_configs(configs: Mapping[str, str], partitions: int, expected: int | None) -> Iterator[Finding]:
    """Check the configs of a state topic, and its number of partitions if that is given (check P5)."""
    for name, required, severity in _CONFIGS:
        value = configs.get(name, required)
        if value != required:
            yield Finding("P5", severity, evidence=f"{name} is {value}, it must be {required}")
    min_isr = configs.get("min.insync.replicas", str(_MIN_ISR))
    if min_isr.isdigit() and int(min_isr) < _MIN_ISR:
        yield Finding(
            "P5",
            _W,
            evidence=f"min.insync.replicas is {min_isr}: the loss of one broker can lose acknowledged writes",
        )
    if expected is not None and expected != partitions:
        yield Finding("P5", _C, evidence=f"the topic has {partitions} partitions, expected are {expected}")


def report_missing_states(missing: Iterable[bytes]) -> Iterator[Finding]:
    """Report share-partitions that a group initialised before the log was read, but without state (X2)."""
    for identity in missing:
        yield Finding(
            "X2", _C, share_partition=identity, evidence="its group initialised it; the log has no state"
        )


def check_groups(
    states: Iterable[Row], groups: Collection[str], topics: Mapping[bytes, str]
) -> Iterator[Finding]:
    """Check that the share group and the user topic of each state exist (check X2).

    `groups` and `topics` were listed after the log was read.
    """
    for row in states:
        at = (row["state_partition"], row_identity(row), row["last_log_offset"], row["last_log_offset"])
        if parse_topic_id(row["topic_id"]) not in topics:
            yield Finding("X2", _W, *at, evidence="its topic does not exist, or Describe is not allowed")
        elif row["group_id"] not in groups:
            yield Finding("X2", _W, *at, evidence="its group does not exist, or Describe is not allowed")


def check_offsets_in_user_topics(
    states: Iterable[Row],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limits: Limits,
) -> Iterator[Finding]:
    """Check that the offsets of each state are within the log of its user-topic partition (X5)."""
    for row in states:
        place = (parse_topic_id(row["topic_id"]), row["partition"])
        if place not in ends or place not in starts:
            continue
        start_offset, end = row["start_offset"], ends[place]
        last = max((batch["last_offset"] for batch in row["state_batches"]), default=NONE)
        at = (row["state_partition"], row_identity(row), row["last_log_offset"], row["last_log_offset"])
        if start_offset > end:
            yield Finding("X5", _W, *at, evidence=f"start offset {start_offset}, the partition ends at {end}")
        elif last >= end:
            yield Finding("X5", _W, *at, evidence=f"a batch up to {last}, the partition ends at {end}")
        elif 0 <= start_offset < starts[place] - limits.below_data_start_max:
            yield Finding(
                *("X5", _W, *at),
                evidence=f"start offset {start_offset}, the partition begins at {starts[place]}",
            )
