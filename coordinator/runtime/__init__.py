"""The runtime: shards on an event loop, over a log. The shell around the pure core."""

from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.log_opener import LogOpener
from coordinator.runtime.operations import Operation, Origin
from coordinator.runtime.runtime import Runtime
from coordinator.runtime.status import Status

__all__ = ["LogOpener", "Operation", "Origin", "Runtime", "RuntimeLimits", "Status"]
