"""Measure how the cost of group membership grows with the number of coordinators, in virtual time.

The ownership code of the share coordinators runs with an in-memory group coordinator that implements Kafka's
rules and limits. Each share coordinator has a local broker. The command takes some minutes, has no options,
and rewrites the table of docs/scale.md. The figures are counts and virtual time, so they are the same on
every machine.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import NamedTuple

from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.group import GroupInMemory
from tests.simulation.loop import SimLoop
from tests.unit.ownership.replicas import GroupReplica, ReplicaGroup

SIZES = (3, 10, 30, 100, 200)
SHARDS = 1_000
IDLE_S = 120.0
# Kafka's defaults: group.initial.rebalance.delay.ms and broker.session.timeout.ms.
INITIAL_DELAY_S = 3.0
BROKER_SESSION_S = 9.0
STEP_S = 0.25
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


class FleetCost(NamedTuple):
    """The cost of group membership for one number of coordinators."""

    coordinators: int
    record_bytes: int
    described_bytes: int
    start_s: float
    idle_requests_per_s: float
    failure_s: float
    failure_rebalances: int
    silent_rebalances: int


class _SimulatedFleet:
    """A group of N share coordinators, the local brokers 1 to N, and the network links between them."""

    def __init__(self, coordinators: int, shards: int) -> None:
        limits = GroupLimits()
        self.shards = shards
        self.brokers = list(range(1, coordinators + 1))
        self.group = GroupInMemory(
            session_s=limits.session_timeout_s,
            rebalance_s=limits.rebalance_timeout_s,
            first_delay_s=INITIAL_DELAY_S,
            nodes=coordinators,
        )
        self.assign_leaders(self.brokers)
        self.replica_group = ReplicaGroup(self.group.new_client, state_partitions=shards, limits=limits)

    def assign_leaders(self, brokers: list[int]) -> None:
        """Assign the leaders of the shards to these brokers, round robin."""
        self.group.partition_leaders = {shard: brokers[shard % len(brokers)] for shard in range(self.shards)}

    async def start(self) -> None:
        for broker in self.brokers:
            address = f"share-coordinator-{broker}.kafka.svc.cluster.local:9095"
            await self.replica_group.add(wire=address, broker_id=broker)

    async def wait_until_stable(self, replicas: list[GroupReplica]) -> float:
        """Wait until these coordinators own all shards in one assignment; return the seconds until then."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(300.0):
            while not self._is_stable(replicas):  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)
        return loop.time() - began_s

    def _is_stable(self, replicas: list[GroupReplica]) -> bool:
        assignments = [replica.listener.assignment for replica in replicas]
        return (
            sum(len(replica.owned) for replica in replicas) == self.shards
            and all(each is not None and each.generation == self.group.generation for each in assignments)
            and {member.instance for each in assignments[:1] if each for member in each.replicas}
            == {replica.replica.instance for replica in replicas}
        )

    def count_requests(self) -> int:
        """Return the number of requests of all coordinators to brokers."""
        return len(self.group.requests)


async def _measure_fleet(coordinators: int, shards: int) -> FleetCost:
    fleet = _SimulatedFleet(coordinators, shards)
    group, replicas = fleet.group, fleet.replica_group.replicas
    await fleet.start()
    start_s = await fleet.wait_until_stable(replicas)
    before = fleet.count_requests()
    await asyncio.sleep(IDLE_S)
    idle_requests_per_s = (fleet.count_requests() - before) / IDLE_S / coordinators
    record_bytes = group.stored_bytes
    described = sum(len(member.metadata) + len(member.assignment) for member in group.members.values())

    # First failure: no coordinator can reach a broker that is a leader in the metadata.
    generation = group.generation
    for replica in replicas:
        replica.link.unreachable_brokers = {coordinators}
    await asyncio.sleep(IDLE_S)
    silent_rebalances = group.generation - generation
    for replica in replicas:
        replica.link.unreachable_brokers = set()
    await asyncio.sleep(IDLE_S)

    # Second failure: a machine with a share coordinator and the broker that is group coordinator.
    generation = group.generation
    replicas[0].link.cut = True
    group.brokers.set_down(group.node)
    left = [broker for broker in fleet.brokers if broker != group.node]

    def replace_failed_broker() -> None:
        del group.brokers.addresses[group.node]
        group.move_to_broker(left[0])
        fleet.assign_leaders(left)

    asyncio.get_running_loop().call_later(BROKER_SESSION_S, replace_failed_broker)
    failure_s = await fleet.wait_until_stable(replicas[1:])
    failure_rebalances = group.generation - generation
    await fleet.replica_group.stop()
    return FleetCost(
        coordinators,
        record_bytes,
        described * coordinators,
        start_s,
        idle_requests_per_s,
        failure_s,
        failure_rebalances,
        silent_rebalances,
    )


def measure_group(coordinators: int, shards: int = SHARDS) -> FleetCost:
    """Run a group with this number of coordinators and return its cost."""
    loop = SimLoop()
    try:
        cost = loop.run_until_complete(_measure_fleet(coordinators, shards))
        assert loop.failures == []
        return cost
    finally:
        loop.close()


def make_table(costs: list[FleetCost]) -> str:
    """Return the table of docs/scale.md."""
    lines = [
        "| coordinators | group record | read by all after a rebalance | from start until stable "
        "| requests/s of an idle coordinator | stable after a machine fails | rebalances for that "
        "| rebalances for a silent broker |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cost in costs:
        cells = (
            f"{cost.coordinators}",
            f"{cost.record_bytes / 1024:.1f} KiB",
            f"{cost.described_bytes / 2**20:.2f} MiB",
            f"{cost.start_s:.1f} s",
            f"{cost.idle_requests_per_s:.2f}",
            f"{cost.failure_s:.1f} s",
            f"{cost.failure_rebalances}",
            f"{cost.silent_rebalances}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all group sizes and rewrite docs/scale.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fleet_scale", description=__doc__)
    parser.parse_args()
    logging.disable()
    costs = []
    for size in SIZES:
        costs.append(measure_group(size))
        print(costs[-1], file=sys.stderr, flush=True)
    page = PAGE.read_text("utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:begin] + make_table(costs) + page[end:], "utf-8")


if __name__ == "__main__":
    main()
