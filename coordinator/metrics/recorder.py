"""Count events, and create the metric families that Prometheus scrapes.

Counting updates a dictionary entry and a list entry, without objects of prometheus_client, and takes less
than a microsecond for a request. Names and labels are created at scrape time.

All methods must be called on the event loop's thread.
"""

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from coordinator.fastpath.histogram import SECONDS, Histogram
from coordinator.metrics.families import (
    COUNTERS,
    HISTOGRAMS,
    PREFIX,
    ForwarderStats,
    RuntimeStats,
    counter_family,
    forwarder_families,
    gauge_family,
    histogram_family,
    labelled_counter,
    labelled_gauge,
    shard_families,
)
from protocol.errors import ErrorCode
from protocol.messages import APIS

API_NAMES = {api_key: api.name for api_key, api in APIS.items()}
OTHER_API = "other"


class Metrics:
    """All counters of one process, with a separate Prometheus registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.event_loop_lag_last_seconds = 0.0
        self._requests: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._request_seconds = {api_key: Histogram(SECONDS) for api_key in API_NAMES}
        self._other_seconds = Histogram(SECONDS)
        # Counts by family and label value; a family without a label has the value "".
        self._counts = {each.name: defaultdict[str, int](int) for each in COUNTERS}
        self._histograms = {name: Histogram(ranges) for name, ranges, _ in HISTOGRAMS}
        # This histogram has no ranges, because only the sum is exported.
        self.append_bytes = Histogram(())
        # By shard, the log offset below which records were pruned. The entry of a shard is removed when this
        # process no longer owns the shard.
        self.prune_offsets: dict[int, int] = {}
        # Unix time of the last complete round of expiry.
        self.expiry_round_ms = 0
        self._forwards: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._forward_seconds = Histogram(SECONDS)
        self._forwarder: ForwarderStats | None = None
        self._runtime: RuntimeStats | None = None
        self._added_families: list[Callable[[], Iterable[Metric]]] = []
        self._log = "memory"
        self._log_bytes: Callable[[], int] | None = None
        # Create a series for each API at the start, so that rates include the first request and alerts find a
        # series.
        for api_key in API_NAMES:
            self._requests[api_key, ErrorCode.NONE] = 0
        self.registry.register(_FamilyCollector(self._collect_families))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    # Recording.

    def record_request(self, api_key: int, error_code: int, seconds: float | None = None) -> None:
        """Count an answered request; `error_code` is the first one in its response, or 0.

        Without `seconds`, no duration is recorded: logins wait for the client, and refusals are immediate.
        """
        self._requests[api_key, error_code] += 1
        if seconds is not None:
            self._request_seconds.get(api_key, self._other_seconds).add(seconds)

    def request_histograms(self) -> tuple[dict[tuple[int, int], int], dict[int, Histogram]]:
        """Return the request counts by (API key, error code), and the duration histograms by API key."""
        return self._requests, self._request_seconds

    def record_forward(self, api_key: int, error_code: int, seconds: float) -> None:
        """Count a forwarded request; `error_code` is that of the response or the failure."""
        self._forwards[api_key, error_code] += 1
        self._forward_seconds.add(seconds)

    def count(self, family: str, label: str = "", by: int = 1) -> None:
        """Add to a family of `families.COUNTERS`; `label` is the value of its label, if it has one.

        `write_operations` are those of Kafka's write-total: writes, rejected or not, and reads that write a
        record. `append_failures` excludes fenced appends, because the log has not failed.
        """
        self._counts[family][label] += by

    def count_http_refusal(self, status: int) -> None:
        self.count("http_refused", str(status))

    def histogram(self, family: str) -> Histogram:
        """Return a histogram of `families.HISTOGRAMS`."""
        return self._histograms[family]

    def counter_value(self, family: str, label: str = "") -> int:
        return self._counts[family][label]

    def set_event_loop_lag(self, seconds: float) -> None:
        """Set the delay of the event loop's last timer."""
        self.event_loop_lag_last_seconds = seconds
        self.histogram("event_loop_lag_seconds").add(seconds)

    def attach_runtime(
        self, runtime: RuntimeStats, log: str = "memory", log_bytes: Callable[[], int] | None = None
    ) -> None:
        """Read the state of the shards and the size of the log at each scrape.

        The meaning of the size depends on the setting `log`.
        """
        self._runtime = runtime
        self._log = log
        self._log_bytes = log_bytes

    def add_families(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Add the families that a function returns at each scrape."""
        self._added_families.append(families)

    def attach_forwarder(self, forwarder: ForwarderStats) -> None:
        """Read the values of the forwarder at each scrape."""
        self._forwarder = forwarder

    # Collection.

    def _collect_families(self) -> Iterator[Metric]:
        yield self._build_info_family()
        yield from self._request_families()
        yield from self._counter_families()
        for name, _, meaning in HISTOGRAMS:
            yield histogram_family(name, meaning, self._histograms[name])
        yield from self._state_log_families()
        if self._runtime is not None:
            yield gauge_family(
                "ready",
                "1 if the coordinator serves all its shards, else 0.",
                float(not self._runtime.health()),
            )
            yield gauge_family("append_inflight", "Appends in flight.", self._runtime.appends_in_flight())
            yield from shard_families(self._runtime.shard_views())
        if self._forwarder is not None:
            yield from self._forwarded_request_families(self._forwarder)
        for families in self._added_families:
            yield from families()
        yield gauge_family(
            "expiry_last_round_timestamp_seconds",
            "Unix time of the last complete round of expiry.",
            self.expiry_round_ms / 1000,
        )

    def _build_info_family(self) -> Metric:
        family = InfoMetricFamily(PREFIX + "build", "The running version.")
        family.add_metric([], {"version": _release_version(), "python": platform.python_version()})
        return family

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            PREFIX + "rpc_requests",
            "Answered requests by API and first error code in the response.",
            labels=["api", "code"],
        )
        for (api_key, error_code), count in sorted(self._requests.items()):
            requests.add_metric([API_NAMES.get(api_key, OTHER_API), _error_code_name(error_code)], count)
        yield requests
        durations = HistogramMetricFamily(
            PREFIX + "rpc_duration_seconds",
            "Time from the last byte of a request until its response is written to the socket.",
            labels=["api"],
        )
        for api_key, observations in self._request_seconds.items():
            durations.add_metric([API_NAMES[api_key]], *observations.cumulative_counts())
        durations.add_metric([OTHER_API], *self._other_seconds.cumulative_counts())
        yield durations

    def _counter_families(self) -> Iterator[Metric]:
        for name, meaning, label in COUNTERS:
            counts = self._counts[name]
            if label:
                yield labelled_counter(name, meaning, label, counts)
            else:
                yield counter_family(name, meaning, counts[""])
        opened, closed = self._counts["connections_opened"][""], self._counts["connections_closed"]
        yield gauge_family("connections", "Open connections from brokers.", opened - sum(closed.values()))

    def _forwarded_request_families(self, forwarder: ForwarderStats) -> Iterator[Metric]:
        forwards = CounterMetricFamily(
            PREFIX + "forwarded",
            "Forwarded requests by API and first error code in the response.",
            labels=["api", "code"],
        )
        for (api_key, error_code), count in sorted(self._forwards.items()):
            forwards.add_metric([API_NAMES.get(api_key, OTHER_API), _error_code_name(error_code)], count)
        yield forwards
        yield histogram_family(
            "forward_duration_seconds", "Duration of forwarded requests.", self._forward_seconds
        )
        yield from forwarder_families(forwarder)

    def _state_log_families(self) -> Iterator[Metric]:
        yield counter_family(
            "append_bytes", "Bytes appended to the log.", self.append_bytes.cumulative_counts()[1]
        )
        pruned = {str(shard): offset for shard, offset in self.prune_offsets.items()}
        yield labelled_gauge("prune_offset", "Log offset up to which the log was pruned.", "shard", pruned)
        if self._log_bytes is not None:
            size = {self._log: self._log_bytes()}
            yield labelled_gauge(
                "log_bytes",
                "Bytes of the log: the whole journal, or the owned part of the topic.",
                "log",
                size,
            )


class _FamilyCollector(Collector):
    """Collector of the registry. It describes no family, so that its registration collects none."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._collect_families = families

    def collect(self) -> Iterator[Metric]:
        return self._collect_families()

    def describe(self) -> Iterator[Metric]:
        return iter(())


@cache
def _release_version() -> str:
    return version("share-coordinator")


def _error_code_name(error_code: int) -> str:
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return str(error_code)
