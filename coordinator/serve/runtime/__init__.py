"""Run the shards on the event loop: queues, commits, loading, and maintenance jobs."""

from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.log_opener import LogOpener
from coordinator.serve.runtime.operations import AwaitableOperation, Operation, OperationOrigin
from coordinator.serve.runtime.runtime import Runtime
from coordinator.serve.runtime.status import ShardStatus
