"""Derive a verdict on each group from the findings of an audit, and the command that restores it.

A share group is *whole*, *suspect* (its state may be wrong), *recoverable* (from a copy of the log, or as of
an earlier log offset), or *lost*. Reports, metrics and exit codes use this verdict.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from coordinator.recovery.checks.catalogue import FindingEffect, Severity, finding_effect
from coordinator.recovery.schema import ALL, NONE
from coordinator.recovery.share_partitions import state_depends_on
from coordinator.recovery.state_tasks import PartitionStates
from coordinator.recovery.tasks import NamedOutput

Row = Mapping[str, Any]
SharePartitionId = tuple[str, str, int]

# Names of outputs: the states that findings concern, and the number of other states of each share group.
CONCERNED_OUTPUT, GROUPS_OUTPUT = "concerned", "groups"
_ANY_OFFSET = 2**63 - 1

_YES = "every share-partition has its snapshot and all updates after it: yes"
_NO = "every share-partition has its snapshot and all updates after it: NO"


class RecoveryStatus(IntEnum):
    """The status of a share-partition or a share group; a higher number is worse."""

    WHOLE = 0
    SUSPECT = 1
    RECOVERABLE = 2
    LOST = 3


class LogCopy(NamedTuple):
    """An archive of the log, and the gapless range of log offsets that it has of each state partition.

    `missing` are ranges (inclusive) of log offsets that it lacks.
    """

    text: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    missing: Mapping[int, Sequence[tuple[int, int]]] = {}

    def contains_offsets(self, state_partition: int, first: int, last: int) -> bool:
        """Return whether the archive has these log offsets, or the state partition if `first` is -1."""
        if state_partition not in self.ends:
            return False
        start, end = self.starts[state_partition], self.ends[state_partition]
        if first < 0:
            first, last = start, end
        is_within = start <= first and last <= end
        return is_within and not any(
            a <= last and first <= b for a, b in self.missing.get(state_partition, ())
        )


@dataclass(frozen=True)
class SharePartitionVerdict:
    """A share-partition that is not whole.

    `since_ms` is the time of the first finding, -1 if it is not known. The state covers the user records from
    `start_offset` to `last_offset` (inclusive); both are -1 if there is no state.
    """

    group_id: str
    topic_id: str
    partition: int
    status: RecoveryStatus
    checks: tuple[str, ...]
    since_ms: int
    start_offset: int = NONE
    last_offset: int = NONE
    # The archive or source to restore from; if `cut` is (state partition, log offset), only up to that log
    # offset.
    recover_from: str = ""
    cut: tuple[int, int] | None = None


@dataclass(frozen=True)
class GroupVerdict:
    """A share group with the status of its worst share-partition; an operator should run `command` next."""

    group_id: str
    status: RecoveryStatus
    share_partitions: int
    affected: Sequence[SharePartitionVerdict] = ()
    recover_from: str = ""
    command: str = ""

    @property
    def since_ms(self) -> int:
        """Return the time of the first finding, -1 if it is not known."""
        return min((each.since_ms for each in self.affected if each.since_ms >= 0), default=NONE)

    @property
    def checks(self) -> list[str]:
        """Return the ids of the checks that have findings."""
        return sorted({check for each in self.affected for check in each.checks})


@dataclass(frozen=True)
class Verdict:
    """All groups, the worst first, and the answer to "would a restart restore all state?"."""

    groups: Sequence[GroupVerdict]
    is_positive: bool
    headline: str
    topics: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[RecoveryStatus, int]:
        """Return the number of share groups with each status."""
        counted = Counter(group.status for group in self.groups)
        return {status: counted[status] for status in RecoveryStatus}


class AuditContext(NamedTuple):
    """The input of a verdict besides findings and states; `topics` maps topic ids to topic names.

    `others` maps each share group to its number of share-partitions that no finding concerns.
    """

    source: str
    bootstrap_servers: str = ""
    copy: LogCopy | None = None
    topics: Mapping[str, str] = {}
    is_unread: bool = False
    others: Mapping[str, int] = {}


def classify_groups(findings: Sequence[Row], states: Iterable[Row], context: AuditContext) -> Verdict:
    """Classify every group.

    `findings` has rows of `FINDINGS`; `states` has the rows of `STATES` that findings concern.
    """
    known = {_share_partition_id(row): row for row in states}
    affected: dict[SharePartitionId, SharePartitionVerdict] = {}
    critical = [row for row in findings if row["severity"] == Severity.CRITICAL.value]
    for row in findings:
        effect = finding_effect(row["check"], Severity(row["severity"]))
        if effect is FindingEffect.NONE:
            continue
        places = (
            _affected_share_partitions(known, row) if row["group_id"] is None else [_share_partition_id(row)]
        )
        for place in places:
            # If the latest snapshot is after the missing records, the state does not depend on them.
            if effect is FindingEffect.MISSING and _has_later_snapshot(known.get(place), row):
                continue
            found = _classify_finding(place, row, effect, known.get(place), context)
            before = affected.get(place)
            affected[place] = found if before is None else _merge_verdicts(before, found)
    groups = sorted(_group_verdicts(known, affected, context), key=lambda each: (-each.status, each.group_id))
    is_positive = not critical and not context.is_unread
    return Verdict(groups, is_positive, _headline_text(groups, critical, context), context.topics)


def select_states_for_verdict(findings: Iterable[Row], partition: PartitionStates) -> Iterator[NamedOutput]:
    """Yield the states that the findings of a state partition concern; count the other states by group."""
    places: set[SharePartitionId] = set()
    # The greatest log offset of findings about the whole state partition.
    last = NONE
    for row in findings:
        if finding_effect(row["check"], Severity(row["severity"])) is FindingEffect.NONE:
            continue
        if row["group_id"] is not None:
            places.add(_share_partition_id(row))
        else:
            last = max(last, _ANY_OFFSET if row["last_log_offset"] < 0 else row["last_log_offset"])
    states, number = partition.states.combine_chunks(), partition.state_partition
    wanted = np.zeros(len(states), np.bool_)
    if last != NONE or places:
        columns = ["group_id", "topic_id", "partition", "write_timestamp", "needed_from"]
        rows = states.select(columns).to_pylist()
        wanted[:] = [
            _share_partition_id(row) in places or (last != NONE and state_depends_on(row, last))
            for row in rows
        ]
    for batch in states.filter(pa.array(wanted)).to_batches():
        yield NamedOutput(CONCERNED_OUTPUT, number, batch)
    counts = states.column("group_id").filter(pa.array(~wanted)).value_counts()
    groups = pa.RecordBatch.from_arrays(counts.flatten(), ["group_id", "states"])
    yield NamedOutput(GROUPS_OUTPUT, number, groups)


def _share_partition_id(row: Row) -> SharePartitionId:
    return (row["group_id"], row["topic_id"], row["partition"])


def _affected_share_partitions(known: Mapping[SharePartitionId, Row], finding: Row) -> list[SharePartitionId]:
    """Return the share-partitions that a finding about a state partition affects.

    A finding about the whole log, such as its configuration, affects no share-partition; only the headline
    names the finding. If the latest snapshot of a share-partition is after the finding, its state is not
    affected.
    """
    state_partition = finding["state_partition"]
    return [
        place
        for place, row in known.items()
        if state_partition == row["state_partition"] and not _has_later_snapshot(row, finding)
    ]


def _has_later_snapshot(state: Row | None, finding: Row) -> bool:
    """Return whether the latest snapshot of a share-partition is after a finding."""
    last: int = finding["last_log_offset"]
    return state is not None and last >= 0 and not state_depends_on(state, last)


def _classify_finding(
    place: SharePartitionId, finding: Row, effect: FindingEffect, state: Row | None, context: AuditContext
) -> SharePartitionVerdict:
    """Classify a share-partition by one finding."""
    state_partition = finding["state_partition"]
    if state is not None and state_partition < 0:
        state_partition = state["state_partition"]
    first, last = finding["log_offset"], finding["last_log_offset"]
    status, recover_from, cut = RecoveryStatus.SUSPECT, "", None
    if effect is FindingEffect.MISSING:
        if context.copy is not None and context.copy.contains_offsets(state_partition, first, last):
            status, recover_from = RecoveryStatus.RECOVERABLE, context.copy.text
        elif finding["group_id"] is not None:
            status = RecoveryStatus.LOST
    elif effect is FindingEffect.MISPLACED:
        status, recover_from = RecoveryStatus.RECOVERABLE, context.source
    elif effect is FindingEffect.WRONG:
        status = RecoveryStatus.LOST
        if first > 0:
            status, recover_from, cut = RecoveryStatus.RECOVERABLE, context.source, (state_partition, first)
    batches = [] if state is None else state["state_batches"]
    return SharePartitionVerdict(
        *place,
        status,
        (finding["check"],),
        finding["timestamp_ms"],
        NONE if state is None else state["start_offset"],
        max((batch["last_offset"] for batch in batches), default=NONE),
        recover_from,
        cut,
    )


def _merge_verdicts(one: SharePartitionVerdict, other: SharePartitionVerdict) -> SharePartitionVerdict:
    """Merge two verdicts on a share-partition: use the worse status; if they are equal, the earlier cut."""
    no_cut = (0, 2**63)
    worse = min(one, other, key=lambda each: (-each.status, (each.cut or no_cut)[1]))
    times = [each.since_ms for each in (one, other) if each.since_ms >= 0]
    return replace(
        worse,
        checks=tuple(dict.fromkeys((*one.checks, *other.checks))),
        since_ms=min(times, default=NONE),
    )


def _group_verdicts(
    known: Mapping[SharePartitionId, Row],
    affected: Mapping[SharePartitionId, SharePartitionVerdict],
    context: AuditContext,
) -> Iterator[GroupVerdict]:
    counts = Counter(context.others)
    counts.update(group_id for group_id, _, _ in {*known, *affected})
    by_group: dict[str, list[SharePartitionVerdict]] = {}
    for place in sorted(affected):
        by_group.setdefault(place[0], []).append(affected[place])
    for group_id, count in counts.items():
        found = by_group.get(group_id, [])
        if not found:
            yield GroupVerdict(group_id, RecoveryStatus.WHOLE, count)
            continue
        worst = max(found, key=lambda each: each.status)
        yield GroupVerdict(
            group_id, worst.status, count, found, worst.recover_from, _next_command(worst, found, context)
        )


def _next_command(
    worst: SharePartitionVerdict, found: Sequence[SharePartitionVerdict], context: AuditContext
) -> str:
    """Return the command that an operator should run next for a group."""
    cluster = ("--bootstrap-servers", context.bootstrap_servers) if context.bootstrap_servers else ()
    # A group name may begin with "--".
    named = ("--", worst.group_id, worst.topic_id, str(worst.partition))
    if worst.status is RecoveryStatus.SUSPECT:
        command = ("share-coordinator", "recovery", "explain", "--from", context.source, *cluster, *named)
    elif worst.status is RecoveryStatus.LOST:
        topic = context.topics.get(worst.topic_id, worst.topic_id)
        command = (
            *("kafka-share-groups.sh", "--bootstrap-server", context.bootstrap_servers or "HOST:PORT"),
            *("--reset-offsets", "--to-latest", "--group", worst.group_id, "--topic", topic, "--dry-run"),
        )
    else:
        cuts: dict[int, int] = {}
        for each in found:
            if each.cut is not None and each.recover_from == worst.recover_from:
                state_partition, offset = each.cut
                cuts[state_partition] = min(offset, cuts.get(state_partition, offset))
        as_of = ",".join(f"{number}:{offset}" for number, offset in sorted(cuts.items()))
        command = (
            *("share-coordinator", "recovery", "rewrite", "--from", worst.recover_from),
            *(("--as-of-offset", as_of) if as_of else ()),
            *("--to", "journal:restored"),
            *(cluster if worst.recover_from == context.source else ()),
        )
    return " ".join(map(_quote, command))


def _quote(word: str) -> str:
    """Quote a word for a shell, on one line: a group name may have line breaks and control characters."""
    if word.isprintable():
        return shlex.quote(word)

    def escape(character: str) -> str:
        if not character.isprintable():
            return f"\\U{ord(character):08x}"
        return f"\\{character}" if character in "\\'" else character

    return f"$'{''.join(map(escape, word))}'"


def _headline_text(groups: Sequence[GroupVerdict], critical: Sequence[Row], context: AuditContext) -> str:
    """Return the verdict as one sentence, which is never positive if there is a critical finding.

    Checks are named if their findings concern no group that is listed.
    """
    if context.is_unread:
        return "the log could not be read"
    statuses = Counter(group.status for group in groups)
    listed = {group.group_id for group in groups if group.status is not RecoveryStatus.WHOLE}
    parts = [
        f"{statuses[status]} group{'' if statuses[status] == 1 else 's'} {status.name.lower()}"
        for status in (RecoveryStatus.LOST, RecoveryStatus.RECOVERABLE, RecoveryStatus.SUSPECT)
        if statuses[status]
    ]
    if not critical:
        return f"{_YES}; {', '.join(parts)}" if parts else _YES
    in_partitions = {
        row["check"]: sorted({each["state_partition"] for each in critical if each["check"] == row["check"]})
        for row in critical
        if row["group_id"] not in listed
    }
    for check, numbers in sorted(in_partitions.items()):
        parts.append(f"{check} in {_format_partitions(numbers)}")
    return f"{_NO}: {', '.join(parts)}"


def _format_partitions(numbers: Sequence[int]) -> str:
    if ALL in numbers:
        return "the log"
    return f"{len(numbers)} state partition{'' if len(numbers) == 1 else 's'}"
