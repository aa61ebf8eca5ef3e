"""X3: find states of an earlier audit that have disappeared.

If all records of a share-partition were pruned, the log has no trace of it. Only the states of an earlier
audit show that it existed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.deduplication import identity_of_row
from coordinator.recovery.manifest import read_manifest, read_results

_C, _W = Severity.CRITICAL, Severity.WARNING


class Baseline:
    """The results of an earlier audit: states, and the end of each state partition."""

    def __init__(self, manifest: Mapping[str, Any], states: pa.Table) -> None:
        self.run_id: str = manifest["run_id"]
        self._states = states.to_pylist()
        self._read_to = {int(partition): of["read_to"] for partition, of in manifest["partitions"].items()}

    @classmethod
    def read(cls, folder: Path) -> "Baseline":
        """Read the results of an audit or a rebuild. Raises ConfigError and LogDamaged."""
        return cls(read_manifest(folder), read_results(folder, "states"))

    def check(
        self, states: pa.Table, deleted_at: Mapping[tuple[int, bytes], int], starts: Mapping[int, int]
    ) -> Iterator[Finding]:
        """Compare with the current states, each state partition with its own log offsets."""
        now = {(row["state_partition"], identity_of_row(row)): row for row in states.to_pylist()}
        for before in self._states:
            state_partition, identity = before["state_partition"], identity_of_row(before)
            place = (state_partition, identity)
            is_new = deleted_at.get(place, -1) > before["last_log_offset"]
            if is_new:
                continue
            if place in now:
                evidence, at = _what_went_back(before, now[place]), now[place]["last_log_offset"]
            else:
                evidence = f"it is gone without a deletion, start offset was {before['start_offset']}"
                at = before["last_log_offset"]
            if not evidence:
                continue
            severity = _C
            if starts.get(state_partition, 0) > self._read_to.get(state_partition, 0):
                severity = _W
                evidence += "; the log was pruned since then, and a deletion may have been, too"
            since_ms = before["last_write_ms"]
            yield Finding("X3", severity, state_partition, identity, at, at, 1, evidence, since_ms)


def _what_went_back(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = ["snapshot_epoch", "state_epoch"]
    # With a higher state epoch, the share-partition was initialised again, possibly at a lower start offset.
    if now["state_epoch"] == before["state_epoch"] and now["leader_epoch"] >= before["leader_epoch"]:
        names.append("start_offset")
    back = [name for name in names if now[name] < before[name]]
    if now["last_log_offset"] < before["last_log_offset"]:
        back.append("last_log_offset")
    return ", ".join(f"{name.replace('_', ' ')} {now[name]} after {before[name]}" for name in back)
