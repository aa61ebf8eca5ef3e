"""Count events, and make the metric families that Prometheus scrapes.

Counting updates a dictionary entry and a list entry, without objects of prometheus_client, and takes less
than a microsecond for a request. Names and labels are made in `collect`, at scrape time.

All methods must be called on the event loop's thread.
"""

import platform
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
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

from coordinator.errors import LogError, LogFenced
from coordinator.fastpath.histogram import RECORDS, SECONDS, Histogram
from coordinator.metrics.families import (
    PREFIX,
    ForwarderStats,
    MembershipStats,
    RuntimeStats,
    counter_family,
    expiry_families,
    forwarder_families,
    gauge_family,
    histogram_family,
    labelled_counter,
    labelled_gauge,
    membership_families,
    shard_families,
)
from coordinator.metrics.signal_families import GroupFigures, signal_families
from protocol.errors import ErrorCode

# By API key. Early revisions of KIP-932 call 87 ReadShareGroupOffsetsState.
API_NAMES = {
    10: "FindCoordinator",
    17: "SaslHandshake",
    18: "ApiVersions",
    36: "SaslAuthenticate",
    83: "InitializeShareGroupState",
    84: "ReadShareGroupState",
    85: "WriteShareGroupState",
    86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
}
OTHER_API = "other"


class Metrics:
    """All counters of one process, with a separate Prometheus registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.event_loop_lag_last_seconds = 0.0
        self._requests: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._request_seconds = {api_key: Histogram(SECONDS) for api_key in API_NAMES}
        self._other_seconds = Histogram(SECONDS)
        self._write_operations = 0
        self._append_records = Histogram(RECORDS)
        self._append_seconds = Histogram(SECONDS)
        # This histogram has no ranges, because only the sum is exported.
        self._append_bytes = Histogram(())
        self._append_failures = 0
        self._fenced = 0
        self._membership: MembershipStats | None = None
        self._load_seconds = Histogram(SECONDS)
        self._snapshots: defaultdict[str, int] = defaultdict(int)
        self._pruned: dict[int, int] = {}
        self._prune_failures: defaultdict[str, int] = defaultdict(int)
        self._expired: defaultdict[str, int] = defaultdict(int)
        self._expiry_failures = 0
        self._expiry_round_ms = 0
        self._connections_opened = 0
        self._connections_closed: defaultdict[str, int] = defaultdict(int)
        self._frames_refused: defaultdict[str, int] = defaultdict(int)
        self._http_refused: defaultdict[str, int] = defaultdict(int)
        self._loop_lag_seconds = Histogram(SECONDS)
        self._forwards: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._forward_seconds = Histogram(SECONDS)
        self._forwarder: ForwarderStats | None = None
        self._runtime: RuntimeStats | None = None
        self._groups: Callable[[], Collection[GroupFigures]] | None = None
        self._log = "memory"
        self._log_bytes: Callable[[], int] | None = None
        # Create a series for each API at the start, so that rates include the first request and alerts find a
        # series.
        for api_key in API_NAMES:
            self._requests[api_key, ErrorCode.NONE] = 0
        self.registry.register(_FamilyCollector(self._collect_families))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    # Count.

    def request_done(self, api_key: int, error_code: int, seconds: float | None = None) -> None:
        """Count an answered request; `error_code` is the first one in its response, or 0.

        Without `seconds`, no duration is recorded: logins wait for the client, and refusals are immediate.
        """
        self._requests[api_key, error_code] += 1
        if seconds is not None:
            self._request_seconds.get(api_key, self._other_seconds).add(seconds)

    def request_histograms(self) -> tuple[dict[tuple[int, int], int], dict[int, Histogram]]:
        """Return the request counts by (API key, error code), and the durations by API key."""
        return self._requests, self._request_seconds

    def forward_done(self, api_key: int, error_code: int, seconds: float) -> None:
        """Count a forwarded request; `error_code` as in `request_done`, or the reason without a response."""
        self._forwards[api_key, error_code] += 1
        self._forward_seconds.add(seconds)

    def count_write_operations(self, count: int) -> None:
        """Count operations like Kafka's write-total.

        These are writes, rejected or not, and reads that write a record.
        """
        self._write_operations += count

    def append_done(self, records: int, log_bytes: int, seconds: float, error: LogError | None) -> None:
        """Count one append to the log, from the call until it is durable or has failed.

        A fenced append is not counted as a failure of the log; see `shard_fenced`.
        """
        self._append_seconds.add(seconds)
        if error is None:
            self._append_records.add(records)
            self._append_bytes.add(log_bytes)
        elif not isinstance(error, LogFenced):
            self._append_failures += 1

    def append_histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        """Return the histograms of successful appends: records, seconds and bytes."""
        return self._append_records, self._append_seconds, self._append_bytes

    def shard_loaded(self, state_partition: int, records: int, seconds: float) -> None:
        """Count a shard load; the number of records is read from the runtime's shards."""
        self._load_seconds.add(seconds)

    def snapshot_written(self, kind: str) -> None:
        """Count a snapshot by its cause."""
        self._snapshots[kind] += 1

    def log_pruned(self, state_partition: int, log_offset: int) -> None:
        """Set the log offset below which the records of a shard were pruned."""
        self._pruned[state_partition] = log_offset

    def shard_closed(self, state_partition: int) -> None:
        """Drop the series of a shard that this process no longer owns."""
        self._pruned.pop(state_partition, None)

    def shard_fenced(self) -> None:
        """Count a shard that another owner has claimed in the log."""
        self._fenced += 1

    def prune_failed(self, reason: str) -> None:
        """Count a failure to prune."""
        self._prune_failures[reason] += 1

    def state_expired(self, reason: str, share_partitions: int) -> None:
        """Count share-partitions whose state expired."""
        self._expired[reason] += share_partitions

    def expiry_round_done(self, now_ms: int) -> None:
        """Record the time of a completed round of expiry."""
        self._expiry_round_ms = now_ms

    def expiry_failed(self) -> None:
        """Count a failed round or removal of expiry."""
        self._expiry_failures += 1

    def connection_opened(self) -> None:
        """Count a connection from a broker."""
        self._connections_opened += 1

    def connection_closed(self, reason: str) -> None:
        """Count a closed connection by reason."""
        self._connections_closed[reason] += 1

    def frame_refused(self, reason: str) -> None:
        """Count a frame that is not a valid request; its connection is closed."""
        self._frames_refused[reason] += 1

    def http_refused(self, status: int) -> None:
        """Count a refused HTTP request by the status of its response."""
        self._http_refused[str(status)] += 1

    def set_event_loop_lag(self, seconds: float) -> None:
        """Set the delay of the event loop's last timer."""
        self.event_loop_lag_last_seconds = seconds
        self._loop_lag_seconds.add(seconds)

    def attach_runtime(
        self, runtime: RuntimeStats, log: str = "memory", log_bytes: Callable[[], int] | None = None
    ) -> None:
        """Read the state of the shards and the size of the log at each scrape.

        The meaning of the size depends on the setting `log`.
        """
        self._runtime = runtime
        self._log = log
        self._log_bytes = log_bytes

    def attach_signals(self, groups: Callable[[], Collection[GroupFigures]]) -> None:
        """Read the signals of all share groups at each scrape."""
        self._groups = groups

    def attach_membership(self, membership: MembershipStats) -> None:
        """Read the values of the group membership at each scrape."""
        self._membership = membership

    def attach_forwarder(self, forwarder: ForwarderStats) -> None:
        """Read the values of the forwarder at each scrape."""
        self._forwarder = forwarder

    # Collect.

    def _collect_families(self) -> Iterator[Metric]:
        yield self._build_family()
        yield from self._request_families()
        yield from self._append_families()
        yield from self._connection_families()
        if self._runtime is not None:
            yield gauge_family(
                "ready",
                "1 if the coordinator serves all its shards, else 0.",
                float(not self._runtime.health()),
            )
            yield gauge_family("append_inflight", "Appends in flight.", self._runtime.appends_in_flight())
            yield from shard_families(self._runtime.shard_views())
        if self._groups is not None:
            yield from signal_families(self._groups())
        if self._forwarder is not None:
            yield from self._forward_families(self._forwarder)
        if self._membership is not None:
            yield from membership_families(self._membership)
        yield from expiry_families(self._expired, self._expiry_failures, self._expiry_round_ms)

    def _build_family(self) -> Metric:
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
            requests.add_metric([API_NAMES.get(api_key, OTHER_API), _code_name(error_code)], count)
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
        yield counter_family(
            "write_operations", "Writes of a share-partition's state.", self._write_operations
        )

    def _forward_families(self, forwarder: ForwarderStats) -> Iterator[Metric]:
        forwards = CounterMetricFamily(
            PREFIX + "forwarded",
            "Forwarded requests by API and first error code in the response.",
            labels=["api", "code"],
        )
        for (api_key, error_code), count in sorted(self._forwards.items()):
            forwards.add_metric([API_NAMES.get(api_key, OTHER_API), _code_name(error_code)], count)
        yield forwards
        yield histogram_family(
            "forward_duration_seconds", "Duration of forwarded requests.", self._forward_seconds
        )
        yield from forwarder_families(forwarder)

    def _append_families(self) -> Iterator[Metric]:
        yield histogram_family(
            "append_batch_records", "Number of records of an append to the log.", self._append_records
        )
        yield histogram_family(
            "append_duration_seconds", "Duration of an append to the log.", self._append_seconds
        )
        yield counter_family(
            "append_bytes", "Bytes appended to the log.", self._append_bytes.cumulative_counts()[1]
        )
        yield counter_family("append_failures", "Failed appends to the log.", self._append_failures)
        yield counter_family("fenced", "Shards that another owner claimed in the log.", self._fenced)
        yield labelled_counter("snapshots", "Snapshots written, by cause.", "kind", self._snapshots)
        yield histogram_family("shard_load_duration_seconds", "Duration of a shard load.", self._load_seconds)
        pruned = {str(shard): offset for shard, offset in self._pruned.items()}
        yield labelled_counter(
            "prune_failures", "Failed attempts to prune the log.", "reason", self._prune_failures
        )
        yield labelled_gauge("prune_offset", "Log offset up to which the log was pruned.", "shard", pruned)
        if self._log_bytes is not None:
            size = {self._log: self._log_bytes()}
            yield labelled_gauge(
                "log_bytes",
                "Bytes of the log: the whole journal, or the owned part of the topic.",
                "log",
                size,
            )

    def _connection_families(self) -> Iterator[Metric]:
        closed = sum(self._connections_closed.values())
        yield gauge_family("connections", "Open connections from brokers.", self._connections_opened - closed)
        yield counter_family("connections_opened", "Connections accepted.", self._connections_opened)
        yield labelled_counter(
            "connections_closed", "Closed connections by reason.", "reason", self._connections_closed
        )
        yield labelled_counter(
            "frames_refused",
            "Frames that were not valid requests, by reason.",
            "reason",
            self._frames_refused,
        )
        refused = self._http_refused
        yield labelled_counter("http_refused", "Refused HTTP requests by status.", "status", refused)
        yield histogram_family(
            "event_loop_lag_seconds", "Delay of the last timer of the event loop.", self._loop_lag_seconds
        )


class _FamilyCollector(Collector):
    """Passes the families to the registry; describes none, so that registration does not collect them."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._collect_families = families

    def collect(self) -> Iterator[Metric]:
        return self._collect_families()

    def describe(self) -> Iterator[Metric]:
        return iter(())


@cache
def _release_version() -> str:
    return version("share-coordinator")


def _code_name(error_code: int) -> str:
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return str(error_code)
