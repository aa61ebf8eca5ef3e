"""The job `rewrite`: what a log holds, written to a new one: with another partition count, or from a backup.

The target is a journal or a topic of ours.  Everything that keeps state from being lost is that of a
migration (`coordinator.migration`): it says what it would do unless it is told to execute, refuses a target
that somebody owns or that holds something else, and compares both sides afterwards.  What it compares with is
folded in columns from the source, and record by record from the target, so X4 is checked two ways.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from coordinator.config import Config
from coordinator.errors import ConfigError
from coordinator.migration import (
    Location,
    MigrationRefused,
    Options,
    Report,
    make_target,
    migrate,
    parse_target,
)
from coordinator.migration.fold import FoldedLog
from coordinator.migration.locations import LocationKind
from coordinator.migration.readers import Progress
from coordinator.recovery.deduplication import Row, deduplicate, is_in_place, key_of, state_partitions_of
from coordinator.recovery.engines.base import Engine
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import RebuildResult, rebuild
from coordinator.recovery.sources import open_source
from coordinator.recovery.sources.base import END, Cut, Source
from coordinator.recovery.sources.topic_access import make_topic_access
from coordinator.shard import ShareState
from protocol.state_batches import StateBatch, pack
from protocol.state_records import SharePartitionKey

# What the fields of a state are called in its row, but for the batches.
_FIELDS = (
    *("snapshot_epoch", "state_epoch", "leader_epoch", "leader_epoch_max", "start_offset"),
    *("delivery_complete_count", "create_timestamp", "write_timestamp", "updates", "update_bytes"),
    *("last_write_ms", "unreadable"),
)

# So many share-partitions are named where something is said about many.
_NAMED_MAX = 10

# Columns that must be the same on both sides; the others are the log's own business.
_COMPARED = (
    *("group_id", "topic_id", "partition", "start_offset", "delivery_complete_count", "state_epoch"),
    *("leader_epoch", "leader_epoch_max", "state_batches", "create_timestamp"),
)


class _Reader:
    """A source of the recovery jobs as a migration reads one: what it holds, and where it ends."""

    def __init__(
        self, engine: Engine, source: Source, cut: Cut, phases: Phases, *, may_be_incomplete: bool
    ) -> None:
        self._engine = engine
        self._source = source
        self._cut = cut
        self._phases = phases
        self._may_be_incomplete = may_be_incomplete
        self._ends: tuple[int, ...] = ()
        self.run: RebuildResult | None = None
        self.notes: list[str] = []

    async def fold(self, progress: Progress) -> FoldedLog | None:
        """Rebuild all states; the first time up to the cut, which is the same every time after.

        Raises MigrationRefused if what was pruned may be missing, and nobody said that it may be.
        """
        run = await asyncio.to_thread(rebuild, self._engine, self._source, cut=self._cut, phases=self._phases)
        doubtful = run.manifest["doubtful_partitions"]
        if doubtful and not self._may_be_incomplete:
            named = ", ".join(map(str, doubtful))
            raise MigrationRefused(
                f"of state partition {named} the beginning was pruned, perhaps after the cut: then what had "
                f"a newer snapshot is missing or incomplete. Take an archive, or a later cut; with "
                f"--incomplete what there is is written"
            )
        damages = run.manifest["damages"]
        if damages and not self._may_be_incomplete:
            raise MigrationRefused(
                f"the log is damaged in {len(damages)} places, and {len(run.manifest['affected'])} "
                "share-partitions may lack updates (recovery audit names them). Take an archive or another "
                "copy of the log; with --incomplete the rest is written"
            )
        chosen, left = _deduplicate_run(run)
        if self.run is None:
            self.run = run
            self.notes = [*run.manifest["notes"], *_may_lack_updates(run), *_format_duplicates(left)]
        states = {key: state_of(row) for key, row in chosen.items()}
        self._ends = _ends_of(run)
        return FoldedLog(states, self._ends)

    async def ends(self) -> tuple[int, ...]:
        """Return where the log ends now; with a cut, and with files, where it ended when it was read."""
        if not self._cut.is_the_end:
            return self._ends
        plan = await asyncio.to_thread(self._source.plan, Cut())
        if set(plan.ends) != set(plan.starts) or END in plan.ends.values():
            return self._ends
        partitions = max(plan.ends, default=-1) + 1
        return tuple(plan.ends.get(number, 0) for number in range(partitions))

    async def check_unlocked(self) -> None:
        """Do nothing: a log is rewritten while a coordinator is at work on it, too."""


class _OpenSource:
    """A source that nobody is kept from writing to: that somebody did is seen by its ends."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield


def _ends_of(run: RebuildResult) -> tuple[int, ...]:
    ends: dict[int, int] = {}
    for partition, of in run.manifest["partitions"].items():
        ends[int(partition)] = max(of["read_to"] or 0, of["end"] if of["end"] not in (None, END) else 0)
    return tuple(ends.get(number, 0) for number in range(max(ends, default=-1) + 1))


def _deduplicate_run(run: RebuildResult) -> tuple[dict[SharePartitionKey, Row], list[Row]]:
    return deduplicate(
        run.states.to_pylist(), state_partitions_of(list(map(int, run.manifest["partitions"])))
    )


def _may_lack_updates(run: RebuildResult) -> list[str]:
    """Name the share-partitions that damage of the log may have cost updates."""
    affected = run.manifest["affected"]
    if not affected:
        return []
    more = ", ..." if len(affected) > _NAMED_MAX else ""
    return [f"{len(affected)} may lack updates: {', '.join(affected[:_NAMED_MAX])}{more}"]


def _format_duplicates(rows: Sequence[Row]) -> list[str]:
    """Name the states of share-partitions that are in several state partitions, but for the chosen ones."""
    if not rows:
        return []
    named = ", ".join(
        f"{key_of(row)} in state partition {row['state_partition']}" for row in rows[:_NAMED_MAX]
    )
    more = ", ..." if len(rows) > _NAMED_MAX else ""
    return [f"left behind, because their share-partition is in another state partition, too: {named}{more}"]


def state_of(row: Mapping[str, Any]) -> ShareState:
    """Return a row of states as the coordinator holds it."""
    batches = pack(StateBatch(**batch) for batch in row["state_batches"])
    return ShareState(batches=batches, **{name: row[name] for name in _FIELDS})


@dataclass(frozen=True)
class RewriteResult:
    """What was done, or would be. `differing_keys` are share-partitions that are not the same at a second
    look.
    """

    report: Report
    target: Location
    state_partitions: int
    differing_keys: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if both sides hold the same, or nothing was asked to be done yet."""
        return self.report.is_good and not self.differing_keys


def rewrite(
    engine: Engine,
    source: Source,
    target: str,
    config: Config,
    *,
    state_partitions: int,
    cut: Cut | None = None,
    options: Options | None = None,
    incomplete: bool = False,
    phases: Phases | None = None,
) -> RewriteResult:
    """Write what a log holds to a journal or a topic with so many state partitions.

    What may lack what was pruned is only written if it may be `incomplete`.
    Raises MigrationRefused where that could lose state, ConfigError, LogError and OSError.
    """
    phases, options = phases or Phases(), options or Options()
    place = parse_rewrite_target(target, source)
    existing = _existing_partitions(place, config)
    if existing not in (None, state_partitions):
        raise ConfigError("--state-partitions", state_partitions, f"{existing}, which {target} has already")
    config = with_partitions(config, state_partitions)
    reader = _Reader(engine, source, cut or Cut(), phases, may_be_incomplete=incomplete)
    progress = _as_migration_progress(phases)
    report = asyncio.run(migrate(_OpenSource(reader), make_target(place, config), options, progress))
    report = report._replace(notes=[*reader.notes, *report.notes])
    differing_keys: tuple[str, ...] = ()
    if report.executed and report.is_good and reader.run is not None:
        differing_keys = _verify_rewrite(engine, place, reader.run, config, state_partitions, phases)
    return RewriteResult(report, place, state_partitions, differing_keys)


def parse_rewrite_target(target: str, source: Source) -> Location:
    """Read where to write to. Raises ConfigError for anything but a journal or a topic of ours."""
    kind, _, where = source.text.partition(":")
    known = (
        Location(LocationKind(kind), where)
        if kind in set(LocationKind)
        else Location(LocationKind.JOURNAL, "")
    )
    place = parse_target(target, known)
    if place.kind is LocationKind.COORDINATOR or place.is_kafka_state_topic:
        raise ConfigError(
            "--to", target, "a journal or a topic of ours; to bring state to a coordinator: migrate"
        )
    return place


def _existing_partitions(place: Location, config: Config) -> int | None:
    """Return how many state partitions a target has, None if there is none yet."""
    try:
        return len(open_source(str(place), **make_topic_access(config)).plan(Cut()).starts)
    except ConfigError:
        return None


def with_partitions(config: Config, state_partitions: int) -> Config:
    """Return the settings of the log that is written."""
    return config.model_copy(update={"state_partitions": state_partitions})


def _verify_rewrite(
    engine: Engine,
    place: Location,
    run: RebuildResult,
    config: Config,
    state_partitions: int,
    phases: Phases,
) -> tuple[str, ...]:
    """Rebuild the target, and return which share-partitions are not the same or not in their place."""
    there = rebuild(engine, open_source(str(place), **make_topic_access(config)), phases=phases)
    wanted, _ = _deduplicate_run(run)
    found = {key_of(row): row for row in there.states.to_pylist() if is_in_place(row, state_partitions)}
    differing_keys = {
        str(key) for key in {*wanted, *found} if _compared(wanted.get(key)) != _compared(found.get(key))
    }
    if len(there.manifest["partitions"]) != state_partitions:
        differing_keys.add(
            f"{len(there.manifest['partitions'])} state partitions instead of {state_partitions}"
        )
    return tuple(sorted(differing_keys))


def _compared(row: Row | None) -> list[Any] | None:
    return None if row is None else [row[name] for name in _COMPARED]


def _as_migration_progress(phases: Phases) -> Progress:
    """Return what shows the progress of a migration as phases: a bar for each thing that it does."""
    advancing: dict[str, tuple[Callable[[int], None], list[int], Any]] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in advancing:
            phase = phases.phase(what, total, "")
            advancing[what] = (phase.__enter__(), [0], phase)
        advance, told, phase = advancing[what]
        advance(done - told[0])
        told[0] = done
        if done >= total:
            phase.__exit__(None, None, None)
            del advancing[what]

    return progress


def default_partitions(source: Source, config: Config) -> int:
    """Return how many state partitions a log has that its source has all of, else what is configured."""
    return state_partitions_of(source.plan(Cut()).starts) or config.state_partitions
