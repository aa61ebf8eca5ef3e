"""Metrics: cheap to count on the hot path, turned into Prometheus families only when somebody scrapes.

`Metrics` is what the rest of the program calls; `docs/metrics.md` lists every family and which metric of
Kafka's own share coordinator it stands for.
"""

from coordinator.metrics.exposition import exposition
from coordinator.metrics.families import RuntimeStats, ShardStats
from coordinator.metrics.recorder import Metrics

__all__ = ["Metrics", "RuntimeStats", "ShardStats", "exposition"]
