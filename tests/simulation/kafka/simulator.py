"""Simulate several coordinators on a Kafka cluster, and check their responses and their logs.

One history contains the responses of all processes. When no operation is in progress, `raw_log` reads the
logs independently of the coordinator, and the states must equal those in the memory of the owners.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from itertools import chain

import pytest

from coordinator.cluster.kafka import connections
from protocol.errors import ErrorCode
from tests.simulation.checkers import permit_stale_reads
from tests.simulation.clients import ConnectionLost, CoordinatorConnection
from tests.simulation.history import DELETE, OWNER_SILENT, SUMMARY, Operation, Violation
from tests.simulation.hostile_clients import invalid_keys
from tests.simulation.kafka.clients import MultiCoordinatorClients
from tests.simulation.kafka.nemesis import list_faults
from tests.simulation.kafka.plan import KafkaPlan
from tests.simulation.kafka.traced_log import LeaseTraces
from tests.simulation.kafka.world import OWNED_BY_S, KafkaWorld
from tests.simulation.nemesis import FaultKind
from tests.simulation.process import coordinator_address
from tests.simulation.rpc_parts import DeletePart, SummaryPart
from tests.simulation.simulation import Simulation, SimulationOutcome, visible_state
from tests.simulation.world import wait_until

# All coordinators know a new owner after this number of seconds, which exceeds a heartbeat and a session.
OWNER_KNOWN_BY_S = 20.0
# State expires within this number of seconds after the group was deleted or became empty.
EXPIRES_BY_S = 150.0


class KafkaSimulator(Simulation):
    """A simulation of several coordinators, their cluster and their clients."""

    plan: KafkaPlan

    def __init__(self, plan: KafkaPlan) -> None:
        super().__init__(plan)
        self._world = KafkaWorld(plan, self.loop, self._new_random(), self._topics)
        self._clients: MultiCoordinatorClients

    def run(self) -> SimulationOutcome:
        """Run the simulation; the client library's order of brokers depends only on the seed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connections, "broker_order_seed", partial(random.getrandbits, 32))
            return super().run()

    def _run_checkers(self) -> int:
        permit_stale_reads(self._history, self.plan.read_age_max_s)
        return self._world.truncations.check_eras(self._is_topic_known)

    def _make_clients(self) -> MultiCoordinatorClients:
        plan, world = self.plan, self._world
        world.delete_state = self._delete_state
        if plan.nemesis.unclean_s is None and not plan.read_age_max_s:
            world.traces = LeaseTraces(world.brokers, plan.log_limits.lease_s, self._violations.append)
        return MultiCoordinatorClients(
            world.network,
            [coordinator_address(place) for place in range(plan.coordinators)],
            world.history,
            self._violations.append,
            state_partitions=plan.state_partitions,
            node_id_first=0,
            node_ids=plan.coordinators,
            owner=world.owner_place,
            rng=self._new_random(),
            misrouted_rate=plan.misrouted_rate,
            unreachable_places=world.unreachable_places,
        )

    def _list_faults(self) -> Sequence[FaultKind]:
        return list_faults(self.plan.nemesis)

    def _stop_faults(self) -> None:
        super()._stop_faults()
        self._clients.misrouted_rate = self.plan.without_faults().misrouted_rate

    async def _wait_until_idle(self) -> None:
        """Wait until no call is pending and each coordinator owns exactly its assigned shards."""
        await super()._wait_until_idle()
        await self._read_at_each_owner()
        await wait_until(self._is_complete, self._world.health, OWNED_BY_S)
        if any(process.unfinished_operations for process in self._world.alive()):
            raise Violation("no operation is in progress, but a coordinator forwards one")

    async def _read_at_each_owner(self) -> None:
        """Read every share-partition once, so that owners detect records that other owners appended."""
        peers: dict[int | None, CoordinatorConnection] = {}
        for key in dict.fromkeys([*self._keys, *chain.from_iterable(map(invalid_keys, self._keys))]):
            node = self._clients.coordinating_node(key)
            try:
                if node not in peers:
                    peers[node] = await self._clients.connect("observer", node)
                await peers[node].send_state_request(SUMMARY, [(key, SummaryPart(key.partition, 0))])
            except ConnectionLost:
                raise Violation("no fault is active, but no connection can be opened") from None
        for peer in peers.values():
            peer.close()

    async def _check_state_when_idle(self) -> None:
        """Check the state as the base class does; meanwhile, clients send requests only to owners."""
        rate, self._clients.misrouted_rate = self._clients.misrouted_rate, 0.0
        await super()._check_state_when_idle()
        self._clients.misrouted_rate = rate

    async def _check_final_state(self) -> None:
        await self._check_find_coordinator()
        if self.plan.expiry:
            await self._check_expiry()

    async def _check_find_coordinator(self) -> None:
        """Check that FindCoordinator of every coordinator names the owners within OWNED_BY_S seconds."""
        clients = self._clients
        for place in range(self.plan.coordinators):
            try:
                peer = await clients.connect("observer", place)
                for key in self._keys:
                    until_s = self.loop.time() + OWNED_BY_S
                    while (found := await clients.find_owner(peer, key)) != (
                        owner := clients.owner_address(key)
                    ):
                        if self.loop.time() > until_s:
                            raise Violation(f"coordinator {place} names {found} for {key}, not {owner}")
                        await asyncio.sleep(0.5)
            except ConnectionLost:
                raise Violation("no fault is active, but FindCoordinator fails") from None
            peer.close()

    async def _check_expiry(self) -> None:
        """Check that exactly the state of a deleted or empty group expires."""
        world, group = self._world, self._rng.choice(self._keys).group_id
        before = await world.compare_memory_with_log()
        (world.share_groups.deleted if self._rng.random() < 0.5 else world.share_groups.empty).add(group)
        kept = {key: state for key, state in before.items() if key.group_id != group}
        until_s = self.loop.time() + EXPIRES_BY_S
        while (after := await world.compare_memory_with_log()).keys() != kept.keys():
            if self.loop.time() > until_s or kept.keys() - after.keys():
                raise Violation(f"group {group} has expired, but of {[*before]}, {[*after]} are left")
            await asyncio.sleep(5.0)
        if visible_state(after) != visible_state(kept):
            raise Violation(f"the expiry of group {group} changed {kept} to {after}")

    async def _delete_state(self, group: str, topic: str) -> int:
        """Delete the state of a topic as a group coordinator does; return an error code."""
        states = await self._world.states_in_log()
        keys = [key for key in states if (key.group_id, key.topic_id.hex()) == (group, topic)]
        for key in keys:
            op = await self._cluster.brokers[0].call(DELETE, key, DeletePart(key.partition))
            if op.error_code != ErrorCode.NONE:
                return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE if keys else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _may_get_retriable_error(self, op: Operation) -> bool:
        """Return whether the owner changed during a forwarded operation, or did not respond."""
        if not op.forwarded:
            return super()._may_get_retriable_error(op)
        assert op.answered is not None
        changes = self._history.owner_changes_s
        return op.answer.error_message == OWNER_SILENT or any(
            op.invoked[0] - OWNER_KNOWN_BY_S < change_s < op.answered[0] for change_s in changes
        )
