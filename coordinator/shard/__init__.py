"""Pure state machine of a state partition: operations to records, and records to states.

This package has no I/O, clock, randomness or logging. `state.apply_record` defines the effect of a record,
and `decisions` the effect of an operation. `machine.Shard` has the states of one state partition.
"""

from coordinator.shard.batches import combine
from coordinator.shard.decisions import RequestContext, SnapshotPolicy
from coordinator.shard.machine import CoordinatorResult, Shard, SnapshotLimits
from coordinator.shard.state import ShareState, apply_record
