"""Write the results of a job and their manifest; results without a manifest are ignored."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pyarrow as pa

from coordinator.errors import ConfigError, LogDamaged
from coordinator.recovery.engines import Engine
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.job import LogReadResult
from coordinator.recovery.schema import NONE, RANGE_TOTALS, STATES
from coordinator.recovery.sources.base import LogCut, Source
from coordinator.recovery.state_tasks import STATES_ORDER, STATES_OUTPUT

MANIFEST = "_manifest.json"
# The name of a directory, which has a Parquet file for each state partition.
STATES_FILE = f"{STATES_OUTPUT}.parquet"
FORMAT = 1


class LazyStates:
    """States (rows of `STATES`) that are loaded into this process when they are first used.

    `read` returns the states of one state partition, or all states for None.
    """

    def __init__(self, read: Callable[[int | None], pa.Table]) -> None:
        self._read = read

    @classmethod
    def from_results(cls, folder: Folder) -> "LazyStates":
        """Return the states in a directory of results."""
        return cls(partial(_read_states, folder))

    @cached_property
    def table(self) -> pa.Table:
        """The states by group, topic and partition."""
        found = self._read(None).cast(STATES)
        return found.sort_by([(name, "ascending") for name in STATES_ORDER])

    def states_of_partition(self, state_partition: int) -> pa.Table:
        """Return the states of a state partition, possibly with other states."""
        return self._read(state_partition)


def _read_states(folder: Folder, state_partition: int | None) -> pa.Table:
    filters = None if state_partition is None else [("state_partition", "=", state_partition)]
    return folder.read_parquet(STATES_FILE, filters)


def make_manifest(
    job: str, engine: Engine, source: Source, cut: LogCut, log: LogReadResult, *, now_ms: int, **more: Any
) -> dict[str, Any]:
    """Return the manifest of a job: source, cut, engine and totals, and the further entries `more`."""
    plan, rows = log.plan, {row["state_partition"]: row for row in log.ranges}
    partitions: dict[str, dict[str, int | None]] = {}
    for number in sorted({*plan.starts, *rows}):
        start, row = plan.starts.get(number), rows.get(number, {"range_end": 0, "records": 0, "bytes": 0})
        partitions[str(number)] = {
            "start": start,
            "end": plan.ends.get(number),
            "read_to": max(start or 0, row["range_end"]),
            "records": row["records"],
            "bytes": row["bytes"],
        }
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return {
        "format": FORMAT,
        "job": job,
        "run_id": f"{now:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{os.getpid()}",
        "at": iso_time(now_ms),
        "source": source.text,
        "source_facts": dict(plan.facts),
        "as_of_offsets": None if cut.offsets is None else {str(p): o for p, o in cut.offsets.items()},
        "as_of_time": None if cut.time_ms is None else iso_time(cut.time_ms),
        "engine": engine.name,
        "versions": {"share-coordinator": _installed_release(), **engine.versions},
        "notes": list(plan.notes),
        "doubtful_partitions": list(plan.doubtful),
        "pruned_during_read": {str(p): start for p, start in log.pruned_during_read.items()},
        "totals": {name: sum(row[name] for row in rows.values()) for name in RANGE_TOTALS},
        "damages": log.damages,
        "partitions": partitions,
        **more,
    }


def check_empty_folder(folder: Folder) -> None:
    """Raise ConfigError if a directory is not empty, so that results of two jobs are not mixed."""
    try:
        is_empty = not (folder.names() or folder.folder_names())
    except NotADirectoryError:
        is_empty = False
    if not is_empty:
        raise ConfigError("--to", folder, "a folder that is new or empty")


def write_results(
    folder: Folder, tables: Mapping[str, pa.Table], manifest: dict[str, Any], written: Mapping[str, int]
) -> None:
    """Write tables as NAME.parquet, then the manifest, which lists them and the files `written` before."""
    rows = dict(written)
    for name, table in tables.items():
        folder.write_parquet(f"{name}.parquet", table)
        rows[name] = table.num_rows
    manifest = {**manifest, "files": {f"{name}.parquet": count for name, count in rows.items()}}
    folder.write(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def read_manifest(location: Location) -> dict[str, Any]:
    """Read the manifest of a result directory.

    Raises ConfigError if it is missing, LogDamaged if it is invalid.
    """
    folder = open_folder(location)
    try:
        manifest: Any = json.loads(folder.read(MANIFEST))
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError(f"it is no manifest of format {FORMAT}")
    except FileNotFoundError:
        raise ConfigError("results", folder, f"a folder with a {MANIFEST}: a run that finished") from None
    except ValueError as error:
        raise LogDamaged(f"{folder}/{MANIFEST}", 0, str(error), "run the job again") from None
    return dict(manifest)


def iso_time(time_ms: int) -> str:
    """Format a time as ISO 8601 in UTC, with milliseconds; a record may have any time, also after 9999."""
    return f"{np.datetime64(time_ms, 'ms')}Z"


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time, by default in UTC; return milliseconds. Raises ConfigError.

    The result is -1 for all times before 1970, because Kafka gives other negative times a meaning.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError("--as-of-time", text, "a time as 2026-11-20T09:41:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return max(round(found.timestamp() * 1000), NONE)


def _installed_release() -> str:
    try:
        return version("share-coordinator")
    except PackageNotFoundError:
        return "unknown"
