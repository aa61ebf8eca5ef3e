"""The objects that the HTTP routes read, in one named tuple."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import asdict

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.observe.signals import GroupSignals, SignalMonitor
from coordinator.operate.admin.api_models import Shard
from coordinator.operate.admin.cluster_info import ClusterInfoCache
from coordinator.operate.admin.owner_directory import OwnerDirectory
from coordinator.operate.expiry import Expiry
from coordinator.operate.history import HistoryProcess
from coordinator.serve.runtime import Runtime
from coordinator.serve.state_view import StateView


class CoordinatorView(NamedTuple):
    """A coordinator's runtime, the owners of other shards, and information from the cluster.

    If `runtime` is that of an observer, there are no routes that write.
    """

    runtime: StateView
    metrics: Metrics
    config: Config
    owners: OwnerDirectory
    # Without a cluster, topic names and end offsets are unknown.
    cluster: ClusterInfoCache
    # Requests the hand-over of a shard to an instance; "" means any other instance.
    hand_over: Callable[[int, str], None] = lambda state_partition, instance: None
    # None if no cluster is configured: only the cluster knows which groups and topics are unused.
    expiry: Expiry | None = None
    signals: SignalMonitor | None = None
    history: HistoryProcess | None = None

    @property
    def group_signals(self) -> Mapping[str, GroupSignals]:
        return {} if self.signals is None else self.signals.groups

    @property
    def is_observer(self) -> bool:
        """True if this process is an observer, which owns no shards."""
        return not isinstance(self.runtime, Runtime)

    @property
    def writable_runtime(self) -> Runtime:
        """The runtime, for routes that write; an observer has none."""
        assert isinstance(self.runtime, Runtime)
        return self.runtime

    def shards(self) -> list[Shard]:
        """Return all shards, including those of other coordinators, without iterating over their state."""
        here = set(self.runtime.owned_shards())
        return [
            Shard(
                **asdict(shard),
                here=shard.state_partition in here,
                owner=self.owners.owner(shard.state_partition),
                # While a shard is not loaded, only the start of its log is known.
                log_records=max(0, shard.end_log_offset - shard.start_log_offset),
                prune_lag=max(0, shard.redundant_offset - shard.start_log_offset),
            )
            for shard in self.runtime.shard_views()
        ]

    def unloaded_shards(self) -> list[int]:
        """Return the state partitions whose shards are not loaded in this process."""
        return [shard.state_partition for shard in self.runtime.shard_views() if shard.status != "ACTIVE"]
