"""Repeat an audit or an archive job, and export the results as Prometheus metrics.

Each audit is compared with a baseline, the previous audit (check X3).  If an audit finds that state was lost,
the baseline does not change, so the alert stays until the state is restored.  The baseline is stored with the
results and survives a restart. The job is repeated after a failed run, unless the Spark session has ended.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from coordinator.config import HostPort
from coordinator.errors import ConfigError, CoordinatorError, ListenError, LogError
from coordinator.process.clock import Clock, SystemClock, seconds_since_boot
from coordinator.recovery.archive import ArchiveResult
from coordinator.recovery.audit import EXIT_FAILED, AuditResult
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.catalogue import CATALOGUE, SEVERITIES
from coordinator.recovery.engines.spark_session import SparkStopped
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.manifest import MANIFEST, read_manifest

ResultT = TypeVar("ResultT")


class StopRequested(BaseException):
    """Raised when the process receives SIGTERM or SIGINT."""


class JobMetrics(Generic[ResultT]):
    """The metrics of a repeated job; if a run fails, the values of the last successful run stay."""

    def __init__(self, prefix: str, results: Sequence[str]) -> None:
        """Define the metrics that all jobs have; the last of `results` labels a failed run."""
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._results = results
        self._runs = Counter(f"{prefix}_runs", "Runs by result.", ["result"], registry=self.registry)
        for result in results:
            self._runs.labels(result)
        self._last = self._make_gauge(
            "last_success_timestamp_seconds", "End of the last run that did not fail."
        )
        self._duration = self._make_gauge("duration_seconds", "Duration of the last run.")

    def _make_gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", text, labels, registry=self.registry)

    def record_run(self, run: ResultT | None, *, duration_s: float, now_ms: int) -> None:
        """Update the metrics after a run; `run` is None if it failed."""
        self._runs.labels(self._results[self._update(run)]).inc()
        self._duration.set(duration_s)
        if run is not None:
            self._last.set(now_ms / 1000)

    def _update(self, run: ResultT | None) -> int:
        """Update the metrics that only this job has; return the index of the run's result in `results`."""
        raise NotImplementedError


class AuditMetrics(JobMetrics[AuditResult]):
    """The metrics of audits."""

    def __init__(self) -> None:
        super().__init__("share_coordinator_audit", ("clean", "warnings", "critical", "failed"))
        self._verdict = self._make_gauge(
            "verdict",
            "Of the last run: 0 clean, 1 warnings, 2 critical, 3 the audit failed; -1 before the first one.",
        )
        self._verdict.set(-1)
        self._findings = self._make_gauge(
            "findings",
            "Findings of the last run, those of one check and share-partition as one.",
            ["check", "severity"],
        )
        self._records = self._make_gauge("records", "Records that the last run has read.")
        self._states = self._make_gauge("share_partitions", "Share-partitions with state in the last run.")

    def _update(self, run: AuditResult | None) -> int:
        code = EXIT_FAILED if run is None else run.exit_code
        self._verdict.set(code)
        if run is None:
            return code
        self._records.set(run.manifest["totals"]["records"])
        self._states.set(run.manifest["states"])
        rows = run.findings.select(["check", "severity"]).to_pylist()
        for check in CATALOGUE:
            for severity in SEVERITIES:
                found = sum(row["check"] == check and row["severity"] == severity.value for row in rows)
                if found or check not in run.not_checked:
                    self._findings.labels(check, severity.value).set(found)
        return code


class ArchiveMetrics(JobMetrics[Sequence[ArchiveResult]]):
    """The metrics of an archive; `measure_lag` counts the records of the log that the archive lacks."""

    def __init__(self, measure_lag: Callable[[], int]) -> None:
        super().__init__("share_coordinator_archive", ("whole", "incomplete", "failed"))
        self._measure_lag = measure_lag
        self._lag = self._make_gauge(
            "lag_records", "Records of the log that the archive lacks, at the end of the last run."
        )
        self._copied = Counter(f"{self._prefix}_records", "Copied records.", registry=self.registry)
        self._lost = Counter(
            f"{self._prefix}_lost_records",
            "Records that were pruned before they were copied, or could not be read.",
            registry=self.registry,
        )

    def _update(self, run: Sequence[ArchiveResult] | None) -> int:
        # A run may have failed because the log cannot be reached; the lag is then not known.
        with suppress(CoordinatorError, OSError):
            self._lag.set(self._measure_lag())
        if run is None:
            return 2
        self._copied.inc(sum(each.records for each in run))
        self._lost.inc(sum(each.lost_records for each in run))
        return 0 if all(each.is_whole for each in run) else 1


def run_periodically(
    run: Callable[[], ResultT],
    metrics: JobMetrics[ResultT],
    *,
    every_s: float,
    listen: HostPort | None,
    report: Callable[[ResultT | Exception], None],
    clock: Clock | None = None,
) -> None:
    """Run a job until a stop signal; `every_s` is the time between the starts of two runs.

    Raises ListenError, and SparkStopped if the Spark session of the process has ended.  Call it on the main
    thread, because it installs signal handlers.
    """
    clock = clock or SystemClock()
    before = [signal.signal(number, _raise_stop_requested) for number in (signal.SIGTERM, signal.SIGINT)]
    server: Any = None
    waiting = threading.Event()
    try:
        if listen is not None:
            server = _start_metrics_server(listen, metrics.registry)
        while True:
            begun_s = seconds_since_boot()
            found: ResultT | None = None
            try:
                report(found := run())
            except SparkStopped:
                # Without a Spark session, every later run would fail. A supervisor restarts the process.
                raise
            except Exception as error:
                # Any other exception, for example of a failed Spark job, ends only this run.
                report(error)
            duration_s = seconds_since_boot() - begun_s
            metrics.record_run(found, duration_s=duration_s, now_ms=clock.now_ms())
            waiting.wait(max(every_s - (seconds_since_boot() - begun_s), 0))
    except StopRequested:
        return
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
        if server is not None:
            server.shutdown()
            server.server_close()


def _start_metrics_server(listen: HostPort, registry: CollectorRegistry) -> Any:
    try:
        server, _ = start_http_server(listen.port, listen.host, registry)
    except OSError as error:
        raise ListenError("--metrics-listen", str(listen), error) from None
    return server


def _raise_stop_requested(number: int, frame: FrameType | None) -> None:
    raise StopRequested


def _list_audits(location: Location) -> Iterator[tuple[Folder, dict[str, Any]]]:
    """Yield the finished audits in a directory that has a subdirectory for each, the oldest first."""
    parent = open_folder(location)
    entries = [parent / name for name in parent.folder_names()]
    found = [(entry, read_manifest(entry.location)) for entry in entries if MANIFEST in entry.names()]
    audits = [each for each in found if each[1]["job"] == "audit"]
    yield from sorted(audits, key=lambda each: each[1]["run_id"])


def next_baseline(location: Location, source: str, given: Baseline | None = None) -> Baseline | None:
    """Return the baseline of the next audit; `given` is used if no audit has finished yet.

    Raises ConfigError if the audits in the directory are of another source, LogError if the baseline is
    missing.
    """
    runs = list(_list_audits(location))
    if not runs:
        return given
    _, last = runs[-1]
    if last["source"] != source:
        raise ConfigError("--to", location, f"a folder for {source}; it has audits of {last['source']}")
    wanted = last.get("next_baseline")
    if wanted is None or (given is not None and given.run_id == wanted):
        return given
    for folder, manifest in runs:
        if manifest["run_id"] == wanted:
            return Baseline.read(folder.location)
    raise LogError(f"the audit {wanted} is missing in {location}: it is the baseline of the next audit")


def remove_old_audits(location: Location, keep: int) -> None:
    """Remove all audits except the `keep` newest ones and the baseline of the next audit.

    A directory without a manifest is kept: it may belong to the user.
    """
    runs = list(_list_audits(location))
    for folder, manifest in runs[:-keep]:
        if manifest["run_id"] != runs[-1][1].get("next_baseline"):
            # A directory without a manifest is ignored, so an interrupted removal does no harm.
            folder.delete(MANIFEST)
            folder.delete_all()
