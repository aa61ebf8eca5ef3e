"""Ownership of shards.  Membership in a group is a hint; only the log decides who may write
(`coordinator.log.claims`).

`static`: this process owns all shards.  `group`: the members of a Kafka group share the shards.
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
