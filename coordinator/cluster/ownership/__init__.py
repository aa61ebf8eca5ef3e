"""Ownership of shards: which process should own which shard.

Only the log decides which process may write (`coordinator.log.claims`); ownership is a preliminary decision.
`static`: this process owns all shards. `group`: the members of a Kafka group share the shards.
"""

from coordinator.cluster.ownership.base import NOBODY, Assignment, Ownership, OwnershipListener, Replica
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.static import StaticOwnership
