"""What an assignment gives and takes, when the log has taken something before."""

import pytest

from coordinator.ownership.holdings import Change, Holdings
from coordinator.ownership.messages import Assignment


def assignment(*owned: int, handed_over: tuple[int, ...] = ()) -> Assignment:
    return Assignment(generation=1, instance="us", owned=owned, handed_over=handed_over)


@pytest.fixture
def holdings() -> Holdings:
    holdings = Holdings()
    assert holdings.follow(assignment(0, 1)) == Change(elected=((0, False), (1, False)))
    assert holdings.fenced(0)
    assert holdings.held == {1}
    return holdings


def test_what_the_log_took_is_elected_again_if_it_is_assigned_again(holdings: Holdings) -> None:
    assert holdings.follow(assignment(0, 1)) == Change(elected=((0, False),))


def test_what_the_log_took_is_resigned_once_if_it_is_not_assigned(holdings: Holdings) -> None:
    assert holdings.follow(assignment(1)) == Change(resigned=(0,))
    assert holdings.follow(assignment(1)) == Change()


def test_a_shard_is_taken_only_once(holdings: Holdings) -> None:
    assert not holdings.fenced(0)


def test_what_was_somebody_elses_meanwhile_is_not_taken_for_what_we_hold(holdings: Holdings) -> None:
    holdings.follow(assignment(0, 1))
    came_back = holdings.follow(assignment(0, 1, handed_over=(1,)))
    assert came_back == Change(resigned=(1,), elected=((1, True),))
    assert holdings.follow(assignment(0, 1)) == Change()


def test_a_holder_that_cannot_release_a_shard_is_not_waited_for(holdings: Holdings) -> None:
    unreleased = Assignment(generation=2, instance="us", owned=(1, 2, 3), handed_over=(2, 3), unreleased=(3,))
    assert holdings.follow(unreleased) == Change(resigned=(0,), elected=((2, True), (3, False)))


def test_no_assignment_takes_all_shards_away(holdings: Holdings) -> None:
    assert holdings.follow(None) == Change(resigned=(0, 1))
    assert holdings.held == frozenset()
