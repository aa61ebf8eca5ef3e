"""Test that each audit check that needs data besides the log detects its fault.

Checks with a real cluster and live coordinators are in test_jobs_on_kafka.py and
test_jobs_on_coordinators.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from coordinator.client import ClientSecurity
from coordinator.errors import LogUnavailable
from coordinator.operate.migration.plan import find_differences
from coordinator.recovery import rewrite
from coordinator.recovery.audit import AuditOptions, AuditResult
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.cluster import check_configs, check_groups, check_offsets_in_user_topics
from coordinator.recovery.checks.findings import FINDINGS_OUTPUT, Finding
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.external_checks import (
    TOPICS_OUTPUT,
    ClusterCheck,
    ExternalCheck,
    compare_with_cluster,
)
from coordinator.recovery.job import LogReadResult, output_rows
from coordinator.recovery.schema import STATES
from coordinator.recovery.share_partitions import make_share_state, row_identity, row_share_partition
from coordinator.recovery.sources.base import ReadPlan
from coordinator.recovery.state_tasks import PartitionStates, empty_partition_states
from protocol.state_records import parse_topic_id
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.share_groups import (
    Log,
    SimulatedShareGroups,
    audit_segments,
    renumber_records,
    write_log,
)

LOCAL = LocalEngine(1)
NO_PLAN = ReadPlan((), {}, {})
GOOD = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
# The checks for which this file has faults; test_audit.py has faults for all other checks.
FOUND_HERE = {"P5", "X1", "X2", "X3", "X4", "X5"}


def make_clean_log() -> Log:
    return SimulatedShareGroups(5).run_steps(300).log


@pytest.fixture
def earlier_audit(tmp_path: Path) -> AuditResult:
    return audit_segments(write_log(tmp_path / "before", make_clean_log()), AuditOptions(limits=CLEAN_LIMITS))


def finding_rows(run: AuditResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.states.to_pylist()
    return found


def finding_tuples(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(each.check, each.severity.value, each.evidence) for each in findings]


# P5


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({"cleanup.policy": "compact"}, "critical"),
        ({"cleanup.policy": "compact,delete"}, "critical"),
        ({"retention.ms": "604800000"}, "critical"),
        ({"retention.bytes": "1000000"}, "critical"),
        ({"min.insync.replicas": "1"}, "warning"),
        ({"unclean.leader.election.enable": "true"}, "warning"),
    ],
)
def test_audit_reports_topic_config_that_loses_records(changed: Mapping[str, str], severity: str) -> None:
    assert list(check_configs(GOOD, 50, 50)) == []
    ((check, found, evidence),) = finding_tuples(list(check_configs({**GOOD, **changed}, 50, None)))
    assert (check, found) == ("P5", severity)
    assert next(iter(changed)) in evidence


def test_audit_reports_topic_with_unexpected_partition_count() -> None:
    assert finding_tuples(list(check_configs(GOOD, 50, 49))) == [
        ("P5", "critical", "the topic has 50 partitions, expected are 49")
    ]


def test_audit_reports_states_without_group_and_groups_without_state(
    earlier_audit: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = finding_rows(earlier_audit)
    shown = {(row["group_id"], parse_topic_id(row["topic_id"]), row["partition"]) for row in states}
    groups = {row["group_id"] for row in states}
    topics = {topic_id: "a name" for _, topic_id, _ in shown}
    assert list(check_groups(states, groups, topics)) == []
    lost, *left = states

    class FakeUserTopics:
        def __init__(self, **access: Any) -> None:
            pass

        async def topic_names(self, wanted: Sequence[bytes]) -> dict[bytes, str]:
            return {topic_id: topics[topic_id] for topic_id in wanted}

        async def start_offsets(self, places: Sequence[Any]) -> dict[Any, int]:
            return dict.fromkeys(places, 0)

        async def end_offsets(self, places: Sequence[Any]) -> dict[Any, int]:
            return dict.fromkeys(places, 1_000_000)

        async def close(self) -> None:
            pass

    async def list_groups(access: object) -> set[str]:
        return groups

    monkeypatch.setattr("coordinator.cluster.kafka.user_topics.UserTopics", FakeUserTopics)
    monkeypatch.setattr("coordinator.recovery.external_checks._list_groups", list_groups)
    security = ClientSecurity()
    check = ClusterCheck("b:1", security=security, topic=None, state_partitions=None, limits=Limits())
    check._initialised = [row_identity(row) for row in states]
    # In the second case, the missing share-partition was deleted during the audit.
    cases: list[tuple[dict[bytes, int], list[bytes]]] = [
        ({}, [row_identity(lost)]),
        ({row_identity(lost): 9}, []),
    ]
    for deleted, missing in cases:
        task = partial(compare_with_cluster, {}, pa.array(check._initialised, pa.binary()), Limits())
        table = pa.Table.from_pylist(left, STATES)
        outputs = [*task(PartitionStates(0, table, deleted)), *task(empty_partition_states(1))]
        found_missing = output_rows(check.finish(LOCAL, LogReadResult(NO_PLAN, outputs)), FINDINGS_OUTPUT)
        assert [row["share_partition"] for row in found_missing] == missing
        assert {row["check"] for row in found_missing} <= {"X2"}
        assert {row["topic_id"] for row in output_rows(outputs, TOPICS_OUTPUT)} == {
            row["topic_id"] for row in left
        }
    gone = parse_topic_id(lost["topic_id"])
    found = finding_tuples(list(check_groups(states, groups, {t: n for t, n in topics.items() if t != gone})))
    assert found == [("X2", "warning", "its topic does not exist, or Describe is not allowed")]
    fewer = groups - {lost["group_id"]}
    found = finding_tuples(list(check_groups(states, fewer, topics)))
    assert set(found) == {("X2", "warning", "its group does not exist, or Describe is not allowed")}


def remove_first_share_partition(log: Log) -> None:
    key = log[0][0].record.key
    for number, records in log.items():
        log[number] = [each for each in records if each.record.key != key]
    log.update(renumber_records(log))


def keep_first_half_of_log(log: Log) -> None:
    for number, records in log.items():
        log[number] = records[: len(records) // 2]


@pytest.mark.parametrize("spoil", [remove_first_share_partition, keep_first_half_of_log])
def test_audit_reports_state_that_only_earlier_audit_has(
    spoil: Callable[[Log], None], earlier_audit: AuditResult, tmp_path: Path
) -> None:
    log = make_clean_log()
    spoil(log)
    folder = write_log(tmp_path / "now", log)
    options = AuditOptions(
        limits=CLEAN_LIMITS, baseline=Baseline(earlier_audit.manifest, lambda number: earlier_audit.states)
    )
    found = audit_segments(folder, options)
    assert {(row["check"], row["severity"]) for row in found.findings.to_pylist()} == {("X3", "critical")}
    assert audit_segments(folder, AuditOptions(limits=CLEAN_LIMITS)).summary_line == "clean"


def test_deleted_or_updated_state_is_not_reported_as_missing(
    earlier_audit: AuditResult, tmp_path: Path
) -> None:
    log = SimulatedShareGroups(5).run_steps(600).log
    options = AuditOptions(
        limits=CLEAN_LIMITS, baseline=Baseline(earlier_audit.manifest, lambda number: earlier_audit.states)
    )
    assert audit_segments(write_log(tmp_path / "now", log), options).summary_line == "clean"


def test_missing_state_is_a_warning_if_its_deletion_may_have_been_pruned(
    earlier_audit: AuditResult, tmp_path: Path
) -> None:
    log = SimulatedShareGroups(5).run_steps(900).log
    read_to = {int(number): of["read_to"] for number, of in earlier_audit.manifest["partitions"].items()}
    late = {
        number: [each for each in records if each.log_offset > read_to[number] + 5]
        for number, records in log.items()
    }
    key = late[0][0].record.key
    late[0] = [replace(each, record=each.record) for each in late[0] if each.record.key != key]
    options = AuditOptions(
        limits=CLEAN_LIMITS, baseline=Baseline(earlier_audit.manifest, lambda number: earlier_audit.states)
    )
    found = audit_segments(write_log(tmp_path / "now", late), options).findings.to_pylist()
    doubtful = [row for row in found if row["check"] == "X3" and row["group_id"] == key.group_id]
    assert doubtful
    assert {row["severity"] for row in doubtful} == {"warning"}


def test_state_that_differs_between_source_and_target_is_found(earlier_audit: AuditResult) -> None:
    states = {row_share_partition(row): make_share_state(row) for row in finding_rows(earlier_audit)}
    from coordinator.operate.migration.fold import ComparableState

    held = {key: ComparableState.from_state(state) for key, state in states.items()}
    key = next(iter(held))
    assert find_differences(held, held) == []
    ((found, what),) = find_differences(held, {**held, key: held[key]._replace(start_offset=1)})
    assert (found, what.startswith("start offset 1, not ")) == (key, True)
    # The second comparison uses states that were rebuilt from the source and from the target.
    assert list(rewrite.find_different_states(states, states)) == []
    left = {other: state for other, state in states.items() if other != key}
    assert list(rewrite.find_different_states(states, left)) == [f"{key}: the second comparison differs"]


def test_audit_reports_offsets_outside_of_the_user_topic(earlier_audit: AuditResult) -> None:
    states = [row for row in finding_rows(earlier_audit) if row["state_batches"] and row["start_offset"] > 3]
    ends = {row_share_partition(row)[1:]: row["state_batches"][-1]["last_offset"] + 1 for row in states}
    starts = dict.fromkeys(ends, 0)
    assert list(check_offsets_in_user_topics(states, starts, ends, Limits())) == []
    place = row_share_partition(states[0])[1:]
    last = states[0]["state_batches"][-1]["last_offset"]
    for changed_starts, changed_ends, evidence in (
        (starts, {**ends, place: last}, f"a batch up to {last}"),
        (starts, {**ends, place: 1}, f"start offset {states[0]['start_offset']}, the partition ends at 1"),
        (
            {**starts, place: 1_000_000},
            ends,
            f"start offset {states[0]['start_offset']}, the partition begins",
        ),
    ):
        (found,) = check_offsets_in_user_topics(states, changed_starts, changed_ends, Limits())
        assert (found.check, found.severity.value) == ("X5", "warning")
        assert found.evidence.startswith(evidence)


def test_failed_external_check_is_reported_and_does_not_end_audit(
    earlier_audit: AuditResult, tmp_path: Path
) -> None:
    class UnreachableCheck(ExternalCheck):
        def read_before_log(self) -> None:
            raise LogUnavailable("nobody answers")

    options = AuditOptions(limits=CLEAN_LIMITS, external=[UnreachableCheck(("X2", "X5"))])
    found = audit_segments(tmp_path / "before", options)
    assert found.summary_line == "clean"
    assert (found.not_checked["X2"], found.not_checked["X5"]) == ("nobody answers", "nobody answers")
    assert found.exit_code == 0
    # If the user requested the check, the audit is not clean.
    requested = UnreachableCheck(("X1",), is_requested=True)
    found = audit_segments(tmp_path / "before", AuditOptions(limits=CLEAN_LIMITS, external=[requested]))
    assert (found.summary_line, found.exit_code) == ("clean; not checked: X1", 1)
    assert found.not_checked["X1"] == "nobody answers"
