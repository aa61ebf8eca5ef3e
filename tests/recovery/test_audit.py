"""Test audits of logs: each check detects its injected fault, and a clean log has no findings."""

from functools import cache
from pathlib import Path

import pytest

from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.catalogue import CATALOGUE, Severity
from coordinator.recovery.checks.findings import Finding, finding_from_row, findings_output
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.sources.journal import JournalSource
from protocol.state_records import decode_record
from tests.conformance.vectors import RELEASES_WITH_LOG, recorded_log
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.logs_on_disk import TOPIC, make_varied_records, write_journal
from tests.recovery.share_groups import Log, SimulatedShareGroups, WrittenRecord, audit_segments, write_log
from tests.recovery.test_engines import OverstatedSegments
from tests.recovery.test_external_checks import FOUND_HERE

# The checks that need other data than the log.
OUTSIDE = FOUND_HERE


@cache
def _make_log(seed: int, owner_epoch: int | None) -> Log:
    return SimulatedShareGroups(seed, owner_epoch=owner_epoch).run_steps(600).log


def clean_log(seed: int = 3, owner_epoch: int | None = None) -> Log:
    return {number: list(records) for number, records in _make_log(seed, owner_epoch).items()}


def make_options(limits: Limits | None = None) -> AuditOptions:
    return AuditOptions(limits=limits or CLEAN_LIMITS)


def test_harmless_findings_of_many_share_partitions_are_summarised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gets the findings of all state partitions, so their number must have a limit."""
    monkeypatch.setattr("coordinator.recovery.checks.findings.HARMLESS_MAX", 3)
    many = [Finding("R9", Severity.INFO, 1, bytes([n]), n, n, 2, f"of {n}") for n in range(10)]
    lost = [Finding("K1", Severity.CRITICAL, 1, bytes([n]), n, n) for n in range(10)]
    (output,) = findings_output(1, [*reversed(many), *lost])
    found = [finding_from_row(row) for row in output.rows.to_pylist()]
    assert [each for each in found if each.check == "K1"] == lost
    *first, rest = (each for each in found if each.check == "R9")
    assert first == many[:3]
    evidence = "7 more share-partitions, first of 3"
    assert rest == Finding("R9", Severity.INFO, 1, None, 3, 9, 14, evidence)


def test_every_audit_check_has_an_injected_fault() -> None:
    assert {name.partition(":")[0] for name in FAULTS} == set(CATALOGUE) - OUTSIDE


@pytest.mark.parametrize("owner_epoch", [None, 4])
@pytest.mark.parametrize("seed", range(3))
def test_clean_log_has_no_findings(seed: int, owner_epoch: int | None, tmp_path: Path) -> None:
    found = audit_segments(write_log(tmp_path, clean_log(seed, owner_epoch)), make_options())
    assert found.findings.to_pylist() == []
    assert (found.summary_line, found.exit_code) == ("clean", 0)
    assert set(found.not_checked) == OUTSIDE


@pytest.mark.parametrize("name", FAULTS)
def test_injected_fault_is_found_by_its_check(name: str, tmp_path: Path) -> None:
    log = clean_log()
    limits = FAULTS[name](log)
    check = CATALOGUE[name.partition(":")[0]]
    folder = write_log(tmp_path, log)
    found = audit_segments(folder, make_options(limits)).findings.to_pylist()
    mine = [row for row in found if row["check"] == check.id]
    assert mine, found
    assert all(row["evidence"] and row["count"] >= 1 for row in mine)
    if ":" not in name and check.id != "K7":
        assert {row["severity"] for row in mine} >= {check.severity.value}


@pytest.mark.parametrize("name", ["journal-20261121", "journal-20261121134701"])
def test_damage_is_reported_for_state_partition_despite_directory_name(name: str, tmp_path: Path) -> None:
    write_journal(tmp_path / name, {1: make_varied_records(50)})
    segment = min((tmp_path / name).glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    segment.write_bytes(data)
    found = audit(LocalEngine(1), JournalSource(str(tmp_path / name)), AuditOptions()).findings.to_pylist()
    assert {row["state_partition"] for row in found if row["check"] == "P4"} == {1}
    log = clean_log()
    FAULTS["P4"](log)
    spoilt = [number for number, records in log.items() if any(each.spoilt for each in records)]
    write_log(tmp_path / "log", log)
    (tmp_path / "log" / f"{TOPIC}-{spoilt[0]}").rename(tmp_path / f"{TOPIC}-7")
    found = audit_segments(tmp_path / f"{TOPIC}-7", make_options()).findings.to_pylist()
    assert [row["state_partition"] for row in found if row["check"] == "P4"] == [7]


@pytest.mark.parametrize("name", ["processes", pytest.param("spark", marks=pytest.mark.spark)])
def test_audit_with_an_engine_has_same_results_as_in_one_process(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = clean_log()
    faults = ("K8", "K7", "R4", "K1", "P2")
    for each in faults:
        FAULTS[each](log)
    folder = write_log(tmp_path, log)
    engine = LocalEngine(2) if name == "processes" else request.getfixturevalue("spark_engine")
    found = audit(engine, OverstatedSegments(str(folder)), make_options())
    local = audit_segments(folder, make_options())
    assert (found.findings, found.states, found.ranges) == (local.findings, local.states, local.ranges)
    assert {*faults} <= set(found.findings.column("check").to_pylist())
    if name == "processes":
        engine.close()


# The findings that deliberate requests to Kafka caused; the rest of the recorded logs is clean.
PROBES = {
    "4.1.1": {("R4", "max"), ("K5", "vec"), ("R7", "vec")},
    "4.3.1": {
        *(("R4", "max"), ("R4", "vec"), ("K5", "vec"), ("R7", "vec"), ("K7", "vec"), ("K12", "vec")),
        *(("K13", "row"), ("K13", "max"), ("K14", "vec")),
    },
    "4.4.0": {
        *(("R4", "max"), ("R4", "vec"), ("R7", "vec"), ("K13", "row"), ("K13", "max"), ("K14", "vec")),
    },
}


@pytest.mark.parametrize("release", RELEASES_WITH_LOG)
def test_recorded_kafka_logs_have_only_findings_of_deliberate_requests(release: str, tmp_path: Path) -> None:
    log: Log = {}
    for line in sorted(recorded_log(release)):
        record = decode_record(line.key, line.value)
        assert record is not None
        written = WrittenRecord(line.log_offset, line.timestamp_ms, record, raw=(line.key, line.value))
        log.setdefault(line.state_partition, []).append(written)
    found = audit_segments(write_log(tmp_path, log), AuditOptions(state_partitions=50)).findings.to_pylist()
    assert {(row["check"], row["group_id"]) for row in found} == PROBES[release]
