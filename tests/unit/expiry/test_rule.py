"""The expiry rule against a model of a group: nothing expires early, and unused state does expire."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.operate.expiry.rules import AbandonmentReason, ExpiryRules, ExpiryStatus
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
# LOOK is an observation of the group. Most changes lie between two observations, so that they are detected.
LOOK = None
passing = st.sampled_from(
    (1, GAP_MINUTES, GAP_MINUTES + 1, UNCHANGED_GAP_MINUTES, RETENTION - 1, RETENTION, 2 * RETENTION)
).map(lambda minutes: lambda world: world.advance_time(minutes))
coming_and_going = st.one_of(
    some_topics.map(lambda topics: lambda world: world.join(topics)),
    st.integers(0, 2).map(lambda number: lambda world: world.leave(number)),
    st.just(lambda world: world.leave_all()),
    st.tuples(some_topics, st.sampled_from((0, 1, GAP_MINUTES))).map(
        lambda visit: lambda world: world.join_and_leave(*visit)
    ),
)
upheavals = st.one_of(
    st.just(lambda world: world.delete_group()),
    st.booleans().map(lambda keeps: lambda world: world.restart(keeps_file=keeps)),
)
happenings_of = st.lists(
    st.one_of(
        st.tuples(passing, st.just(LOOK)),
        st.tuples(passing, st.just(LOOK)),
        st.tuples(coming_and_going, st.just(LOOK)),
        st.tuples(coming_and_going),
        st.tuples(passing),
        st.tuples(upheavals),
    ),
    max_size=25,
).map(lambda parts: [step for part in parts for step in part])


@pytest.mark.slow
@given(happenings_of, st.sets(st.integers(0, 50), max_size=5))
@settings(max_examples=400, deadline=None)
def test_state_does_not_expire_before_the_retention_time(
    happenings: list[Step | None], deaf: set[int]
) -> None:
    world = GroupModel(RULES)
    for number, happens in enumerate(happenings):
        if happens is not None:
            happens(world)
            continue
        for each in world.observe(answers=number not in deaf):
            assert each.topic is not None
            if each.status is not ExpiryStatus.DUE:
                continue
            if each.reason is AbandonmentReason.GROUP_DELETED:
                assert not world.exists
            else:
                assert not world.members
                assert world.unsubscribed_minutes(each.topic) >= RETENTION


@given(happenings_of, st.lists(st.integers(1, GAP_MINUTES), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_state_unused_for_the_retention_time_is_due(
    happenings: list[Step | None], minutes: list[int]
) -> None:
    world = GroupModel(RULES)
    for happens in happenings:
        happens(world) if happens is not None else world.observe()
    world.leave_all()
    world.observe()
    quiet_from = world.minute
    for passing in minutes:
        world.advance_time(passing)
        due = {each.topic for each in world.observe() if each.status is ExpiryStatus.DUE}
        # If an unobserved member initialised the state, the state expires later.
        if world.exists and world.minute - quiet_from >= RETENTION + UNCHANGED_GAP_MINUTES:
            assert due == set(world.initialized)


@given(happenings_of)
@settings(deadline=None)
def test_subscribed_topic_is_not_listed_as_abandoned(happenings: list[Step | None]) -> None:
    world = GroupModel(RULES)
    for happens in happenings:
        if happens is not None:
            happens(world)
        listed = {each.topic for each in world.observe()}
        assert not listed & world.subscribed_topics


def test_group_that_was_created_again_with_the_same_epoch_does_not_expire_early() -> None:
    world = GroupModel(RULES)
    world.join_and_leave(frozenset({"a"}), 0)
    world.observe()
    world.delete_group()
    world.join_and_leave(frozenset({"a"}), UNCHANGED_GAP_MINUTES)
    world.observe()
    world.advance_time(RETENTION - 1)
    assert [each.status for each in world.observe()] == [ExpiryStatus.LATER]
