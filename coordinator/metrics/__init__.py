"""Metrics: counted cheaply during requests, and converted to Prometheus families at scrape time.

The other packages call `Metrics`. `docs/metrics.md` lists every family and the corresponding metric of
Kafka's own share coordinator.
"""

from coordinator.metrics.exposition import render_exposition
from coordinator.metrics.families import RuntimeStats, ShardView, membership_families
from coordinator.metrics.recorder import Metrics
from coordinator.metrics.signal_families import signal_families
