"""Groups of many coordinators, with Kafka's default limits."""

import msgspec
import pytest

from coordinator.cluster.ownership.base import Replica
from coordinator.cluster.ownership.messages import (
    AssignmentMessage,
    GroupPlan,
    GroupSettings,
    MemberMetadata,
    encode_message,
    plan_assignment,
    read_group_view,
)
from tests.benchmarks.fleet_scale import INITIAL_DELAY_S, measure_group
from tests.kafka_in_memory.group import GroupInMemory
from tests.unit.ownership.replicas import ReplicaGroup

# The size limit in bytes for 500 coordinators with 1,000 state partitions.
GROUP_RECORD_BYTES_MAX = 256 << 10


@pytest.mark.slow
@pytest.mark.run_with(fixture="fleet")
async def test_100_coordinators_own_no_shard_if_each_assignment_names_all_owners(
    group: GroupInMemory, fleet: ReplicaGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses a group record that grows with the square of the number of coordinators."""
    compute_assignments = GroupPlan.compute_assignments

    def add_all_owners(plan: GroupPlan, generation: int) -> dict[str, AssignmentMessage]:
        everything = f"{plan.replicas} {plan.owners}"
        return {
            member_id: msgspec.structs.replace(message, refused=everything)
            for member_id, message in compute_assignments(plan, generation).items()
        }

    monkeypatch.setattr(GroupPlan, "compute_assignments", add_all_owners)
    group.first_delay_s = INITIAL_DELAY_S
    fleet.state_partitions = 200
    replicas = [
        await fleet.add(wire=f"share-coordinator-{number}.kafka.svc.cluster.local:9095")
        for number in range(100)
    ]
    await fleet.wait_until(lambda: "error -1" in str(replicas[0].ownership.health()))
    assert group.stored_bytes > group.max_message_bytes
    assert not any(one.owned for one in replicas)
    monkeypatch.undo()
    await fleet.wait_until(lambda: fleet.is_shared_by(*replicas))
    assert group.stored_bytes < group.max_message_bytes / 10


def test_group_record_of_500_coordinators_is_smaller_than_256_kib() -> None:
    shards = 1_000
    group = GroupInMemory(session_s=1, rebalance_s=1)
    members: dict[str, bytes] = {}
    for number in range(500):
        address = f"share-coordinator-{number}.share-coordinator.kafka.svc.cluster.local"
        replica = Replica(f"{number:032x}", f"{address}:9095", f"{address}:9096", number)
        members[f"share-coordinator-{number:036}"] = encode_message(
            MemberMetadata(
                setting=GroupSettings("_share-coordinator-state", shards),
                replica=replica,
                started_ms=1_790_000_000_000 + number,
                owned=tuple(range(number, shards, 500)),
                assignment_generation=1_000,
                lease_is_fresh=True,
                unreached=(number,),
                joins=1_000,
            )
        )
    decided = plan_assignment(members, {partition: partition % 500 for partition in range(shards)})
    stored = {member: encode_message(each) for member, each in decided.compute_assignments(1_000).items()}
    for member, metadata in members.items():
        group.add_member(member, metadata)
    record_bytes = group.record_bytes(stored)
    assert 100_000 < record_bytes < GROUP_RECORD_BYTES_MAX
    view = read_group_view([(members[member], stored[member]) for member in members], 1_000, shards)
    assert view == decided.make_view(1_000)


@pytest.mark.slow
def test_request_rate_and_failover_time_of_10_coordinators_are_limited() -> None:
    """The request rate and the failover time do not grow with the number of coordinators. docs/scale.md has
    the values for 200.
    """
    cost = measure_group(10, shards=100)
    assert cost.idle_requests_per_s < 1.6
    assert cost.failure_s < 21.0
    assert cost.failure_rebalances <= 2
    assert 1 <= cost.silent_rebalances <= 4
