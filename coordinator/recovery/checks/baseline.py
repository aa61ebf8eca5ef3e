"""Check X3: find states of an earlier audit that have disappeared.

If all records of a share-partition were pruned, only the states of an earlier audit show that its state
existed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.errors import ConfigError, LogDamaged
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding, findings_output
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.manifest import STATES_FILE, LazyStates, read_manifest
from coordinator.recovery.share_partitions import row_identity
from coordinator.recovery.state_tasks import PartitionStates
from coordinator.recovery.tasks import NamedOutput

_C, _W = Severity.CRITICAL, Severity.WARNING
_COLUMNS = [
    *("group_id", "topic_id", "partition", "state_partition", "snapshot_epoch", "state_epoch"),
    *("leader_epoch", "start_offset", "last_log_offset", "last_write_ms"),
]


class Baseline:
    """The results of an earlier audit: the states, and the end log offset of each state partition."""

    def __init__(self, manifest: Mapping[str, Any], states: Callable[[int], pa.Table]) -> None:
        """Use the manifest and states of an earlier audit; `states` returns those of a state partition."""
        self.run_id: str = manifest["run_id"]
        self._states = states
        self._read_to = {int(partition): of["read_to"] for partition, of in manifest["partitions"].items()}

    @classmethod
    def read(cls, location: Location) -> "Baseline":
        """Read the results of an audit or a rebuild. Raises ConfigError and LogDamaged."""
        manifest, folder = read_manifest(location), open_folder(location)
        wanted = manifest.get("files", {}).get(STATES_FILE)
        if wanted is None:
            raise ConfigError("results", location, "of a job that makes states")
        try:
            rows = folder.count_rows(STATES_FILE)
            reason = "" if rows == wanted else f"it has {rows} of {wanted} states"
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = str(error)
        if reason:
            raise LogDamaged(str(folder / STATES_FILE), 0, reason, "use another baseline")
        return cls(manifest, LazyStates.from_results(folder).states_of_partition)

    @property
    def state_partitions(self) -> Collection[int]:
        """The numbers of the state partitions of the earlier audit."""
        return self._read_to.keys()

    def compare(self, partition: PartitionStates) -> Iterator[NamedOutput]:
        """Compare the earlier states of a state partition with its current states; this is a `StateTask`."""
        number = partition.state_partition
        now = {row_identity(row): row for row in partition.rows(_COLUMNS)}
        before = self._states(number).select(_COLUMNS).filter(pc.field("state_partition") == number)
        found = self._find_lost_states(
            number, before.to_pylist(), now, partition.deleted, partition.starts.get(number, 0)
        )
        yield from findings_output(number, found)

    def _find_lost_states(
        self,
        state_partition: int,
        states_before: Iterable[Mapping[str, Any]],
        now: Mapping[bytes, Mapping[str, Any]],
        deleted_at: Mapping[bytes, int],
        start: int,
    ) -> Iterator[Finding]:
        for before in states_before:
            identity = row_identity(before)
            is_new = deleted_at.get(identity, -1) > before["last_log_offset"]
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
    decreased = [name for name in names if now[name] < before[name]]
    if now["last_log_offset"] < before["last_log_offset"]:
        decreased.append("last_log_offset")
    return ", ".join(f"{name.replace('_', ' ')} {now[name]} after {before[name]}" for name in decreased)
