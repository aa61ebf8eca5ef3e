"""What the HTTP side looks at, in one value."""

from collections.abc import Callable
from typing import NamedTuple

from coordinator.admin.api_models import Shard
from coordinator.admin.cluster_info import ClusterInfoCache
from coordinator.admin.owner_directory import OwnerDirectory
from coordinator.admin.views import make_shard
from coordinator.config import Config
from coordinator.expiry import Expiry
from coordinator.metrics import Metrics
from coordinator.runtime import Runtime
from coordinator.signals import SignalMonitor
from coordinator.state_view import StateView

# Asks the group of coordinators to give a shard to an instance, or to anybody else if that is "".
HandOver = Callable[[int, str], None]


def hand_over_unavailable(state_partition: int, instance: str) -> None:
    """Do nothing: there is no group to ask."""


class CoordinatorView(NamedTuple):
    """A coordinator, who else owns what, and what the cluster says."""

    runtime: StateView
    metrics: Metrics
    config: Config
    owners: OwnerDirectory
    cluster: ClusterInfoCache
    hand_over: HandOver = hand_over_unavailable
    # None where the cluster cannot be asked for what is abandoned.
    expiry: Expiry | None = None
    signals: SignalMonitor | None = None

    @property
    def coordinator(self) -> Runtime:
        """The runtime of a coordinator, for routes that change something; an observer has none."""
        assert isinstance(self.runtime, Runtime)
        return self.runtime

    def shards(self) -> list[Shard]:
        """Return all shards, those of other coordinators too; cheap at any size of state."""
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
        """Return the shards whose state is not here, or not yet."""
        return [shard.state_partition for shard in self.runtime.shard_views() if shard.status != "ACTIVE"]
