"""Test repeated jobs: failed runs, metrics, and the lag and the gaps of an archive."""

import signal
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from coordinator.config import HostPort
from coordinator.errors import LogUnavailable
from coordinator.recovery.archive import ArchiveResult, archive, archive_lag
from coordinator.recovery.audit import AuditOptions
from coordinator.recovery.continuous import ArchiveMetrics, AuditMetrics, run_periodically
from coordinator.recovery.sources.journal import JournalSource
from tests.kafka.ports import free_ports
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.logs_on_disk import make_varied_records, write_journal
from tests.recovery.share_groups import SimulatedShareGroups, audit_segments, write_log
from tests.recovery.test_archive import GrowingPartition
from tests.unit.cli.command_line import CommandLine


def test_failed_run_does_not_end_the_repetition(tmp_path: Path) -> None:
    runs: Iterator[int | Exception] = iter(
        [4, LogUnavailable("not now"), ZeroDivisionError("a job failed"), 5]
    )
    reported: list[object] = []
    served: list[str] = []
    listen = HostPort("127.0.0.1", *free_ports(1))

    def run_job() -> Sequence[ArchiveResult]:
        found = next(runs)
        if isinstance(found, Exception):
            raise found
        return [ArchiveResult(1, found, {}, {})]

    def record_report(found: object) -> None:
        reported.append(found)
        served.append(read_metrics(listen))
        if len(reported) == 4:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    run_periodically(run_job, ArchiveMetrics(lambda: 0), every_s=0.01, listen=listen, report=record_report)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [type(found) for found in reported] == [list, LogUnavailable, ZeroDivisionError, list]
    assert 'share_coordinator_archive_runs_total{result="failed"} 2.0' in served[-1].splitlines()
    # The port of the metrics server is free again.
    with pytest.raises(OSError, match="refused"):
        read_metrics(listen)


def read_metrics(listen: HostPort) -> str:
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=60) as response:
        text: str = response.read().decode()
    return text


def test_audit_metrics_keep_last_findings_after_failed_run(tmp_path: Path) -> None:
    log = SimulatedShareGroups(5).run_steps(300).log
    FAULTS["K1"](log)
    metrics = AuditMetrics()
    value = metrics.registry.get_sample_value
    assert value("share_coordinator_audit_verdict") == -1
    found = audit_segments(write_log(tmp_path / "log", log), AuditOptions(limits=CLEAN_LIMITS))
    metrics.record_run(found, duration_s=2.0, now_ms=5_000)
    assert value("share_coordinator_audit_verdict") == 2
    lost = {"check": "K1", "severity": "critical"}
    assert value("share_coordinator_audit_findings", lost) == 1
    assert value("share_coordinator_audit_findings", {"check": "X1", "severity": "critical"}) is None
    metrics.record_run(None, duration_s=1.0, now_ms=9_000)
    assert value("share_coordinator_audit_verdict") == 3
    assert value("share_coordinator_audit_findings", lost) == 1
    assert value("share_coordinator_audit_last_success_timestamp_seconds") == 5
    assert value("share_coordinator_audit_runs_total", {"result": "failed"}) == 1


def test_archive_metrics_show_lag_and_lost_records(tmp_path: Path) -> None:
    log, folder = GrowingPartition(tmp_path / "disk"), tmp_path / "archive"
    metrics = ArchiveMetrics(lambda: 7)

    def metric_value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"share_coordinator_archive_{name}", labels)

    log.append_records(100)
    metrics.record_run([archive(log.source, folder)], duration_s=1.0, now_ms=3_000)
    assert (
        metric_value("records_total"),
        metric_value("lost_records_total"),
        metric_value("lag_records"),
    ) == (100, 0, 7)
    for _ in range(2):
        log.append_records(100)
    log.prune()
    metrics.record_run([archive(log.source, folder)], duration_s=2.0, now_ms=5_000)
    assert (metric_value("records_total"), metric_value("lost_records_total")) == (200, 100)
    metrics.record_run(None, duration_s=2.0, now_ms=9_000)
    runs = [metric_value("runs_total", result=result) for result in ("whole", "incomplete", "failed")]
    assert (runs, metric_value("last_success_timestamp_seconds")) == ([1, 1, 1], 5)


def test_lag_is_the_number_of_records_that_the_archive_lacks(tmp_path: Path) -> None:
    source, folder = JournalSource(str(tmp_path / "journal")), tmp_path / "archive"
    write_journal(tmp_path / "journal", {0: make_varied_records(50), 2: make_varied_records(30)})
    assert archive_lag(source, folder) == 80
    archive(source, folder)
    assert archive_lag(source, folder) == 0


def test_lag_metric_keeps_its_value_if_the_log_cannot_be_read() -> None:
    lags: Iterator[int | Exception] = iter([5, LogUnavailable("no broker answers")])

    def measure_lag() -> int:
        found = next(lags)
        if isinstance(found, Exception):
            raise found
        return found

    metrics = ArchiveMetrics(measure_lag)
    for _ in range(2):
        metrics.record_run(None, duration_s=1.0, now_ms=1)
    assert metrics.registry.get_sample_value("share_coordinator_archive_lag_records") == 5


@pytest.mark.parametrize(("command", "job"), [("audit", "audit"), ("archive", "copy")])
def test_failed_run_is_reported_in_one_line(
    command: str, job: str, share_coordinator: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_two_failures(*_: object, report: partial[None], **more: object) -> None:
        report(ZeroDivisionError("no\nsuch"))
        report(LogUnavailable("not\nnow"))

    monkeypatch.setattr("coordinator.recovery.continuous.run_periodically", report_two_failures)
    log = GrowingPartition(tmp_path / "disk")
    log.append_records(10)
    options = ("--from", log.source.text, "--every", "1s", "--to", str(tmp_path / "kept"))
    result = share_coordinator("recovery", command, *options)
    assert [line.split(" ", 1)[1] for line in result.out.splitlines()] == [
        f"the {job} failed: ZeroDivisionError: no such",
        f"the {job} failed: not now",
    ]
