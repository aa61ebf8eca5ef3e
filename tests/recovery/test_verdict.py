"""Test that the verdict depends only on the findings, and is never positive with a critical finding."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.catalogue import CATALOGUE, FindingEffect, Severity
from coordinator.recovery.continuous import next_baseline, remove_old_audits
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.report import as_text
from coordinator.recovery.sources.archive import ArchiveSource
from coordinator.recovery.sources.base import ALL
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.state_tasks import PartitionStates
from coordinator.recovery.verdict import (
    CONCERNED_OUTPUT,
    AuditContext,
    LogCopy,
    RecoveryStatus,
    classify_groups,
    select_states_for_verdict,
)
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.injected_history_faults import FAULTS
from tests.recovery.share_groups import SimulatedShareGroups, audit_segments, write_log

TOPIC = "A" * 22
LOG = AuditContext("segments:log")


def make_state(
    group_id: str, partition: int, *, state_partition: int = 0, needed_from: int = 50
) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "topic_id": TOPIC,
        "partition": partition,
        "state_partition": state_partition,
        "needed_from": needed_from,
        "write_timestamp": 1,
        "start_offset": 7,
        "state_batches": [{"last_offset": 12}],
    }


def make_finding(
    check: str,
    severity: str = "critical",
    *,
    group_id: str | None = None,
    state_partition: int = 0,
    at: int = -1,
    until: int | None = None,
    timestamp_ms: int = 5,
) -> dict[str, Any]:
    return {
        "check": check,
        "severity": severity,
        "state_partition": state_partition,
        "group_id": group_id,
        "topic_id": None if group_id is None else TOPIC,
        "partition": None if group_id is None else 0,
        "log_offset": at,
        "last_log_offset": at if until is None else until,
        "timestamp_ms": timestamp_ms,
    }


STATES = [make_state("one", 0), make_state("one", 1, needed_from=5), make_state("two", 0, state_partition=1)]
findings = st.builds(
    make_finding,
    st.sampled_from(list(CATALOGUE)),
    st.sampled_from([severity.value for severity in Severity]),
    group_id=st.sampled_from([None, "one", "two", "vanished"]),
    state_partition=st.sampled_from([ALL, 0, 1]),
    at=st.integers(-1, 100),
)


@given(
    st.lists(findings, max_size=6),
    st.sampled_from([None, LogCopy("archive:copy", {0: 0}, {0: 60})]),
    st.booleans(),
)
@example([make_finding("P4", group_id="one", at=30)], None, False)
def test_headline_is_positive_only_without_critical_findings(
    found: list[dict[str, Any]], copy: LogCopy | None, is_unread: bool
) -> None:
    verdict = classify_groups(found, STATES, LOG._replace(copy=copy, is_unread=is_unread))
    is_critical = any(row["severity"] == "critical" for row in found)
    assert verdict.is_positive == (not is_critical and not is_unread)
    assert verdict.headline.partition(";")[0].endswith(": yes") == verdict.is_positive
    assert not verdict.headline.endswith(": ")
    groups = {group.group_id: group for group in verdict.groups}
    for row in found:
        if row["severity"] != "critical" or row["group_id"] is None:
            continue
        # Records that are missing before the latest snapshot are not needed.
        is_missing = CATALOGUE[row["check"]].effect is FindingEffect.MISSING
        if not (is_missing and 0 <= row["last_log_offset"] < 50 and row["group_id"] != "vanished"):
            assert groups[row["group_id"]].status is not RecoveryStatus.WHOLE
    for group in verdict.groups:
        assert bool(group.command) == bool(group.affected) == (group.status is not RecoveryStatus.WHOLE)


@given(st.lists(findings, max_size=6))
def test_verdict_needs_only_states_that_findings_concern(found: list[dict[str, Any]]) -> None:
    home = {"one": 0, "two": 1}
    found = [{**row, "state_partition": home.get(row["group_id"], row["state_partition"])} for row in found]
    others = Counter[str]()
    affected: list[dict[str, Any]] = []
    for number in (0, 1):
        rows = [row for row in STATES if row["state_partition"] == number]
        own = [row for row in found if row["state_partition"] in (ALL, number)]
        for name, _, table in select_states_for_verdict(
            own, PartitionStates(number, pa.Table.from_pylist(rows))
        ):
            if name == CONCERNED_OUTPUT:
                affected += table.to_pylist()
            else:
                others.update({row["group_id"]: row["states"] for row in table.to_pylist()})
    assert len(affected) + others.total() == len(STATES)
    assert classify_groups(found, affected, LOG._replace(others=others)) == classify_groups(
        found, STATES, LOG
    )


@pytest.mark.parametrize("check", CATALOGUE)
def test_every_critical_finding_makes_its_group_suspect_or_worse(check: str) -> None:
    verdict = classify_groups([make_finding(check, group_id="one", at=60)], STATES, LOG)
    assert {group.group_id: group.status is RecoveryStatus.WHOLE for group in verdict.groups} == {
        "one": False,
        "two": True,
    }


def test_lost_state_is_recoverable_from_archive_with_its_records() -> None:
    row = make_finding("K1", group_id="one", at=60, timestamp_ms=1_700_000_000_000)
    (lost, whole) = classify_groups([row], STATES, LOG).groups
    assert (lost.status, whole.status) == (RecoveryStatus.LOST, RecoveryStatus.WHOLE)
    assert lost.command.startswith("kafka-share-groups.sh --bootstrap-server HOST:PORT --reset-offsets")
    assert (lost.since_ms, lost.checks) == (1_700_000_000_000, ["K1"])
    (affected,) = lost.affected
    assert (affected.start_offset, affected.last_offset) == (7, 12)
    for starts, ends in (({0: 0}, {0: 20}), ({0: 61}, {0: 99}), ({1: 0}, {1: 99})):
        copy = LogCopy("archive:copy", starts, ends)
        group = classify_groups([row], STATES, LOG._replace(copy=copy)).groups[0]
        assert group.status is RecoveryStatus.LOST
    copy = LogCopy("archive:copy", {0: 0}, {0: 61})
    group = classify_groups([row], STATES, LOG._replace(copy=copy)).groups[0]
    assert group.status is RecoveryStatus.RECOVERABLE
    assert group.command == "share-coordinator recovery rewrite --from archive:copy --to journal:restored"


def test_wrong_state_is_recoverable_as_of_before_the_wrong_record() -> None:
    rows = [make_finding("K8", group_id="one", at=40), make_finding("R1", group_id="one", at=30)]
    context = AuditContext("kafka:states", "b1:9092")
    group = classify_groups(rows, STATES, context).groups[0]
    assert (group.status, group.recover_from) == (RecoveryStatus.RECOVERABLE, "kafka:states")
    assert "--from kafka:states --as-of-offset 0:30 --to journal:restored --bootstrap-servers b1:9092" in (
        group.command
    )


def test_gap_makes_groups_without_later_snapshot_suspect() -> None:
    verdict = classify_groups([make_finding("P2", at=10, until=12)], STATES, LOG)
    (one, two) = verdict.groups
    assert (one.group_id, one.status, two.status) == ("one", RecoveryStatus.SUSPECT, RecoveryStatus.WHOLE)
    assert [each.partition for each in one.affected] == [1]
    assert verdict.headline.endswith("NO: 1 group suspect, P2 in 1 state partition")


@pytest.mark.parametrize(
    "name", [name for name in FAULTS if CATALOGUE[name.partition(":")[0]].severity == "critical"]
)
def test_report_of_fault_that_loses_state_does_not_say_yes(name: str, tmp_path: Path) -> None:
    log = SimulatedShareGroups(3).run_steps(600).log
    limits = FAULTS[name](log) or CLEAN_LIMITS
    found = audit_segments(write_log(tmp_path, log), AuditOptions(limits=limits))
    severities = set(found.findings.column("severity").to_pylist())
    text = as_text(found)
    assert ("after it: NO" in text) == ("critical" in severities)
    assert ("after it: yes" in text) == ("critical" not in severities)


def test_group_with_complete_snapshot_after_missing_records_is_whole(tmp_path: Path) -> None:
    log = SimulatedShareGroups(3).run_steps(600).log
    FAULTS["K3"](log)
    found = audit_segments(write_log(tmp_path, log), AuditOptions(limits=CLEAN_LIMITS))
    critical = {row["check"] for row in found.findings.to_pylist() if row["severity"] == "critical"}
    # The updates after the missing snapshot name its epoch.
    assert critical == {"K2", "K3"}
    assert found.verdict.counts[RecoveryStatus.WHOLE] == len(found.verdict.groups)
    assert found.verdict.headline.endswith("NO: K2 in 1 state partition, K3 in 1 state partition")


def test_report_has_topic_names_times_and_commands(tmp_path: Path) -> None:
    log = SimulatedShareGroups(3).run_steps(600).log
    FAULTS["K1"](log)
    folder = write_log(tmp_path / "log", log)
    whole = SimulatedShareGroups(3).run_steps(600).log
    archive(SegmentSource(str(write_log(tmp_path / "whole", whole))), tmp_path / "copy")
    copy = ArchiveSource(str(tmp_path / "copy")).as_log_copy()
    found = audit_segments(folder, AuditOptions(limits=CLEAN_LIMITS, copy=copy))
    text = as_text(found)
    assert f"recoverable from archive:{tmp_path / 'copy'}" in " ".join(text.split())
    assert (
        f"share-coordinator recovery rewrite --from archive:{tmp_path / 'copy'} --to journal:restored" in text
    )
    assert "; since 20" in " ".join(text.split())


def test_baseline_survives_restart(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "log", SimulatedShareGroups(5).run_steps(300).log)
    source = SegmentSource(str(whole))
    kept = tmp_path / "kept"

    def restart_and_audit(number: int) -> Any:
        # Each audit simulates a newly started process.
        baseline = next_baseline(kept, source.text)
        options = AuditOptions(limits=CLEAN_LIMITS, baseline=baseline, to=kept / str(number))
        found = audit(LocalEngine(1), source, options)
        remove_old_audits(kept, keep=2)
        return found

    rebuild(LocalEngine(1), source, to=kept / "rebuilt")
    first = restart_and_audit(1)
    log = SimulatedShareGroups(5).run_steps(300).log
    key = log[0][0].record.key
    log[0] = [each for each in log[0] if each.record.key != key]
    for path in (tmp_path / "log").rglob("*.log"):
        path.unlink()
    write_log(tmp_path / "log", {n: list(each) for n, each in log.items()})
    for number in (2, 3, 4, 5):
        found = restart_and_audit(number)
        assert "X3" in found.manifest["checks"]
        assert found.manifest["baseline"] == first.manifest["run_id"]
    # The results of the baseline, of the two newest other audits, and of another job remain.
    assert {entry.name for entry in kept.iterdir()} == {"1", "4", "5", "rebuilt"}
