"""A runtime without periodic jobs."""

from typing import Any

from coordinator.cluster.topics import EveryTopicExists
from coordinator.log.base import StateLog
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock
from coordinator.serve.runtime import Runtime, RuntimeLimits
from coordinator.shard import SnapshotPolicy

_LONG_MS = 3_600_000


def make_runtime(log: StateLog, state_partitions: int, **settings: Any) -> Runtime:
    """Return a runtime whose periodic jobs do not run during a test, unless `settings` says so."""
    defaults = {
        "clock": SystemClock(),
        "topics": EveryTopicExists(),
        "metrics": Metrics(),
        "policy": SnapshotPolicy(),
        "limits": RuntimeLimits(),
        "cold_interval_ms": _LONG_MS,
        "prune_interval_ms": _LONG_MS,
    }
    return Runtime(log=log, state_partitions=state_partitions, **{**defaults, **settings})
