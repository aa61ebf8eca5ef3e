"""The job `rewrite`: write the states of a log to a new log, from a backup or with another partition count.

The target is a journal or a topic of this project. The job uses `coordinator.operate.migration`. Without
`--execute`, the job only prints its plan. The job refuses a target that a coordinator owns or that has other
state. Afterwards, the job compares source and target (X4): `migration` folds the target record by record, and
`rebuild` folds both logs in columns.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.operate.migration import (
    MigrationLocation,
    MigrationOptions,
    MigrationRefused,
    MigrationReport,
    make_target,
    migrate_states,
    parse_target,
)
from coordinator.operate.migration.fold import FoldedLog
from coordinator.operate.migration.locations import LocationKind
from coordinator.operate.migration.readers import LogReader, Progress
from coordinator.recovery.engines import Engine
from coordinator.recovery.rebuild import RebuildResult, rebuild
from coordinator.recovery.share_partitions import (
    Row,
    count_state_partitions,
    deduplicate,
    is_in_hash_partition,
    row_share_partition,
)
from coordinator.recovery.sources import open_source
from coordinator.recovery.sources.base import END, LogCut, Source
from coordinator.recovery.sources.topic_access import make_topic_options
from coordinator.shard import ShareState
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey

# The fields of `ShareState` that are columns of `STATES` with the same name.
_FIELDS = (
    *("snapshot_epoch", "state_epoch", "leader_epoch", "leader_epoch_max", "start_offset"),
    *("delivery_complete_count", "create_timestamp", "write_timestamp", "updates", "update_bytes"),
    *("last_write_ms", "unreadable"),
)

# Maximum number of share-partitions that a message names.
_NAMED_MAX = 10

# Fields that must be equal in source and target; others, such as the write time, may differ.
_COMPARED = attrgetter(
    *("start_offset", "delivery_complete_count", "state_epoch", "leader_epoch", "leader_epoch_max"),
    *("batches", "create_timestamp"),
)

# Maximum number of rows that are Python objects at a time; a row takes 6 KB.
_CHUNK_STATES = 20_000


class _MigrationReader(LogReader):
    """Adapts a source of the recovery jobs to the reader interface of a migration.

    A log can be rewritten while a coordinator uses it, so the source is not locked.
    """

    def __init__(self, engine: Engine, source: Source, cut: LogCut, *, may_be_incomplete: bool) -> None:
        self._engine = engine
        self._source = source
        self._cut = cut
        self._may_be_incomplete = may_be_incomplete
        self._ends: tuple[int, ...] = ()
        self.notes: list[str] = []

    async def fold(self, progress: Progress) -> FoldedLog | None:
        """Rebuild all states up to the cut.

        Raises MigrationRefused if records may be missing (pruned or damaged), unless that is allowed.
        """
        run = await asyncio.to_thread(rebuild, self._engine, self._source, cut=self._cut)
        doubtful = run.manifest["doubtful_partitions"]
        if doubtful and not self._may_be_incomplete:
            named = ", ".join(map(str, doubtful))
            raise MigrationRefused(
                f"the beginning of state partition {named} was pruned, perhaps after the cut, so states may "
                "be missing or incomplete. Use an archive or a later cut, or write the remaining states with "
                "--incomplete"
            )
        damages = run.manifest["damages"]
        if damages and not self._may_be_incomplete:
            raise MigrationRefused(
                f"the log is damaged in {len(damages)} places, and {len(run.manifest['affected'])} "
                "share-partitions may lack updates (recovery audit names them). Use an archive or another "
                "copy of the log, or write the rest with --incomplete"
            )
        number = count_state_partitions(list(map(int, run.manifest["partitions"])))
        states, left = deduplicate(_iterate_rows(run), number, make_share_state)
        notes = [*run.manifest["notes"], *_describe_damage(run), *_format_duplicates(left)]
        self.notes = self.notes or notes
        self._ends = _read_end_offsets(run)
        return FoldedLog(states, self._ends)

    async def end_offsets(self) -> tuple[int, ...]:
        """Return the current end offsets of the log.

        With a cut or with files, the end offsets of the last read.
        """
        if not self._cut.is_log_end:
            return self._ends
        plan = await asyncio.to_thread(self._source.plan, LogCut())
        if set(plan.ends) != set(plan.starts) or END in plan.ends.values():
            return self._ends
        partitions = max(plan.ends, default=-1) + 1
        return tuple(plan.ends.get(number, 0) for number in range(partitions))


def _read_end_offsets(run: RebuildResult) -> tuple[int, ...]:
    ends: dict[int, int] = {}
    for partition, of in run.manifest["partitions"].items():
        ends[int(partition)] = max(of["read_to"] or 0, of["end"] if of["end"] not in (None, END) else 0)
    return tuple(ends.get(number, 0) for number in range(max(ends, default=-1) + 1))


def _iterate_rows(run: RebuildResult) -> Iterator[Row]:
    for batch in run.states.to_batches(_CHUNK_STATES):
        yield from batch.to_pylist()


def _describe_damage(run: RebuildResult) -> list[str]:
    """Return a note that names the share-partitions that may lack updates because of damage."""
    affected = run.manifest["affected"]
    if not affected:
        return []
    more = ", ..." if len(affected) > _NAMED_MAX else ""
    return [f"{len(affected)} may lack updates: {', '.join(affected[:_NAMED_MAX])}{more}"]


def _format_duplicates(left: Sequence[tuple[SharePartitionKey, int]]) -> list[str]:
    """Return a note about states that are not copied, because another state partition has the valid one."""
    if not left:
        return []
    named = ", ".join(f"{key} in state partition {number}" for key, number in left[:_NAMED_MAX])
    more = ", ..." if len(left) > _NAMED_MAX else ""
    return [f"not copied, because another state partition has the valid state: {named}{more}"]


def make_share_state(row: Mapping[str, Any]) -> ShareState:
    """Convert a row of `STATES` to a `ShareState`."""
    batches = pack(StateBatch(**batch) for batch in row["state_batches"])
    return ShareState(batches=batches, **{name: row[name] for name in _FIELDS})


@dataclass(frozen=True)
class RewriteResult:
    """The report of a rewrite or of its plan; `differing_keys` are unequal share-partitions of the target."""

    report: MigrationReport
    target: MigrationLocation
    state_partitions: int
    differing_keys: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if source and target are equal, or if only a plan was made."""
        return self.report.is_good and not self.differing_keys


def rewrite(
    engine: Engine,
    source: Source,
    target: str,
    config: Config,
    *,
    state_partitions: int,
    cut: LogCut | None = None,
    options: MigrationOptions | None = None,
    incomplete: bool = False,
) -> RewriteResult:
    """Write the states of a log to a journal or a topic with `state_partitions` state partitions.

    If records are missing (pruned or damaged), the states are written only if `incomplete` is true.
    Raises MigrationRefused if state could be lost, ConfigError, LogError and OSError.
    """
    options = options or MigrationOptions()
    place = parse_rewrite_target(target, source)
    existing = _existing_partitions(place, config)
    if existing not in (None, state_partitions):
        raise ConfigError("--state-partitions", state_partitions, f"{existing}, which {target} has already")
    config = with_state_partitions(config, state_partitions)
    reader = _MigrationReader(engine, source, cut or LogCut(), may_be_incomplete=incomplete)
    report = asyncio.run(migrate_states(reader, make_target(place, config), options, _show_nothing))
    report = report._replace(notes=[*reader.notes, *report.notes])
    differing_keys: tuple[str, ...] = ()
    if report.executed and report.is_good:
        states = report.folded.states
        differing_keys = _verify_rewrite(engine, place, states, config, state_partitions)
    return RewriteResult(report, place, state_partitions, differing_keys)


def parse_rewrite_target(target: str, source: Source) -> MigrationLocation:
    """Parse the target. Raises ConfigError unless it is a journal or a topic of this project."""
    kind, _, where = source.text.partition(":")
    known = (
        MigrationLocation(LocationKind(kind), where)
        if kind in set(LocationKind)
        else MigrationLocation(LocationKind.JOURNAL, "")
    )
    place = parse_target(target, known)
    if place.kind is LocationKind.COORDINATOR or place.is_kafka_state_topic:
        raise ConfigError(
            "--to", target, "a journal or a topic of this project; use migrate to write to a coordinator"
        )
    return place


def _existing_partitions(place: MigrationLocation, config: Config) -> int | None:
    """Return the number of state partitions of the target; None if it does not exist yet."""
    try:
        return len(open_source(str(place), **make_topic_options(config)).plan(LogCut()).starts)
    except ConfigError:
        return None


def with_state_partitions(config: Config, state_partitions: int) -> Config:
    """Return a copy of the settings with another number of state partitions."""
    return config.model_copy(update={"state_partitions": state_partitions})


def _verify_rewrite(
    engine: Engine,
    place: MigrationLocation,
    wanted: Mapping[SharePartitionKey, ShareState],
    config: Config,
    state_partitions: int,
) -> tuple[str, ...]:
    """Rebuild the target; return share-partitions that differ or are in the wrong state partition."""
    there = rebuild(engine, open_source(str(place), **make_topic_options(config)))
    found = {
        row_share_partition(row): make_share_state(row)
        for row in _iterate_rows(there)
        if is_in_hash_partition(row, state_partitions)
    }
    differing_keys = {
        str(key)
        for key in {*wanted, *found}
        if key not in wanted or key not in found or _COMPARED(wanted[key]) != _COMPARED(found[key])
    }
    if len(there.manifest["partitions"]) != state_partitions:
        differing_keys.add(
            f"{len(there.manifest['partitions'])} state partitions instead of {state_partitions}"
        )
    return tuple(sorted(differing_keys))


def _show_nothing(what: str, done: int, total: int) -> None:
    """Ignore the progress of a migration."""


def default_partitions(source: Source, config: Config) -> int:
    """Return the number of state partitions of a source; if it lacks some, return the configured number."""
    return count_state_partitions(source.plan(LogCut()).starts) or config.state_partitions
