"""The rule against a model of a group: nothing expires early, whatever happens; what is quiet does expire."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.expiry.decide import Reason, Rules, Status
from tests.unit.expiry.world import GAP_MINUTES, TOPICS, World

RETENTION = 100
RULES = Rules(retention_minutes=RETENTION, grace_minutes=60)

Step = Callable[[World], object]

some_topics = st.frozensets(st.sampled_from(TOPICS), min_size=1)
steps = st.one_of(
    st.integers(1, 2 * RETENTION).map(lambda minutes: lambda world: world.pass_time(minutes)),
    st.integers(1, GAP_MINUTES).map(lambda minutes: lambda world: world.pass_time(minutes)),
    some_topics.map(lambda topics: lambda world: world.join(topics)),
    st.just(lambda world: world.leave()),
    st.just(lambda world: world.delete_group()),
    st.booleans().map(lambda keeps: lambda world: world.restart(keeps_file=keeps)),
    st.just(None),
    st.just(None),
)


@given(st.lists(steps, max_size=60), st.lists(st.booleans(), min_size=60, max_size=60))
@settings(max_examples=400)
def test_nothing_expires_before_nobody_has_wanted_it_for_the_retention_time(
    happenings: list[Step | None], answers: list[bool]
) -> None:
    world = World(RULES)
    for number, happens in enumerate(happenings):
        if happens is not None:
            happens(world)
            continue
        for each in world.look(answers=answers[number] or number % 4 > 0):
            assert each.topic is not None
            if each.status is not Status.DUE:
                continue
            if each.reason is Reason.GROUP_DELETED:
                assert not world.exists
            else:
                assert not world.members
                assert world.unwanted_minutes(each.topic) >= RETENTION


@given(st.lists(steps, max_size=40), st.lists(st.integers(1, GAP_MINUTES), min_size=1, max_size=20))
@settings(max_examples=150)
def test_what_nobody_has_wanted_for_long_enough_is_due(
    happenings: list[Step | None], minutes: list[int]
) -> None:
    world = World(RULES)
    for happens in happenings:
        happens(world) if happens is not None else world.look()
    while world.members:
        world.leave()
    world.look()
    quiet_from = world.minute
    for passing in minutes:
        world.pass_time(passing)
        due = {each.topic for each in world.look() if each.status is Status.DUE}
        if world.exists and world.minute - quiet_from >= RETENTION:
            assert due == set(world.initialized)


@given(st.lists(steps, max_size=40))
def test_what_is_subscribed_to_is_not_even_listed(happenings: list[Step | None]) -> None:
    world = World(RULES)
    for happens in happenings:
        if happens is not None:
            happens(world)
        listed = {each.topic for each in world.look()}
        assert not listed & world.subscribed
