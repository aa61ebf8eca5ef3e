"""What a map gives and takes, when the log has taken something before."""

import pytest

from coordinator.ownership.base import Replica
from coordinator.ownership.holdings import Change, Holdings
from coordinator.ownership.messages import Assignment, Setting


def assignment(*owners: int, holders: tuple[int, ...] = ()) -> Assignment:
    return Assignment(
        setting=Setting("state", len(owners)),
        replicas=(Replica("us", "us:1"), Replica("they", "they:1")),
        owners=owners,
        holders=holders or owners,
    )


@pytest.fixture
def holdings() -> Holdings:
    holdings = Holdings("us")
    assert holdings.follow(assignment(0, 0)) == Change(elected=((0, False), (1, False)))
    assert holdings.fenced(0)
    assert holdings.held == {1}
    return holdings


def test_what_the_log_took_is_elected_again_if_the_map_says_that_it_is_ours(holdings: Holdings) -> None:
    assert holdings.follow(assignment(0, 0)) == Change(elected=((0, False),))


def test_what_the_log_took_is_resigned_once_if_the_map_says_that_it_is_not(holdings: Holdings) -> None:
    assert holdings.follow(assignment(1, 0)) == Change(resigned=(0,))
    assert holdings.follow(assignment(1, 0)) == Change()


def test_a_shard_is_taken_only_once(holdings: Holdings) -> None:
    assert not holdings.fenced(0)


def test_what_was_somebody_elses_meanwhile_is_not_taken_for_what_we_hold(holdings: Holdings) -> None:
    holdings.follow(assignment(0, 0))
    came_back = holdings.follow(assignment(0, 0, holders=(0, 1)))
    assert came_back == Change(resigned=(1,), elected=((1, True),))
    assert holdings.follow(assignment(0, 0)) == Change()
