"""The objects that the HTTP routes read, in one named tuple."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.observe.signals import GroupSignals, SignalMonitor
from coordinator.operate.admin.api_models import Shard
from coordinator.operate.admin.cluster_info import ClusterInfoCache
from coordinator.operate.admin.owner_directory import OwnerDirectory
from coordinator.operate.admin.views import make_shard
from coordinator.operate.expiry import Expiry
from coordinator.operate.history import HistoryProcess
from coordinator.serve.runtime import Runtime
from coordinator.serve.state_view import StateView

# Requests the hand-over of a shard to an instance, or to any other instance if it is "".
HandOver = Callable[[int, str], None]


def hand_over_unavailable(state_partition: int, instance: str) -> None:
    """Do nothing, because a coordinator without a group cannot hand shards over."""


class CoordinatorView(NamedTuple):
    """A coordinator's runtime, the owners of other shards, and information from the cluster."""

    runtime: StateView
    metrics: Metrics
    config: Config
    owners: OwnerDirectory
    cluster: ClusterInfoCache
    hand_over: HandOver = hand_over_unavailable
    # None if no cluster is configured, because abandoned state is not known then.
    expiry: Expiry | None = None
    signals: SignalMonitor | None = None
    history: HistoryProcess | None = None

    @property
    def group_signals(self) -> Mapping[str, GroupSignals]:
        """The signals of all groups as of the last pass."""
        return {} if self.signals is None else self.signals.groups

    @property
    def is_observer(self) -> bool:
        """True if this process shows the state of other coordinators."""
        return not isinstance(self.runtime, Runtime)

    @property
    def writable_runtime(self) -> Runtime:
        """The runtime, for routes that write; an observer has none."""
        assert isinstance(self.runtime, Runtime)
        return self.runtime

    def shards(self) -> list[Shard]:
        """Return all shards, including those of other coordinators. The cost is independent of the state."""
        here = set(self.runtime.owned_shards())
        return [
            make_shard(
                shard_view,
                here=shard_view.state_partition in here,
                owner=self.owners.owner(shard_view.state_partition),
            )
            for shard_view in self.runtime.shard_views()
        ]

    def missing_shards(self) -> list[int]:
        """Return the state partitions whose state is not loaded here."""
        return [shard.state_partition for shard in self.runtime.shard_views() if shard.status != "ACTIVE"]
