"""What members tell each other: it survives newer fields, and no nonsense splits the group in silence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ownership.base import NOBODY, Replica
from coordinator.ownership.messages import (
    Metadata,
    Setting,
    Unreadable,
    decode_assignment,
    decode_metadata,
    encode,
    plan,
)

SETTING = Setting("state", 4)


def metadata(number: int, setting: Setting = SETTING, **facts: object) -> Metadata:
    replica = Replica(f"i{number}", f"host-{number}:9095")
    return Metadata(setting=setting, replica=replica, started_ms=number, **facts)  # type: ignore[arg-type]


def test_metadata_is_json_that_people_can_read() -> None:
    told = json.loads(encode(metadata(7, owned=(1, 3), claim_generation=2, wishes={3: "i9"}, unreached=(2,))))
    assert told == {
        "version": 1,
        "setting": {"state_topic": "state", "state_partitions": 4, "layout_version": 1},
        "replica": {
            "instance": "i7",
            "wire": "host-7:9095",
            "http": "",
            "broker_id": -1,
            "connections": 4,
        },
        "started_ms": 7,
        "ready": True,
        "draining": False,
        "owned": [1, 3],
        "claim_generation": 2,
        "claim_fresh": False,
        "wishes": {"3": "i9"},
        "unreached": [2],
        "joins": 0,
    }
    assert decode_metadata(json.dumps(told).encode()).wishes == {3: "i9"}


def test_a_member_of_a_release_before_reaches_every_broker() -> None:
    told = json.loads(encode(metadata(1, unreached=(2,))))
    assert decode_metadata(json.dumps(told).encode()).claimant().unreached == (2,)
    del told["unreached"]
    assert decode_metadata(json.dumps(told).encode()).claimant().unreached == ()


def test_the_plan_goes_by_who_reaches_what() -> None:
    members = {
        "a": encode(metadata(1, owned=(0, 1), unreached=(1, 99))),
        "b": encode(metadata(2, owned=(2, 3))),
    }
    assignment = decode_assignment(encode(plan(members, {})))
    assert assignment.owned_by("i1") == {0, 2}
    # Who does not reach the leader cannot release a shard there.
    assert [assignment.handed_over(partition) for partition in range(4)] == [False, True, True, False]
    assert [assignment.release_expected(partition) for partition in range(4)] == [False, False, True, False]


def test_fields_that_are_not_known_are_passed_over() -> None:
    told = json.loads(encode(metadata(1)))
    told["replica"]["rack"] = "a"
    told["moon"] = {"phase": 3}
    assert decode_metadata(json.dumps(told).encode()) == metadata(1)


@given(
    st.binary() | st.text().map(str.encode) | st.recursive(st.integers(), st.lists).map(repr).map(str.encode)
)
def test_noise_is_unreadable(noise: bytes) -> None:
    for decode in (decode_metadata, decode_assignment):
        with pytest.raises(Unreadable):
            decode(noise)


@pytest.mark.parametrize("partitions", [0, -1, 100_001, "4"])
def test_a_setting_that_cannot_be_is_unreadable(partitions: object) -> None:
    told = json.loads(encode(metadata(1)))
    told["setting"]["state_partitions"] = partitions
    with pytest.raises(Unreadable):
        decode_metadata(json.dumps(told).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"owners": [0, 0, 0]},
        {"owners": [0, 0, 0, 1]},
        {"owners": [0, 0, 0, -2]},
        {"holders": []},
    ],
)
def test_an_assignment_that_contradicts_itself_is_unreadable(wrong: dict[str, object]) -> None:
    assignment = json.loads(encode(plan({"m": encode(metadata(1))}, {})))
    with pytest.raises(Unreadable):
        decode_assignment(json.dumps({**assignment, **wrong}).encode())


def test_the_map_names_replicas() -> None:
    members = {"a": encode(metadata(1, owned=(0, 1, 2, 3))), "b": encode(metadata(2))}
    assignment = decode_assignment(encode(plan(members, {})))
    owner_map = assignment.owner_map(9)
    assert owner_map.generation == 9
    assert [owner_map.owner(partition) for partition in range(4)] == [
        *[metadata(1).replica] * 2,
        *[metadata(2).replica] * 2,
    ]
    assert assignment.owned_by("i2") == {2, 3}
    assert [assignment.handed_over(partition) for partition in range(4)] == [False, False, True, True]


def test_a_member_that_cannot_be_read_gets_nothing() -> None:
    assignment = plan({"a": b"?", "b": encode(metadata(2))}, {})
    assert assignment.unread == 1
    assert assignment.replicas == (metadata(2).replica,)
    assert assignment.owned_by("i2") == {0, 1, 2, 3}
    with pytest.raises(Unreadable):
        plan({"a": b"?"}, {})


def test_the_setting_of_those_that_hold_shards_counts() -> None:
    holding = {"a": encode(metadata(1, owned=(0,)))}
    others = {f"x{n}": encode(metadata(n, Setting("other", 2))) for n in (2, 3)}
    assignment = plan({**holding, **others}, {})
    assert assignment.setting == SETTING
    assert assignment.replicas == (metadata(1).replica,)
    assert set(assignment.refused) == {"i2", "i3"}
    assert assignment.refused["i2"] == (
        "it keeps state in topic other of 2 partitions, layout 1, the group in topic state of 4 partitions, "
        "layout 1"
    )
    # Where nobody holds anything, most members count.
    assert plan({"a": encode(metadata(1)), **others}, {}).setting == Setting("other", 2)


def test_another_layout_is_another_setting() -> None:
    newer = Setting("state", 4, layout_version=2)
    assignment = plan({"a": encode(metadata(1, owned=(0,))), "b": encode(metadata(2, newer))}, {})
    assert set(assignment.refused) == {"i2"}


def test_if_all_drain_the_map_is_empty() -> None:
    assignment = plan({"a": encode(metadata(1, draining=True, owned=(0,)))}, {})
    assert assignment.owners == (NOBODY,) * 4
    assert assignment.holders == (0, NOBODY, NOBODY, NOBODY)
    assert assignment.handed_over(0)
