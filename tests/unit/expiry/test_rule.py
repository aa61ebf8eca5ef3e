"""Compare the expiry rule with a model of a share group: no state expires early, and unused state expires."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.operate.expiry.rules import AbandonmentReason, ExpiryRules, ExpiryStatus
from tests.property.example_settings import example_settings
from tests.unit.expiry.group_model import (
    GAP_MINUTES,
    MINUTE_MS,
    TOPICS,
    UNCHANGED_GAP_MINUTES,
    GroupModel,
)

RETENTION = 100
RULES = ExpiryRules(retention_minutes=RETENTION, grace_minutes=60, gap_ms=UNCHANGED_GAP_MINUTES * MINUTE_MS)

Step = Callable[[GroupModel], object]

some_topics = st.frozensets(st.sampled_from(TOPICS), min_size=1, max_size=2)
# OBSERVATION stands for a step that observes the group. An OBSERVATION follows about half of the other steps.
OBSERVATION = None
time_steps = st.sampled_from(
    (1, GAP_MINUTES, GAP_MINUTES + 1, UNCHANGED_GAP_MINUTES, RETENTION - 1, RETENTION, 2 * RETENTION)
).map(lambda minutes: lambda model: model.advance_time(minutes))
membership_changes = st.one_of(
    some_topics.map(lambda topics: lambda model: model.join(topics)),
    st.integers(0, 2).map(lambda number: lambda model: model.leave(number)),
    st.just(lambda model: model.leave_all()),
    st.tuples(some_topics, st.sampled_from((0, 1, GAP_MINUTES))).map(
        lambda visit: lambda model: model.join_and_leave(*visit)
    ),
)
deletions_and_restarts = st.one_of(
    st.just(lambda model: model.delete_group()),
    st.booleans().map(lambda keeps: lambda model: model.restart(keeps_file=keeps)),
)
event_lists = st.lists(
    st.one_of(
        st.tuples(time_steps, st.just(OBSERVATION)),
        st.tuples(time_steps, st.just(OBSERVATION)),
        st.tuples(membership_changes, st.just(OBSERVATION)),
        st.tuples(membership_changes),
        st.tuples(time_steps),
        st.tuples(deletions_and_restarts),
    ),
    max_size=25,
).map(lambda parts: [step for part in parts for step in part])


@pytest.mark.slow
@given(event_lists, st.sets(st.integers(0, 50), max_size=5))
@example_settings(400)
def test_state_does_not_expire_before_the_retention_time(
    events: list[Step | None], unanswered: set[int]
) -> None:
    model = GroupModel(RULES)
    for number, event in enumerate(events):
        if event is not None:
            event(model)
            continue
        for each in model.observe(answers=number not in unanswered):
            assert each.topic is not None
            if each.status is not ExpiryStatus.DUE:
                continue
            if each.reason is AbandonmentReason.GROUP_DELETED:
                assert not model.exists
            else:
                assert not model.members
                assert model.unsubscribed_minutes(each.topic) >= RETENTION


@given(event_lists, st.lists(st.integers(1, GAP_MINUTES), min_size=1, max_size=20))
@example_settings(150)
def test_state_unused_for_the_retention_time_is_due(events: list[Step | None], minutes: list[int]) -> None:
    model = GroupModel(RULES)
    for event in events:
        event(model) if event is not None else model.observe()
    model.leave_all()
    model.observe()
    quiet_from = model.minute
    for step in minutes:
        model.advance_time(step)
        due = {each.topic for each in model.observe() if each.status is ExpiryStatus.DUE}
        # If an unobserved member initialised the state, the state expires later.
        if model.exists and model.minute - quiet_from >= RETENTION + UNCHANGED_GAP_MINUTES:
            assert due == set(model.initialized)


@given(event_lists)
def test_subscribed_topic_is_not_listed_as_abandoned(events: list[Step | None]) -> None:
    model = GroupModel(RULES)
    for event in events:
        if event is not None:
            event(model)
        listed = {each.topic for each in model.observe()}
        assert not listed & model.subscribed_topics


def test_group_created_again_with_the_same_group_epoch_does_not_expire_early() -> None:
    model = GroupModel(RULES)
    model.join_and_leave(frozenset({"a"}), 0)
    model.observe()
    model.delete_group()
    model.join_and_leave(frozenset({"a"}), UNCHANGED_GAP_MINUTES)
    model.observe()
    model.advance_time(RETENTION - 1)
    assert [each.status for each in model.observe()] == [ExpiryStatus.LATER]
