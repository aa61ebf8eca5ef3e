"""The planned effect of an offset change, compared with a count of single records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli.offsets_plan import (
    ResetEffect,
    ResetTarget,
    TopicScope,
    check_group_is_changeable,
    compute_effect,
)
from coordinator.cluster.kafka.share_group_types import GroupDescription
from coordinator.errors import ConfigError, CoordinatorError, OperationFailed
from protocol.errors import ErrorCode

NAMES = ("AVAILABLE", "ACQUIRED", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED")


def make_state(start: int, records: dict[int, str]) -> dict[str, object]:
    """Return a state in the format of the HTTP API, with one offset range for each offset."""
    runs = [
        {"first_offset": offset, "last_offset": offset, "records": 1, "delivery_state": name}
        for offset, name in sorted(records.items())
    ]
    return {"start_offset": start, "in_flight": {"items": runs}, "in_flight_records": len(runs)}


@given(
    st.integers(0, 20),
    st.dictionaries(st.integers(0, 30), st.sampled_from(NAMES)),
    st.integers(0, 60),
)
def test_effect_equals_count_of_single_records(start: int, above: dict[int, str], new: int) -> None:
    records = {start + offset: name for offset, name in above.items()}
    done = set(range(start)) | {
        offset for offset, name in records.items() if name in ("ACKNOWLEDGED", "ARCHIVED")
    }
    redelivered = sum(offset >= new for offset in done)
    skipped = sum(offset not in done for offset in range(new))
    assert compute_effect(make_state(start, records), new) == ResetEffect(len(records), redelivered, skipped)


def test_effect_splits_offset_ranges_at_the_new_offset() -> None:
    run = {"first_offset": 100, "last_offset": 199, "records": 100, "delivery_state": "ACKNOWLEDGED"}
    state = {"start_offset": 50, "in_flight": {"items": [run]}, "in_flight_records": 100}
    assert compute_effect(state, 130) == ResetEffect(100, 70, 50)
    assert compute_effect(state, 0) == ResetEffect(100, 150, 0)
    assert compute_effect(state, 500) == ResetEffect(100, 0, 350)
    assert compute_effect({**state, "start_offset": -1}, 10) == ResetEffect(0, 0, 0)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2026-11-21T13:00:00.500", 1795266000500),
        ("2026-11-21T14:00:00.500+01:00", 1795266000500),
        ("2026-11-21", 1795219200000),
    ],
)
def test_time_without_a_zone_is_utc(text: str, time_ms: int) -> None:
    target = ResetTarget.parse(earliest=False, latest=False, moment=text, offset=None)
    assert target == ResetTarget("time", time_ms)


def test_reset_requires_exactly_one_target() -> None:
    assert ResetTarget.parse(earliest=True, latest=False, moment=None, offset=None) == ResetTarget("earliest")
    assert ResetTarget.parse(earliest=False, latest=False, moment=None, offset=0) == ResetTarget("offset", 0)
    for earliest, offset in ((True, 3), (False, None)):
        with pytest.raises(ConfigError, match="given one of --to-earliest, --to-latest"):
            ResetTarget.parse(earliest=earliest, latest=False, moment=None, offset=offset)
    with pytest.raises(ConfigError, match="a time as 2026"):
        ResetTarget.parse(earliest=False, latest=False, moment="yesterday", offset=None)


def test_topics_are_parsed_as_by_kafkas_tool() -> None:
    given = TopicScope.parse(["a", "b:0,12"], all_topics=False, partitions_allowed=True)
    assert given.topics == {"a": None, "b": [0, 12]}
    assert TopicScope.parse([], all_topics=True, partitions_allowed=True).topics == {}
    for topics in (["a", "a:1"], ["a:x"], ["a:1,"], [":1"]):
        with pytest.raises(ConfigError, match="TOPIC or TOPIC:0,1"):
            TopicScope.parse(topics, all_topics=False, partitions_allowed=True)
    with pytest.raises(ConfigError, match="of whole topics"):
        TopicScope.parse(["a:1"], all_topics=False, partitions_allowed=False)
    for topics, all_topics in ((["a"], True), ([], False)):
        with pytest.raises(ConfigError, match="--topic, once or more often, or --all-topics"):
            TopicScope.parse(topics, all_topics=all_topics, partitions_allowed=True)


def test_group_must_be_empty_for_an_offset_change() -> None:
    check_group_is_changeable("g", GroupDescription(0, state="Empty"), may_be_made=False)
    with pytest.raises(
        OperationFailed, match=r"group 'g' is Stable with 2 members, .* Stop them, wait until"
    ):
        check_group_is_changeable("g", GroupDescription(0, state="Stable", members=2), may_be_made=True)
    disconnected = GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")
    check_group_is_changeable("g", disconnected, may_be_made=True)
    with pytest.raises(OperationFailed, match="Kafka has no share group 'g'"):
        check_group_is_changeable("g", disconnected, may_be_made=False)
    with pytest.raises(
        CoordinatorError, match="group 'g' cannot be described: COORDINATOR_NOT_AVAILABLE lost"
    ):
        check_group_is_changeable("g", GroupDescription(15, "lost"), may_be_made=True)
