"""One group member without its tasks: it reads owners, drains, and places shards as the group leader."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec import structs

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.cluster.ownership.base import Replica
from coordinator.cluster.ownership.group_member import GroupMember
from coordinator.cluster.ownership.join_errors import JoinFailure
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import (
    AssignmentMessage,
    GroupSettings,
    decode_metadata,
    encode_message,
)
from protocol.errors import ErrorCode
from tests.simulation.loop import run
from tests.unit.ownership.replicas import RecordingListener

pytestmark = pytest.mark.run_with(function=run)

INSTANCE = "instance"
LIMITS = GroupLimits(locality_interval_s=1.0)
ALL_SHARDS = AssignmentMessage(generation=1, instance=INSTANCE, owned=(0, 1))
REFUSED = AssignmentMessage(generation=1, instance=INSTANCE, refused="another topic")


class CountingGroupClient:
    """A group client that knows the partition leaders, and counts the requests for them."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.requests = 0

    async def leaders_by_partition(self) -> Mapping[int, int]:
        self.requests += 1
        return self.leaders


def make_member(client: CountingGroupClient | None = None) -> GroupMember:
    lease = Lease(10.0, lambda: 0.0)
    lease.renew(0.0)

    def run_calls(calls: Sequence[Any]) -> None:
        for call in calls:
            call()

    return GroupMember(
        cast(Any, client or CountingGroupClient()),
        RecordingListener(),
        replica=Replica(INSTANCE, "replica:9095", broker_id=1),
        setting=GroupSettings("state", 2),
        group_id="group",
        started_ms=1,
        limits=LIMITS,
        lease=lease,
        monotonic=lambda: 0.0,
        tell=run_calls,
    )


async def lead_generation(member: GroupMember, generation: int, *other_metadata: bytes) -> None:
    """Compute the assignments of a generation as the group leader, and adopt the leader's own assignment."""
    member.membership.leads = True
    members = {f"other {number}": each for number, each in enumerate(other_metadata)}
    assignments = await member.compute_assignments(generation, {**members, "me": member.encode_metadata()})
    member.adopt_assignment(generation, assignments["me"])


async def test_assignment_without_shards_does_not_complete_a_later_drain() -> None:
    member = make_member()
    member.adopt_assignment(1, encode_message(REFUSED))
    await lead_generation(member, 2)
    draining = asyncio.create_task(member.hand_over_all())
    await asyncio.sleep(1)
    assert not draining.done(), "the shards are still held"
    member.encode_metadata()
    member.adopt_assignment(3, encode_message(REFUSED))
    await asyncio.wait_for(draining, 1)


DOUBLE = "Another replica that started later has the same address, replica:9095, and gets the shards."


@pytest.mark.parametrize(
    ("decision", "reasons"),
    [
        (b"[2]", ["The assignment from the group's leader cannot be read: "]),
        (encode_message(REFUSED), ["The group refuses this replica: another topic."]),
        (encode_message(structs.replace(ALL_SHARDS, double=True)), [DOUBLE]),
        (
            encode_message(AssignmentMessage(generation=1)),
            ["The group's leader cannot read the metadata of this replica, which gets no shards."],
        ),
        (b"", ["The group's leader could not compute an assignment; shards stay at their owners."]),
        (encode_message(ALL_SHARDS), []),
    ],
)
async def test_reason_for_having_no_shards_is_reported(decision: bytes, reasons: list[str]) -> None:
    member = make_member()
    member.membership._record_success()
    member.adopt_assignment(1, decision)
    health = member.health()
    assert len(health) == len(reasons)
    assert all(said.startswith(reason) for said, reason in zip(health, reasons, strict=True))
    member._lease.end()
    assert member.health() == [*health, "The last confirmed heartbeat is too old."]


async def test_hand_over_is_requested_once_unless_it_changes() -> None:
    member = make_member()
    await lead_generation(member, 1)
    joins = decode_metadata(member.encode_metadata()).joins
    for partition, instance in ((0, "a"), (1, "a")):
        member.hand_over(partition, instance)
    metadata = decode_metadata(member.encode_metadata())
    # Kafka begins a rebalance only if the metadata has changed.
    assert (metadata.wishes, metadata.joins == joins) == ({0: "a", 1: "a"}, False)
    member.hand_over(1, "b")
    member.adopt_assignment(2, b"")
    assert decode_metadata(member.encode_metadata()).wishes == {1: "b"}


@pytest.mark.parametrize("pauses_s", [(5.0, 9.0), (9.0, 5.0)])
async def test_earliest_request_for_a_rebalance_applies(pauses_s: Sequence[float]) -> None:
    membership = make_member().membership
    assert membership.rebalances == 0
    membership._rebalanced_s = asyncio.get_running_loop().time()
    membership._join_asked.clear()
    for pause_s in pauses_s:
        membership.request_rebalance(pause_s)
    await asyncio.sleep(4.9)
    assert not membership._join_asked.is_set()
    await asyncio.sleep(0.2)
    assert membership._join_asked.is_set()
    membership._join_asked.clear()
    await asyncio.sleep(9)
    assert not membership._join_asked.is_set()


@pytest.mark.parametrize(
    ("code", "is_renewed", "rejoins", "is_abandoned", "node"),
    [
        (ErrorCode.NONE, True, False, False, 1),
        (ErrorCode.REBALANCE_IN_PROGRESS, True, True, False, 1),
        (ErrorCode.ILLEGAL_GENERATION, False, True, False, 1),
        (ErrorCode.UNKNOWN_MEMBER_ID, False, True, True, 1),
        (ErrorCode.NOT_COORDINATOR, False, False, True, NO_NODE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False, False, False, 1),
    ],
)
@pytest.mark.parametrize("change", ["none", "joined again", "joins"])
async def test_member_reacts_to_the_error_code_of_a_heartbeat(
    code: ErrorCode, is_renewed: bool, rejoins: bool, is_abandoned: bool, node: int, change: str
) -> None:
    """While a join is in progress, only the loss of the member id causes another join."""

    class HeartbeatClient(CountingGroupClient):
        async def heartbeat(self, node: int, generation: int, member_id: str, instance_id: str) -> int:
            assert (node, generation, member_id) == (1, 3, "member")
            membership.generation += change == "joined again"
            return code

    membership = make_member(HeartbeatClient()).membership
    membership.generation = membership.assignment_generation = 3
    membership.member_id, membership._node, membership._joining = "member", 1, change == "joins"
    membership._monotonic = lambda: 5.0
    membership._join_asked.clear()
    with suppress(JoinFailure):
        await membership._send_heartbeat()
    is_current = change != "joined again"
    is_lost = code == ErrorCode.UNKNOWN_MEMBER_ID
    assert membership._lease.remaining_s() == (15.0 if is_current and is_renewed else 10.0)
    assert membership._join_asked.is_set() == (
        is_current and rejoins and (is_lost or not membership._joining)
    )
    assert membership._abandoned.is_set() == (is_current and is_abandoned)
    assert membership._node == (node if is_current else 1)
    assert membership.member_id == ("" if is_current and is_lost else "member")


async def test_reading_of_owners_ends_when_the_group_refuses_the_replica() -> None:
    member = make_member()
    member.adopt_assignment(1, encode_message(ALL_SHARDS))
    assert not member._reader.settled.is_set()
    member.adopt_assignment(2, encode_message(REFUSED))
    assert member._reader.settled.is_set()
    assert member.assignment is None


async def test_reading_of_owners_ends_when_the_member_becomes_the_group_leader() -> None:
    member = make_member()
    member.adopt_assignment(1, encode_message(ALL_SHARDS))
    assert not member._reader.settled.is_set()
    await lead_generation(member, 2)
    assert member._reader.settled.is_set()
    assert member.assignment is not None
    assert member.assignment.generation == 2


async def test_only_the_group_leader_requests_partition_leaders_for_locality() -> None:
    client = CountingGroupClient()
    improving = asyncio.create_task(make_member(client)._improve_locality())
    await asyncio.sleep(5 * LIMITS.locality_interval_s)
    assert (client.requests, improving.done()) == (0, False)


async def test_rebalance_for_locality_waits_for_requests_of_other_members() -> None:
    client, pauses_s = CountingGroupClient(), list[float]()
    member, other = make_member(client), make_member()
    other._replica = Replica("other", "other:9095", broker_id=2)
    await lead_generation(member, 1, other.encode_metadata())
    member.membership.request_rebalance = pauses_s.append  # type: ignore[method-assign]
    improving = asyncio.create_task(member._improve_locality())
    plan = member._decided
    assert plan is not None
    # Each partition leader is at the broker of the member that does not own the shard.
    client.leaders = {
        partition: 2 if partition in plan.partitions_owned_by(INSTANCE) else 1 for partition in range(2)
    }
    await asyncio.sleep(2.5 * LIMITS.locality_interval_s)
    assert pauses_s == [LIMITS.reachability_interval_s]
    assert not improving.done()
    assert member._moves_max == LIMITS.locality_moves_max
    await lead_generation(member, 2, other.encode_metadata())
    assert member._moves_max == 0


async def test_locality_is_computed_without_members_of_unreadable_metadata() -> None:
    member = make_member()
    await lead_generation(member, 1, b"unreadable")
    assert member._decided is not None
    assert not member._locality_can_improve(member._decided)
