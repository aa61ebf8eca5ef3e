"""The elections and resignations of shards after an assignment, also if the log has fenced a shard."""

import pytest

from coordinator.cluster.ownership.messages import AssignmentMessage
from coordinator.cluster.ownership.owned_shards import OwnedShards, OwnershipChange


def make_assignment(*owned: int, handed_over: tuple[int, ...] = ()) -> AssignmentMessage:
    return AssignmentMessage(generation=1, instance="us", owned=owned, handed_over=handed_over)


@pytest.fixture
def owned_shards() -> OwnedShards:
    owned_shards = OwnedShards()
    assert owned_shards.apply_assignment(make_assignment(0, 1)) == OwnershipChange(
        elected=((0, False), (1, False))
    )
    assert owned_shards.on_fenced(0)
    assert owned_shards.held == {1}
    return owned_shards


def test_fenced_shard_is_elected_again_if_assigned_again(owned_shards: OwnedShards) -> None:
    assert owned_shards.apply_assignment(make_assignment(0, 1)) == OwnershipChange(elected=((0, False),))


def test_fenced_shard_is_resigned_once_if_not_assigned(owned_shards: OwnedShards) -> None:
    assert owned_shards.apply_assignment(make_assignment(1)) == OwnershipChange(resigned=(0,))
    assert owned_shards.apply_assignment(make_assignment(1)) == OwnershipChange()


def test_shard_is_fenced_only_once(owned_shards: OwnedShards) -> None:
    assert not owned_shards.on_fenced(0)


def test_shard_owned_by_another_meanwhile_is_resigned_and_elected(owned_shards: OwnedShards) -> None:
    owned_shards.apply_assignment(make_assignment(0, 1))
    came_back = owned_shards.apply_assignment(make_assignment(0, 1, handed_over=(1,)))
    assert came_back == OwnershipChange(resigned=(1,), elected=((1, True),))
    assert owned_shards.apply_assignment(make_assignment(0, 1)) == OwnershipChange()


def test_elected_shard_does_not_wait_for_a_holder_that_cannot_release(owned_shards: OwnedShards) -> None:
    unreleased = AssignmentMessage(
        generation=2, instance="us", owned=(1, 2, 3), handed_over=(2, 3), unreleased=(3,)
    )
    assert owned_shards.apply_assignment(unreleased) == OwnershipChange(
        resigned=(0,), elected=((2, True), (3, False))
    )


def test_missing_assignment_resigns_all_shards(owned_shards: OwnedShards) -> None:
    assert owned_shards.apply_assignment(None) == OwnershipChange(resigned=(0, 1))
    assert owned_shards.held == frozenset()
