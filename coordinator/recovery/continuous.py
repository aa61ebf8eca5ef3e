"""Audit periodically, and export the last verdict as Prometheus metrics.

Each audit is compared with a baseline, the previous audit (check X3).  If an audit finds that state was lost,
the baseline does not change, so the alert stays until the state is restored.  The baseline is stored with the
results and survives a restart (`baselines`).  If an audit fails, the next one is still made.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from coordinator.config import HostPort
from coordinator.errors import ListenError
from coordinator.process.clock import Clock, SystemClock, seconds_since_boot
from coordinator.recovery.audit import EXIT_FAILED, AuditResult
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.catalogue import CATALOGUE, SEVERITIES

RESULTS = ("clean", "warnings", "critical", "failed")

# A function that makes one audit and compares it with a baseline, if there is one.
Run = Callable[[Baseline | None], AuditResult]


class StopRequested(BaseException):
    """The process received SIGTERM or SIGINT."""


class AuditMetrics:
    """The metrics of audits; if an audit fails, the values of the last successful audit stay."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "share_coordinator_audit"
        self._verdict = Gauge(
            f"{prefix}_verdict",
            "Of the last run: 0 clean, 1 warnings, 2 critical, 3 the audit failed; -1 before the first one.",
            registry=self.registry,
        )
        self._verdict.set(-1)
        self._findings = Gauge(
            f"{prefix}_findings",
            "Findings of the last run, those of one check and share-partition as one.",
            ["check", "severity"],
            registry=self.registry,
        )
        self._runs = Counter(
            f"{prefix}_runs", "Runs, by what came of them.", ["result"], registry=self.registry
        )
        for result in RESULTS:
            self._runs.labels(result)
        self._last = Gauge(
            f"{prefix}_last_success_timestamp_seconds",
            "When the last run ended that did not fail.",
            registry=self.registry,
        )
        self._duration = Gauge(
            f"{prefix}_duration_seconds", "How long the last run took.", registry=self.registry
        )
        self._records = Gauge(
            f"{prefix}_records", "Records that the last run has read.", registry=self.registry
        )
        self._states = Gauge(
            f"{prefix}_share_partitions",
            "Share-partitions with state in the last run.",
            registry=self.registry,
        )

    def record_audit(self, run: AuditResult | None, *, duration_s: float, now_ms: int) -> None:
        """Update the metrics after an audit; `run` is None if the audit failed."""
        code = EXIT_FAILED if run is None else run.exit_code
        self._verdict.set(code)
        self._runs.labels(RESULTS[code]).inc()
        self._duration.set(duration_s)
        if run is None:
            return
        self._last.set(now_ms / 1000)
        self._records.set(run.manifest["totals"]["records"])
        self._states.set(run.manifest["states"])
        rows = run.findings.select(["check", "severity"]).to_pylist()
        for check in CATALOGUE:
            for severity in SEVERITIES:
                found = sum(row["check"] == check and row["severity"] == severity.value for row in rows)
                if found or check not in run.not_checked:
                    self._findings.labels(check, severity.value).set(found)


def audit_periodically(
    run: Run,
    *,
    every_s: float,
    listen: HostPort | None,
    told: Callable[[AuditResult | Exception], None],
    baseline: Baseline | None = None,
    clock: Clock | None = None,
) -> None:
    """Audit until a stop signal; `every_s` is the time between the starts of two runs.

    Raises ListenError.  Call it on the main thread, because it installs signal handlers.
    """
    clock = clock or SystemClock()
    metrics = AuditMetrics()
    before = [signal.signal(number, _raise_stop_requested) for number in (signal.SIGTERM, signal.SIGINT)]
    server: Any = None
    waiting = threading.Event()
    try:
        if listen is not None:
            server = _start_metrics_server(listen, metrics)
        while True:
            begun_s = seconds_since_boot()
            baseline = _audit_once(run, baseline, metrics, told, clock)
            waiting.wait(max(every_s - (seconds_since_boot() - begun_s), 0))
    except StopRequested:
        return
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
        if server is not None:
            server.shutdown()
            server.server_close()


def _audit_once(
    run: Run,
    baseline: Baseline | None,
    metrics: AuditMetrics,
    told: Callable[[AuditResult | Exception], None],
    clock: Clock,
) -> Baseline | None:
    """Audit once, and return the baseline of the next run."""
    begun_s = seconds_since_boot()
    try:
        found = run(baseline)
    except Exception as error:
        # No exception of one audit, for example of a failed Spark job, may end the periodic audits.
        metrics.record_audit(None, duration_s=seconds_since_boot() - begun_s, now_ms=clock.now_ms())
        told(error)
        return baseline
    metrics.record_audit(found, duration_s=seconds_since_boot() - begun_s, now_ms=clock.now_ms())
    told(found)
    if found.manifest["next_baseline"] != found.manifest["run_id"]:
        return baseline
    return Baseline(found.manifest, found.stored.of_partition)


def _start_metrics_server(listen: HostPort, metrics: AuditMetrics) -> Any:
    try:
        server, _ = start_http_server(listen.port, listen.host, metrics.registry)
    except OSError as error:
        raise ListenError("--metrics-listen", str(listen), error) from None
    return server


def _raise_stop_requested(number: int, frame: FrameType | None) -> None:
    raise StopRequested
