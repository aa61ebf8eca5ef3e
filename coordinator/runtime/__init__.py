"""The runtime: shards on an event loop, over a log. The shell around the pure core."""

from coordinator.runtime.limits import RuntimeLimits
from coordinator.runtime.mailbox import Operation, Origin
from coordinator.runtime.opening import Opening
from coordinator.runtime.runtime import Runtime
from coordinator.runtime.status import Status

__all__ = ["Opening", "Operation", "Origin", "Runtime", "RuntimeLimits", "Status"]
