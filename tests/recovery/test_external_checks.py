"""Test that each audit check that needs more than the log detects its fault.

Checks with a real cluster and live coordinators are in test_jobs_on_kafka.py and
test_jobs_on_coordinators.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from coordinator.errors import LogUnavailable
from coordinator.operate.migration.plan import find_differences
from coordinator.recovery import rewrite
from coordinator.recovery.audit import AuditResult, ExternalFindings, LogContents, Options
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.cluster import check_configs, check_data, check_groups
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.deduplication import identity_of_row, is_in_place, key_of
from coordinator.recovery.diff import VisibleState, compared
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.external_checks import (
    LiveCheck,
    OptionalCheck,
    SampleCheck,
    choose_sample,
    differing_fields,
)
from coordinator.recovery.live_coordinator import LiveState
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import RebuildResult, StoredStates, rebuild
from coordinator.recovery.sources.base import Cut
from coordinator.recovery.sources.segments import SegmentSource
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_records import SharePartitionKey, StateRecord, encode_record, parse_topic_id
from tests.recovery.injected_faults import CLEAN_LIMITS
from tests.recovery.logs_on_disk import TOPIC, batches_of, write_segments
from tests.recovery.share_groups import (
    STATE_PARTITIONS,
    Groups,
    Log,
    audit_segments,
    left_elsewhere,
    renumbered,
    write_log,
)

GOOD = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
# The checks whose faults are in this file; test_audit.py has the faults of all other checks.
FOUND_HERE = {"P5", "X1", "X2", "X3", "X4", "X5", "X6"}


def clean() -> Log:
    return Groups(5).work(300).log


@pytest.fixture
def before(tmp_path: Path) -> AuditResult:
    return audit_segments(write_log(tmp_path / "before", clean()), Options(limits=CLEAN_LIMITS))


def rows(run: AuditResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.states.to_pylist()
    return found


def told(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
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
def test_p5_topic_config_that_loses_records_is_found(changed: Mapping[str, str], severity: str) -> None:
    assert list(check_configs(GOOD, 50, 50)) == []
    ((check, found, evidence),) = told(list(check_configs({**GOOD, **changed}, 50, None)))
    assert (check, found) == ("P5", severity)
    assert next(iter(changed)) in evidence


def test_p5_different_partition_count_is_found() -> None:
    assert told(list(check_configs(GOOD, 50, 49))) == [
        ("P5", "critical", "the topic has 50 partitions, expected are 49")
    ]


def answer_of(row: Mapping[str, Any], **changed: Any) -> LiveState:
    """Return the answer of a coordinator with this state."""
    from coordinator.recovery.rewrite import state_of

    state = state_of(row)
    said = {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "complete_count": state.delivery_complete_count,
        "read_state_epoch": state.state_epoch,
        "read_start_offset": state.start_offset,
        "batches": state.batches,
    }
    return LiveState(**{**said, **changed})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"start_offset": 3, "read_start_offset": 3}, "start offset 3, in the log "),
        ({"leader_epoch": 77}, "leader epoch 77, in the log "),
        ({"complete_count": 1_000}, "complete count 1000, in the log "),
        ({"batches": b""}, "0 state batches, in the log "),
        ({"exists": False}, "the coordinator has no state of it"),
    ],
)
def test_x1_different_answer_is_found(
    changed: Mapping[str, Any],
    what: str,
    before: AuditResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = rows(before)
    wrong = next(row for row in states if row["state_batches"])

    async def ask(live: str, leader_epochs: Mapping[SharePartitionKey, int], advance: Any) -> Any:
        return {key_of(row): answer_of(row, **(changed if row is wrong else {})) for row in states}

    monkeypatch.setattr("coordinator.recovery.diff.read_states", ask)
    source = SegmentSource(str(tmp_path / "before"))
    run = RebuildResult(before.stored, before.ranges, {})
    found = compared(source, run, "nobody:1", phases=Phases())
    assert [each.key for each in found.different] == [key_of(wrong)]
    assert found.different[0].what.startswith(what)
    assert isinstance(found.different[0].in_log, VisibleState)
    assert (found.asked, found.equal) == (len(states), len(states) - 1)


@pytest.mark.parametrize(
    ("pruned_to", "answered", "counts"),
    [
        (0, 10, (1, 0, 0)),
        (0, 77, (0, 1, 0)),
        # After the snapshot at 0 was pruned, the state before the snapshot at 12 is unknown.
        (5, 10, (0, 0, 1)),
        (12, 10, (0, 0, 1)),
        (5, 12, (1, 0, 0)),
        (12, 12, (1, 0, 0)),
    ],
)
def test_x1_state_pruned_during_comparison_is_unknown(
    pruned_to: int,
    answered: int,
    counts: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = SharePartitionKey("group", bytes(16), 1)
    values: list[ShareSnapshotValue | ShareUpdateValue] = [ShareSnapshotValue(0, 0, 1, 0, 1, 1, b"", -1, -1)]
    values += [ShareUpdateValue(0, 1, offset, b"", -1) for offset in range(1, 12)]
    values.append(ShareSnapshotValue(1, 0, 1, 12, 1, 1, b"", -1, -1))
    batches = batches_of([encode_record(StateRecord(key, value)) for value in values], size=1)
    write_segments(tmp_path / f"{TOPIC}-0", batches[:10])
    source = SegmentSource(str(tmp_path))
    run = rebuild(LocalEngine(1), source)

    async def ask(live: str, leader_epochs: Mapping[SharePartitionKey, int], advance: Any) -> Any:
        write_segments(tmp_path / f"{TOPIC}-0", batches)
        (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {pruned_to}\n")
        (row,) = run.states.to_pylist()
        return {key: answer_of(row, start_offset=answered, read_start_offset=answered)}

    monkeypatch.setattr("coordinator.recovery.diff.read_states", ask)
    found = compared(source, run, "nobody:1", phases=Phases())
    assert (found.moved, len(found.different), len(found.unknown)) == counts
    assert found.equal == 0


def test_state_in_two_partitions_is_compared_with_correct_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(5).work(300)
    key = left_elsewhere(groups.log, groups.leaders)
    folder = write_log(tmp_path / "log", groups.log)
    source = SegmentSource(str(folder))
    first = audit_segments(folder)
    assert sum(key_of(row) == key for row in rows(first)) == 2
    placed = {key_of(row): row for row in rows(first) if is_in_place(row, STATE_PARTITIONS)}

    async def ask(live: str, leader_epochs: Mapping[SharePartitionKey, int], advance: Any) -> Any:
        return {each: answer_of(placed[each]) for each in leader_epochs}

    monkeypatch.setattr("coordinator.recovery.diff.read_states", ask)
    again = audit_segments(
        folder,
        Options(
            baseline=Baseline(first.manifest, lambda: first.states),
            external=[LiveCheck(source, "nobody:1"), SampleCheck(source, 100, Cut())],
        ),
    )
    assert "R8" in again.manifest["checks"]
    assert {"X1", "X3", "X6"}.isdisjoint([*again.manifest["checks"], *again.not_checked])


def test_state_listed_by_coordinator_but_missing_in_log_differs(
    before: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SegmentSource(str(tmp_path / "before"))
    run = RebuildResult(before.stored, before.ranges, before.manifest)
    states = {key_of(row): row for row in rows(before)}
    lost = SharePartitionKey("lost", bytes(16), 3)
    gone = SharePartitionKey("gone", bytes(16), 3)

    async def ask(live: object, leader_epochs: Any, advance: Any) -> dict[SharePartitionKey, LiveState]:
        answers = {key: answer_of(row) for key, row in states.items()}
        return {**answers, lost: LiveState(start_offset=5), gone: LiveState(exists=False)}

    monkeypatch.setattr("coordinator.recovery.diff.read_states", ask)
    listed = [lost, gone, *states]
    found = compared(source, run, "live", phases=Phases(), listed=listed, state_partitions=3)
    assert [(each.key, each.what) for each in found.different] == [
        (lost, "the coordinator has state of it, the log has none")
    ]
    assert found.asked == len(states) + 2


def test_x2_states_and_groups_are_compared_in_both_directions(before: AuditResult) -> None:
    states = rows(before)
    shown = {(row["group_id"], parse_topic_id(row["topic_id"]), row["partition"]) for row in states}
    groups = {row["group_id"] for row in states}
    topics = {topic_id: "a name" for _, topic_id, _ in shown}
    assert list(check_groups(states, shown, {}, groups, topics)) == []
    lost, *left = states
    (missing,) = check_groups(left, shown, {}, groups, topics)
    assert (missing.check, missing.severity.value, missing.share_partition) == (
        *("X2", "critical"),
        identity_of_row(lost),
    )
    # The missing share-partition was deleted in between.
    assert list(check_groups(left, shown, {identity_of_row(lost): 9}, groups, topics)) == []
    gone = parse_topic_id(lost["topic_id"])
    found = told(
        list(check_groups(states, shown, {}, groups, {t: n for t, n in topics.items() if t != gone}))
    )
    assert found == [("X2", "warning", "its topic does not exist, or Describe is not allowed")]
    fewer = groups - {lost["group_id"]}
    found = told(list(check_groups(states, shown, {}, fewer, topics)))
    assert set(found) == {("X2", "warning", "its group does not exist, or Describe is not allowed")}


def vanish(log: Log) -> None:
    key = log[0][0].record.key
    for number, records in log.items():
        log[number] = [each for each in records if each.record.key != key]
    log.update(renumbered(log))


def restore_an_old_copy(log: Log) -> None:
    for number, records in log.items():
        log[number] = records[: len(records) // 2]


@pytest.mark.parametrize("spoil", [vanish, restore_an_old_copy])
def test_x3_state_of_earlier_audit_is_missing(
    spoil: Callable[[Log], None], before: AuditResult, tmp_path: Path
) -> None:
    log = clean()
    spoil(log)
    folder = write_log(tmp_path / "now", log)
    options = Options(limits=CLEAN_LIMITS, baseline=Baseline(before.manifest, lambda: before.states))
    found = audit_segments(folder, options)
    assert {(row["check"], row["severity"]) for row in found.findings.to_pylist()} == {("X3", "critical")}
    assert audit_segments(folder, Options(limits=CLEAN_LIMITS)).verdict == "clean"


def test_x3_deleted_or_updated_state_is_not_missing(before: AuditResult, tmp_path: Path) -> None:
    log = Groups(5).work(600).log
    options = Options(limits=CLEAN_LIMITS, baseline=Baseline(before.manifest, lambda: before.states))
    assert audit_segments(write_log(tmp_path / "now", log), options).verdict == "clean"


def test_x3_is_doubtful_if_deletion_may_have_been_pruned(before: AuditResult, tmp_path: Path) -> None:
    log = Groups(5).work(900).log
    read_to = {int(number): of["read_to"] for number, of in before.manifest["partitions"].items()}
    late = {
        number: [each for each in records if each.log_offset > read_to[number] + 5]
        for number, records in log.items()
    }
    key = late[0][0].record.key
    late[0] = [replace(each, record=each.record) for each in late[0] if each.record.key != key]
    options = Options(limits=CLEAN_LIMITS, baseline=Baseline(before.manifest, lambda: before.states))
    found = audit_segments(write_log(tmp_path / "now", late), options).findings.to_pylist()
    doubtful = [row for row in found if row["check"] == "X3" and row["group_id"] == key.group_id]
    assert doubtful
    assert {row["severity"] for row in doubtful} == {"warning"}


def test_x4_different_target_is_found(before: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {key_of(row): rewrite.state_of(row) for row in rows(before)}
    from coordinator.operate.migration.fold import ComparableState

    held = {key: ComparableState.from_state(state) for key, state in states.items()}
    key = next(iter(held))
    assert find_differences(held, held) == []
    ((found, what),) = find_differences(held, {**held, key: held[key]._replace(start_offset=1)})
    assert (found, what.startswith("start offset 1, not ")) == (key, True)
    # The second comparison uses columns that were rebuilt from both sides.
    changed = before.states.slice(1)
    run = RebuildResult(
        StoredStates(lambda: changed), before.ranges, {"partitions": {"0": {}, "1": {}, "2": {}}}
    )
    monkeypatch.setattr(rewrite, "rebuild", lambda *args, **more: run)
    monkeypatch.setattr(rewrite, "open_source", lambda text, **access: None)
    monkeypatch.setattr(rewrite, "make_topic_access", lambda config: {})
    whole = RebuildResult(before.stored, before.ranges, before.manifest)
    unlike_there = rewrite._verify_rewrite(None, None, whole, None, 3, Phases())  # type: ignore[arg-type]
    assert unlike_there == (str(key_of(rows(before)[0])),)


def test_x5_state_beyond_data_is_found(before: AuditResult) -> None:
    states = [row for row in rows(before) if row["state_batches"] and row["start_offset"] > 3]
    ends = {key_of(row)[1:]: row["state_batches"][-1]["last_offset"] + 1 for row in states}
    starts = dict.fromkeys(ends, 0)
    assert list(check_data(states, starts, ends, Limits())) == []
    place = key_of(states[0])[1:]
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
        (found,) = check_data(states, changed_starts, changed_ends, Limits())
        assert (found.check, found.severity.value) == ("X5", "warning")
        assert found.evidence.startswith(evidence)


def test_x6_sample_with_different_fold_is_found(before: AuditResult, tmp_path: Path) -> None:
    source = SegmentSource(str(tmp_path / "before"))
    assert len(choose_sample(before.states, 4)) >= 4
    options = Options(limits=CLEAN_LIMITS, external=[SampleCheck(source, 100, Cut())])
    assert audit_segments(tmp_path / "before", options).verdict == "clean"
    wrong = rows(before)
    wrong[0]["start_offset"] += 1
    states = pa.Table.from_pylist(wrong, before.states.schema)

    class Log:
        plan = source.plan(Cut())

    inside = LogContents(StoredStates(lambda: states), Log(), before.ranges)  # type: ignore[arg-type]
    external = SampleCheck(source, 100, Cut()).check(inside, Phases())
    ((check, severity, evidence),) = told(list(external.findings))
    assert (check, severity) == ("X6", "critical")
    assert evidence.startswith(f"start offset {wrong[0]['start_offset']} and ")
    assert differing_fields(wrong[0], None) == "the fold record by record finds no state"


def test_failed_external_check_is_reported_and_does_not_end_audit(
    before: AuditResult, tmp_path: Path
) -> None:
    class Unreachable:
        def begin(self) -> None:
            raise LogUnavailable("nobody answers")

        def check(self, inside: LogContents, phases: Phases) -> ExternalFindings:
            raise AssertionError

    options = Options(limits=CLEAN_LIMITS, external=[OptionalCheck(Unreachable(), ("X2", "X5"))])
    found = audit_segments(tmp_path / "before", options)
    assert found.verdict == "clean"
    assert (found.not_checked["X2"], found.not_checked["X5"]) == ("nobody answers", "nobody answers")
    assert found.exit_code == 0
    # If the user requested the check, the audit reports it as not checked.
    asked = [OptionalCheck(Unreachable(), ("X1",), asked_for=True)]
    found = audit_segments(tmp_path / "before", Options(limits=CLEAN_LIMITS, external=asked))
    assert (found.verdict, found.exit_code) == ("clean; not checked: X1", 1)
    assert found.not_checked["X1"] == "nobody answers"
