"""Expiry with several coordinators: which coordinator observes a share group, and moves of shards."""

import pytest

from coordinator.operate.expiry import ExpiryRules
from tests.kafka_in_memory.share_groups import ShareGroup
from tests.manual_clock import ManualClock
from tests.unit.coroutine_tests import wait_until
from tests.unit.expiry.replicas import (
    GRACE,
    INTERVAL_MINUTES,
    KNOWN,
    RETENTION,
    make_cluster,
    make_state,
    run_replica,
    split_shards,
)
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_periodic_round_describes_only_groups_of_which_this_coordinator_owns_partition_0() -> None:
    first, others = split_shards("g", "t")
    records = [KNOWN, *(make_state("g", "t", number) for number in range(20))]
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    async with (
        run_replica(cluster, clock, records, shards=first, has_other_owners=True) as owner,
        run_replica(cluster, clock, records, shards=others, has_other_owners=True) as other,
    ):
        for replica in (owner, other):
            await replica.expiry.run_round(all_groups=False)
        cluster.described.clear()
        await owner.expiry.run_round(all_groups=False)
        assert "g" in cluster.described
        cluster.described.clear()
        await other.expiry.run_round(all_groups=False)
        assert cluster.described == ["other"]
        clock.advance(RETENTION)
        await other.expiry.run_round(all_groups=False)
        assert set(cluster.described) == {"g", "other"}, "groups of other owners are observed less often"


async def test_retention_time_continues_when_a_shard_moves_to_another_coordinator() -> None:
    first, others = split_shards("g", "t")
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    rules = ExpiryRules(10 * RETENTION, GRACE)
    records = [KNOWN, make_state("g", "t")]
    async with run_replica(
        cluster, clock, records, shards=others, has_other_owners=True, rules=rules
    ) as other:
        for _ in range(10 * RETENTION // INTERVAL_MINUTES - 1):
            await other.expiry.run_round(all_groups=False)
            clock.advance(INTERVAL_MINUTES)
        other.runtime.elect(*first)
        await wait_until(lambda: not other.runtime.health())
        await other.expiry.run_round(all_groups=False)
        assert cluster.deletions == []
        clock.advance(INTERVAL_MINUTES)
        await other.expiry.run_round(all_groups=False)
        assert cluster.deletions == [("g", ("t",))]
