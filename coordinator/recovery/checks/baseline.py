"""X3: find states of an earlier audit that have disappeared.

If all records of a share-partition were pruned, the log has no trace of it. Only the states of an earlier
audit show that it existed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.deduplication import identity_of_row
from coordinator.recovery.manifest import check_results, read_manifest, read_results

_C, _W = Severity.CRITICAL, Severity.WARNING


class Baseline:
    """The results of an earlier audit: states, and the end of each state partition."""

    def __init__(self, manifest: Mapping[str, Any], states: Callable[[], pa.Table]) -> None:
        self.run_id: str = manifest["run_id"]
        self._states = states
        self._read_to = {int(partition): of["read_to"] for partition, of in manifest["partitions"].items()}

    @classmethod
    def read(cls, folder: Path) -> "Baseline":
        """Read the results of an audit or a rebuild. Raises ConfigError and LogDamaged."""
        manifest, states = read_manifest(folder), partial(read_results, folder, "states")
        check_results(folder, "states")
        return cls(manifest, states)

    def check(
        self, states: pa.Table, deleted_at: Mapping[tuple[int, bytes], int], starts: Mapping[int, int]
    ) -> Iterator[Finding]:
        """Compare with the current states, each state partition with its own log offsets."""
        states_before = self._states()
        # One state partition after the other: rows as Python objects take twenty times the memory.
        for number in pc.unique(states_before.column("state_partition")).to_pylist():
            is_own = pc.field("state_partition") == number
            now = {identity_of_row(row): row for row in states.filter(is_own).to_pylist()}
            before = states_before.filter(is_own).to_pylist()
            yield from self._check_partition(number, before, now, deleted_at, starts.get(number, 0))

    def _check_partition(
        self,
        state_partition: int,
        states_before: Iterable[Mapping[str, Any]],
        now: Mapping[bytes, Mapping[str, Any]],
        deleted_at: Mapping[tuple[int, bytes], int],
        start: int,
    ) -> Iterator[Finding]:
        for before in states_before:
            identity = identity_of_row(before)
            is_new = deleted_at.get((state_partition, identity), -1) > before["last_log_offset"]
            if is_new:
                continue
            if identity in now:
                evidence, at = _decreased_fields(before, now[identity]), now[identity]["last_log_offset"]
            else:
                evidence = f"it is gone without a deletion, start offset was {before['start_offset']}"
                at = before["last_log_offset"]
            if not evidence:
                continue
            severity = _C
            if start > self._read_to.get(state_partition, 0):
                severity = _W
                evidence += "; the log was pruned since then, and a deletion may have been, too"
            since_ms = before["last_write_ms"]
            yield Finding("X3", severity, state_partition, identity, at, at, 1, evidence, since_ms)


def _decreased_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = ["snapshot_epoch", "state_epoch"]
    # With a higher state epoch, the share-partition was initialised again, possibly at a lower start offset.
    if now["state_epoch"] == before["state_epoch"] and now["leader_epoch"] >= before["leader_epoch"]:
        names.append("start_offset")
    back = [name for name in names if now[name] < before[name]]
    if now["last_log_offset"] < before["last_log_offset"]:
        back.append("last_log_offset")
    return ", ".join(f"{name.replace('_', ' ')} {now[name]} after {before[name]}" for name in back)
