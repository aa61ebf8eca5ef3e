"""Messages between members: newer fields are ignored, and invalid messages are reported as errors."""

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cluster.ownership.base import NOBODY, Replica
from coordinator.cluster.ownership.messages import (
    AssignmentMessage,
    GroupSettings,
    MemberMetadata,
    UnreadableMessage,
    decode_assignment,
    decode_metadata,
    encode_message,
    plan_assignment,
    read_group_view,
)

SETTING = GroupSettings("state", 4)


def make_metadata(number: int, setting: GroupSettings = SETTING, **facts: object) -> MemberMetadata:
    replica = Replica(f"i{number}", f"host-{number}:9095")
    return MemberMetadata(setting=setting, replica=replica, started_ms=number, **facts)  # type: ignore[arg-type]


def plan_assignments(
    members: Mapping[str, bytes], leaders: Mapping[int, int]
) -> dict[str, AssignmentMessage]:
    """Return the decoded assignment of each member, from the plan for a group."""
    planned = plan_assignment(members, leaders).compute_assignments(9)
    return {member_id: decode_assignment(encode_message(decision)) for member_id, decision in planned.items()}


def test_metadata_is_readable_json() -> None:
    encoded = encode_message(
        make_metadata(7, owned=(1, 3), assignment_generation=2, wishes={3: "i9"}, unreached=(2,))
    )
    setting, replica = ["state", 4, 1], ["i7", "host-7:9095", "", -1, 4]
    read = [2, setting, replica, 7, True, False, [1, 3], 2, False, {"3": "i9"}, [2], 0]
    assert json.loads(encoded) == read
    assert decode_metadata(encoded).wishes == {3: "i9"}


def test_assignment_is_readable_json() -> None:
    encoded = encode_message(AssignmentMessage(generation=5, instance="i7", owned=(1, 3), handed_over=(3,)))
    assert json.loads(encoded) == [2, 5, "i7", [1, 3], [3], [], "", False]


def test_elements_missing_in_an_earlier_release_have_defaults() -> None:
    read = json.loads(encode_message(make_metadata(1, unreached=(2,), joins=3)))
    assert decode_metadata(json.dumps(read[:-2]).encode()) == make_metadata(1)


@pytest.mark.parametrize("decode", [decode_metadata, decode_assignment])
def test_message_of_another_version_is_refused_with_a_reason(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(UnreadableMessage, match="it has version 3, and this release reads version 2"):
        decode(b'[3, {"anything": 1}]')
    with pytest.raises(UnreadableMessage, match="it has no version"):
        decode(b'{"version": 1, "setting": {}}')
    with pytest.raises(UnreadableMessage):
        decode(b'[2, "x"]')


def test_shard_whose_leader_is_unreachable_is_swapped_without_a_release() -> None:
    members = {
        "a": encode_message(make_metadata(1, owned=(0, 1), unreached=(7, 99))),
        "b": encode_message(make_metadata(2, owned=(2, 3))),
    }
    first, second = plan_assignments(members, {0: 8, 1: 7, 2: 8}).values()
    assert set(first.owned) == {0, 2}
    # A member that does not reach the leader cannot release a shard there.
    assert (first.handed_over, first.unreleased) == ((2,), ())
    assert (second.handed_over, second.unreleased) == ((1,), (1,))


def test_unknown_fields_are_ignored() -> None:
    read = json.loads(encode_message(make_metadata(1)))
    read[2].append("rack a")
    read.append({"moon": {"phase": 3}})
    assert decode_metadata(json.dumps(read).encode()) == make_metadata(1)


@given(
    st.binary() | st.text().map(str.encode) | st.recursive(st.integers(), st.lists).map(repr).map(str.encode)
)
def test_random_bytes_are_unreadable(noise: bytes) -> None:
    for decode in (decode_metadata, decode_assignment):
        with pytest.raises(UnreadableMessage):
            decode(noise)


@pytest.mark.parametrize("partitions", [0, -1, 100_001, "4"])
def test_invalid_number_of_partitions_is_unreadable(partitions: object) -> None:
    read = json.loads(encode_message(make_metadata(1)))
    read[1][1] = partitions
    with pytest.raises(UnreadableMessage):
        decode_metadata(json.dumps(read).encode())


def stored_members(
    members: Mapping[str, bytes], assigned: Mapping[str, AssignmentMessage]
) -> list[tuple[bytes, bytes]]:
    """Return the member data that the group coordinator stores."""
    return [(members[member_id], encode_message(decision)) for member_id, decision in assigned.items()]


def test_owners_of_all_shards_follow_from_the_stored_messages() -> None:
    members = {
        "a": encode_message(make_metadata(1, owned=(0, 1, 2, 3))),
        "b": encode_message(make_metadata(2)),
        "c": b"?",
    }
    decided = plan_assignment(members, {})
    view = read_group_view(stored_members(members, decided.compute_assignments(9)), 9, 4)
    assert view == decided.make_view(9)
    assert [view.assignment.owner(partition) for partition in range(4)] == [
        *[make_metadata(1).replica] * 2,
        *[make_metadata(2).replica] * 2,
    ]
    assert decided.partitions_owned_by("i2") == {2, 3}
    assert [decided.is_handed_over(partition) for partition in range(4)] == [False, False, True, True]


def test_process_with_two_members_owns_its_shards_once() -> None:
    """A process whose static member is fenced by its own late JoinGroup joins again as another member.

    The group contains both members until Kafka removes the fenced one.
    """
    members = {
        "a": encode_message(make_metadata(1, owned=(0, 1, 2, 3))),
        "lost": encode_message(make_metadata(2)),
        "new": encode_message(make_metadata(2, joins=1, unreached=(7,))),
    }
    decided = plan_assignment(members, {})
    view = read_group_view(stored_members(members, decided.compute_assignments(9)), 9, 4)
    assert view == decided.make_view(9)
    assert view.unreached == {7}
    assert [replica.instance for replica in view.assignment.replicas] == ["i1", "i2"]
    assert decided.partitions_owned_by("i2") == {2, 3}
    assert not decided.doubles


def test_owners_are_known_despite_refused_or_draining_members() -> None:
    members = {
        "a": encode_message(make_metadata(1, owned=(0,))),
        "b": encode_message(make_metadata(2, GroupSettings("other", 4))),
        "c": encode_message(make_metadata(3, draining=True)),
    }
    decided = plan_assignment(members, {})
    view = read_group_view(stored_members(members, decided.compute_assignments(9)), 9, 4)
    assert view == decided.make_view(9)
    assert view.assignment.replicas == (make_metadata(1).replica, make_metadata(3).replica)


def test_assignments_of_different_generations_give_no_owners() -> None:
    members = {"a": encode_message(make_metadata(1)), "b": encode_message(make_metadata(2))}
    decided = plan_assignment(members, {})
    mixed = {"a": decided.compute_assignments(9)["a"], "b": decided.compute_assignments(8)["b"]}
    assert read_group_view(stored_members(members, mixed), 9, 4) is None


@pytest.mark.parametrize("owned", [(0,), (4,), (-1,)])
def test_contradictory_assignments_are_unreadable(owned: tuple[int, ...]) -> None:
    members = {"a": encode_message(make_metadata(1)), "b": encode_message(make_metadata(2))}
    assigned = {
        "a": AssignmentMessage(generation=9, instance="i1", owned=(0, 1, 2, 3)),
        "b": AssignmentMessage(generation=9, instance="i2", owned=owned),
    }
    with pytest.raises(UnreadableMessage):
        read_group_view(stored_members(members, assigned), 9, 4)


def test_member_with_unreadable_metadata_gets_no_shards() -> None:
    decision = plan_assignment({"a": b"?", "b": encode_message(make_metadata(2))}, {})
    assert decision.unreadable_members == 1
    assert decision.compute_assignments(9)["a"] == AssignmentMessage(generation=9)
    assert decision.replicas == (make_metadata(2).replica,)
    assert decision.partitions_owned_by("i2") == {0, 1, 2, 3}
    with pytest.raises(UnreadableMessage):
        plan_assignment({"a": b"?"}, {})


def test_settings_of_members_that_hold_shards_have_priority() -> None:
    holding = {"a": encode_message(make_metadata(1, owned=(0,)))}
    others = {f"x{n}": encode_message(make_metadata(n, GroupSettings("other", 2))) for n in (2, 3)}
    decision = plan_assignment({**holding, **others}, {})
    assert decision.setting == SETTING
    assert decision.replicas == (make_metadata(1).replica,)
    assert set(decision.refused) == {"i2", "i3"}
    assert decision.compute_assignments(9)["x2"].refused == decision.refused["i2"]
    assert decision.refused["i2"] == (
        "it keeps state in topic other of 2 partitions, layout 1, the group in topic state of 4 partitions, "
        "layout 1"
    )
    # If no member holds a shard, the settings of the majority are used.
    assert plan_assignment({"a": encode_message(make_metadata(1)), **others}, {}).setting == GroupSettings(
        "other", 2
    )


def test_another_layout_version_is_refused() -> None:
    newer = GroupSettings("state", 4, layout_version=2)
    decision = plan_assignment(
        {"a": encode_message(make_metadata(1, owned=(0,))), "b": encode_message(make_metadata(2, newer))}, {}
    )
    assert set(decision.refused) == {"i2"}


def test_no_shard_has_an_owner_if_all_members_drain() -> None:
    decision = plan_assignment({"a": encode_message(make_metadata(1, draining=True, owned=(0,)))}, {})
    assert decision.owners == (NOBODY,) * 4
    assert decision.holders == (0, NOBODY, NOBODY, NOBODY)
    assert decision.is_handed_over(0)
