"""Test the size limit of the record in which a real Kafka stores a group, with default broker settings."""

import asyncio
from collections.abc import Mapping

import pytest

from coordinator.cluster.kafka.group_client import KafkaGroupClient
from coordinator.cluster.kafka.group_results import JoinResult, SyncResult
from protocol.errors import ErrorCode
from tests.kafka.rig import BuiltInRig
from tests.kafka_in_memory.group_coordinator import MAX_MESSAGE_BYTES
from tests.topic.groups import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class RawGroupMember:
    """A group member that sends only the requests that a test asks for (no heartbeats)."""

    def __init__(self, bootstrap: str, group_id: str, metadata: bytes) -> None:
        self.link = KafkaGroupClient(
            bootstrap,
            group_id,
            "state",
            session_timeout_s=PATIENT.session_timeout_s,
            rebalance_timeout_s=PATIENT.rebalance_timeout_s,
            request_timeout_s=PATIENT.session_timeout_s,
        )
        self.metadata = metadata
        self.node = -1
        self.member_id = ""

    async def get_member_id(self) -> None:
        """Get a member id without joining the group (KIP-394), after the group coordinator is available."""
        while True:
            self.node = (await self.link.find_coordinator()).node
            if self.node >= 0:
                joined = await self.link.join(self.node, "", self.metadata)
                if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    break
            await asyncio.sleep(0.2)
        self.member_id = joined.member_id

    async def join(self) -> JoinResult:
        return await self.link.join(self.node, self.member_id, self.metadata)

    async def sync(self, joined: JoinResult, assignments: Mapping[str, bytes]) -> SyncResult:
        leads = joined.leader_id == joined.member_id
        return await self.link.sync(
            self.node, joined.generation, joined.member_id, assignments if leads else {}
        )


async def join_until_stable(members: list[RawGroupMember]) -> list[JoinResult]:
    """Join repeatedly until all members are in one generation."""
    sizes: dict[int, int] = {}

    async def join_current_generation(member: RawGroupMember) -> JoinResult:
        await member.get_member_id()
        while True:
            joined = await member.join()
            assert joined.error_code == ErrorCode.NONE
            if joined.members:
                sizes[joined.generation] = len(joined.members)
            code = ErrorCode.NONE
            while code == ErrorCode.NONE:
                if sizes.get(joined.generation) == len(members):
                    return joined
                await asyncio.sleep(0.1)
                code = await member.link.heartbeat(member.node, joined.generation, joined.member_id)
            assert code == ErrorCode.REBALANCE_IN_PROGRESS

    return await asyncio.gather(*map(join_current_generation, members))


async def close_members(members: list[RawGroupMember]) -> None:
    await asyncio.gather(*(member.link.close() for member in members))


@pytest.mark.parametrize(
    ("beyond", "code"), [(-1_000, ErrorCode.NONE), (1_000, ErrorCode.UNKNOWN_SERVER_ERROR)]
)
async def test_group_record_above_the_limit_is_refused(built_in: BuiltInRig, beyond: int, code: int) -> None:
    """The group in memory has the same limit (`GroupInMemory.max_message_bytes`)."""
    bootstrap, group_id = built_in.broker.bootstrap, f"large-record-{beyond}"
    members = [RawGroupMember(bootstrap, group_id, bytes(10)) for _ in range(2)]
    joined = await join_until_stable(members)
    assignment_bytes = (MAX_MESSAGE_BYTES + beyond) // 2
    assigned = {each.member_id: bytes(assignment_bytes) for each in joined}
    synced = await asyncio.gather(
        *(member.sync(each, assigned) for member, each in zip(members, joined, strict=True))
    )
    leaders = [each for each, member in zip(synced, joined, strict=True) if member.members]
    assert [leader.error_code for leader in leaders] == [code]
    # If a member syncs after the refusal, it gets REBALANCE_IN_PROGRESS.
    assert {each.error_code for each in synced} <= {code, ErrorCode.REBALANCE_IN_PROGRESS}
    await close_members(members)
