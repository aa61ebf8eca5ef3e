"""The runtime: shards on an event loop, over a log. The shell around the pure core."""

from coordinator.serve.runtime.limits import RuntimeLimits
from coordinator.serve.runtime.log_opener import LogOpener
from coordinator.serve.runtime.operations import Operation, OperationOrigin
from coordinator.serve.runtime.runtime import Runtime
from coordinator.serve.runtime.status import ShardStatus

__all__ = ["LogOpener", "Operation", "OperationOrigin", "Runtime", "RuntimeLimits", "ShardStatus"]
