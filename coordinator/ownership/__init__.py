"""Who owns which shard.  Membership is a hint: only the log decides who may write (`coordinator.log.claims`).

`static`: this process owns all.  `group`: the members of a Kafka group share the shards between them.
"""

from coordinator.ownership.base import NOBODY, Assignment, Ownership, OwnershipListener, Replica
from coordinator.ownership.group import GroupOwnership
from coordinator.ownership.limits import GroupLimits
from coordinator.ownership.static import StaticOwnership

__all__ = [
    "NOBODY",
    "Assignment",
    "GroupLimits",
    "GroupOwnership",
    "Ownership",
    "OwnershipListener",
    "Replica",
    "StaticOwnership",
]
