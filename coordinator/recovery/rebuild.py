"""The job `rebuild`: compute the state of every share-partition as a coordinator loads it."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.clock import Clock, SystemClock
from coordinator.recovery.engines.base import Engine, GatheredOutputs
from coordinator.recovery.final_states import STATES_OUTPUT, join_states, owner_epochs
from coordinator.recovery.job import LogRead, read_log
from coordinator.recovery.manifest import check_new, make_manifest, write_results
from coordinator.recovery.progress import Phases
from coordinator.recovery.ranges import fold_range
from coordinator.recovery.schema import RANGES, STATES
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import RANGE_RECORDS, Cut, Source


@dataclass(frozen=True)
class RebuildResult:
    """The states (rows of `STATES`), the ranges that were read (rows of `RANGES`), and the manifest."""

    states: pa.Table
    ranges: pa.Table
    manifest: dict[str, Any]


def rebuild(
    engine: Engine,
    source: Source,
    *,
    cut: Cut | None = None,
    to: Path | None = None,
    phases: Phases | None = None,
    range_records: int = RANGE_RECORDS,
    clock: Clock | None = None,
) -> RebuildResult:
    """Rebuild all states up to a cut; if `to` is given, write them to this new directory.

    Damaged parts of the log are skipped. The manifest lists them under `damages`, and the share-partitions
    that may lack updates under `affected`.

    Raises ConfigError, LogError or OSError; no manifest is then written.
    """
    cut, phases, clock = cut or Cut(), phases or Phases(), clock or SystemClock()
    if to is not None:
        check_new(to)
    source = for_states(source)
    log = read_log(engine, source, fold_range, cut=cut, phases=phases, range_records=range_records)
    try:
        states = states_of_log(log, phases)
    finally:
        log.gathered.close()
    affected = [str(key) for key in log.affected(states)]
    unreadable = len(states) - states.column("unreadable").null_count
    manifest = make_manifest(
        *("rebuild", engine, source, cut, log),
        now_ms=clock.now_ms(),
        states=len(states),
        unreadable_states=unreadable,
        affected=affected,
        state_batches=pc.sum(pc.list_value_length(states.column("state_batches"))).as_py() or 0,
    )
    ranges = pa.Table.from_pylist(log.ranges, RANGES).sort_by(
        [("state_partition", "ascending"), ("range_start", "ascending")]
    )
    if to is not None:
        write_results(to, {"states": states, "ranges": ranges}, manifest)
    return RebuildResult(states, ranges, manifest)


def for_states(source: Source) -> Source:
    """Return a source that is faster for jobs that need only states: an archive starts at a checkpoint."""
    return replace(source, use_checkpoints=True) if isinstance(source, ArchiveSource) else source


def states_of_log(log: LogRead, phases: Phases) -> pa.Table:
    """Join the partial states of a log; return states sorted by group, topic and partition."""
    known = owner_epochs(log.ranges)
    with phases.phase("join", len({row["state_partition"] for row in log.ranges}), "partitions") as advance:
        joined = log.gathered.joined(partial(join_states, known), advance)
    try:
        return states_table(joined)
    finally:
        joined.close()


def states_table(joined: GatheredOutputs) -> pa.Table:
    """Return the joined states, sorted by group, topic and partition."""
    order = ("group_id", "topic_id", "partition", "state_partition")
    return joined.table(STATES_OUTPUT, STATES).sort_by([(name, "ascending") for name in order])
