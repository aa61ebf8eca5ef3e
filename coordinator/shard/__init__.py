"""The pure core: which records an operation makes, and what state records make.

No I/O, no clock, no randomness, no logging.  `state.advance` is the meaning of a record, `decisions` the
meaning of an operation, `machine.Shard` holds the states of one state partition.
"""

from coordinator.shard.batches import combine
from coordinator.shard.decisions import RequestContext, SnapshotPolicy
from coordinator.shard.machine import CoordinatorResult, Shard, SnapshotLimits
from coordinator.shard.state import ShareState, advance

__all__ = [
    "CoordinatorResult",
    "RequestContext",
    "Shard",
    "ShareState",
    "SnapshotLimits",
    "SnapshotPolicy",
    "advance",
    "combine",
]
