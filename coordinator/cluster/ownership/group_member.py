"""One replica in its group: send claims, compute assignments as the leader, apply assignments, drain.

The methods run on the event loop of the membership. The rest of the process runs on another event loop, that
of the listener. For each assignment, the listener gets one batch of calls, in this order: resignations, the
assignment, elections.

A batch runs without interruption on the listener's loop, so no request is processed between its calls.
Therefore, this process never serves a shard that the assignment gives to another replica. FindCoordinator
returns this replica for a shard only from its election on.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from coordinator.cluster.ownership.base import Assignment, OwnershipListener, Replica
from coordinator.cluster.ownership.broker_reachability import BrokerReachability
from coordinator.cluster.ownership.group_view_reader import GroupViewReader
from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.membership import Membership
from coordinator.cluster.ownership.messages import (
    AssignmentMessage,
    GroupPlan,
    GroupSettings,
    GroupView,
    MemberMetadata,
    UnreadableMessage,
    decode_assignment,
    decode_metadata,
    encode_message,
    plan_assignment,
)
from coordinator.cluster.ownership.owned_shards import OwnedShards, OwnershipChange
from coordinator.cluster.ownership.readiness import Readiness

if TYPE_CHECKING:
    from coordinator.cluster.kafka.group_client import KafkaGroupClient

_logger = logging.getLogger(__name__)

# The interval in which draining checks whether the shards were handed over.
_HANDED_OVER_PAUSE_S = 0.02

Calls = Sequence[Callable[[], object]]


class GroupMember:
    """One replica as a member of its group, with the callbacks that its membership calls.

    Except for `health` and the metrics, all methods are called on the membership's loop.

    The function `tell` runs a batch of calls on the listener's loop, after all earlier batches.
    """

    def __init__(
        self,
        group_client: "KafkaGroupClient",
        listener: OwnershipListener,
        *,
        replica: Replica,
        setting: GroupSettings,
        group_id: str,
        group_instance_id: str = "",
        started_ms: int,
        limits: GroupLimits,
        lease: Lease,
        monotonic: Callable[[], float],
        tell: Callable[[Calls], None],
    ) -> None:
        self.membership = Membership(
            group_client,
            self,
            group_id=group_id,
            instance_id=group_instance_id,
            limits=limits,
            lease=lease,
            monotonic=monotonic,
        )
        self._reader = GroupViewReader(
            self.membership.describe,
            self._on_view_read,
            state_partitions=setting.state_partitions,
            limits=limits,
        )
        self.assignment: Assignment | None = None
        self.members = 0
        self._published_assignment: Assignment | None = None
        self._group_client = group_client
        self._listener = listener
        self._replica = replica
        self._setting = setting
        self._started_ms = started_ms
        self._limits = limits
        self._lease = lease
        self._deliver = tell
        self._owned_shards = OwnedShards()
        self._joins = 0
        self._readiness = Readiness(listener, lease, limits, monotonic)
        self._draining = False
        self._draining_reported = False
        self._given_away = asyncio.Event()
        self._refused: str | None = None
        # Shards that this replica wants to hand over, and those of them that the group knows.
        self._wishes: dict[int, str] = {}
        self._wishes_reported: dict[int, str] = {}
        self._reachability = BrokerReachability()
        self._unreached_reported: tuple[int, ...] = ()
        # As the leader: the members of this generation, their plan, and the last known partition leaders.
        self._led_generation: Mapping[str, bytes] = {}
        self._decided: GroupPlan | None = None
        self._decided_generation = -1
        self._leaders: Mapping[int, int] = {}
        self._moves_max = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run(), name="group membership")
            tasks.create_task(self._watch_readiness(), name="group readiness")
            tasks.create_task(self._watch_broker_reachability(), name="group reach")
            tasks.create_task(self._improve_locality(), name="group placement")
            tasks.create_task(self._reader.run(), name="group owners")

    # Membership callbacks.

    def encode_metadata(self) -> bytes:
        """Return the metadata of this replica as bytes, and remember the reported values."""
        self._draining_reported = self._draining
        self._unreached_reported = self._reachability.unreached
        self._wishes_reported = {
            partition: instance
            for partition, instance in self._wishes.items()
            if partition in self._owned_shards.held
        }
        return encode_message(
            MemberMetadata(
                setting=self._setting,
                replica=self._replica,
                started_ms=self._started_ms,
                ready=self._readiness.report_readiness(),
                draining=self._draining,
                owned=tuple(sorted(self._owned_shards.held)),
                assignment_generation=self.membership.assignment_generation,
                lease_is_fresh=self._lease.is_fresh(),
                wishes=self._wishes_reported,
                unreached=self._unreached_reported,
                joins=self._joins,
            )
        )

    async def compute_assignments(self, generation: int, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        self._leaders = await self._group_client.leaders_by_partition()
        moves_max, self._moves_max = self._moves_max, 0
        decided = plan_assignment(members, self._leaders, moves_max=moves_max)
        self._led_generation, self._decided, self._decided_generation = members, decided, generation
        for instance, reason in decided.refused.items():
            _logger.warning("A member of the group is refused: %s", reason, extra={"instance": instance})
        for instance in decided.doubles:
            _logger.warning(
                "Two members have the same address. The one that started first gets no shards.",
                extra={"instance": instance},
            )
        if decided.unreadable_members:
            _logger.warning(
                "The metadata of some members cannot be read. They get no shards.",
                extra={"members": decided.unreadable_members},
            )
        assignments = decided.compute_assignments(generation)
        return {member_id: encode_message(decision) for member_id, decision in assignments.items()}

    async def resign_all(self) -> None:
        """Resign all held shards; return when the listener has processed the resignations."""
        change = self._owned_shards.apply_assignment(None)
        if change.resigned:
            _logger.info("Assignments of the group were missed.", extra={"resigned": len(change.resigned)})
            await self._deliver_calls_and_wait(self._make_listener_calls(change))

    def adopt_assignment(self, generation: int, decision: bytes) -> None:
        """Apply an assignment: resign, publish the owners, elect."""
        # The leader has received these hand-over requests, so they are not repeated.
        for partition, instance in self._wishes_reported.items():
            if self._wishes.get(partition) == instance:
                del self._wishes[partition]
        if not decision:
            # No shard was assigned, so all members keep their shards.
            self._refused = "The group's leader could not compute an assignment; shards stay at their owners."
            self._deliver(self._make_listener_calls(OwnershipChange()))
            if self.membership.leads:
                self._request_rebalance()
            return
        ours = self._decode_own_assignment(decision)
        change = self._owned_shards.apply_assignment(ours)
        self._update_owners(generation, concerned=ours is not None)
        _logger.info(
            "New assignment.",
            extra={
                "generation": generation,
                "owned": len(self._owned_shards.held),
                "elected": len(change.elected),
                "resigned": len(change.resigned),
            },
        )
        self._deliver(self._make_listener_calls(change))
        if self._draining_reported and not self._owned_shards.held:
            self._given_away.set()

    def _update_owners(self, generation: int, *, concerned: bool) -> None:
        if not concerned:
            self._reader.cancel()
            self.assignment, self.members = None, 0
        elif self.membership.leads and self._decided and self._decided_generation == generation:
            # Check `leads`: if the group coordinator crashed before it stored a generation, its successor
            # uses the same generation number again, possibly for another leader and another plan.
            self._reader.cancel()
            self._apply_view(self._decided.make_view(generation))
        else:
            # Until the new owners are read, the owners of the last generation are used.
            self._reader.start_reading(generation)

    def _apply_view(self, view: GroupView) -> None:
        self.assignment, self.members = view.assignment, len(view.assignment.replicas)
        self._reachability.suspected = view.unreached

    def _on_view_read(self, view: GroupView) -> None:
        self._apply_view(view)
        self._deliver(self._make_listener_calls(OwnershipChange()))

    def _make_listener_calls(self, change: OwnershipChange) -> Calls:
        self._published_assignment = self.assignment if self._lease.is_fresh() else None
        return [
            *(partial(self._listener.on_resigned, partition) for partition in change.resigned),
            partial(self._listener.on_assignment_changed, self._published_assignment),
            *(
                partial(self._listener.on_elected, partition, release_expected=release_expected)
                for partition, release_expected in change.elected
            ),
        ]

    def _decode_own_assignment(self, data: bytes) -> AssignmentMessage | None:
        """Return the assignment, or None if the group refuses this replica; store the reason."""
        self._refused = None
        try:
            decision = decode_assignment(data)
        except UnreadableMessage as error:
            self._store_refusal(f"The assignment from the group's leader cannot be read: {error}.")
            return None
        if decision.refused:
            self._store_refusal(f"The group refuses this replica: {decision.refused}.")
            return None
        if decision.double:
            self._store_refusal(
                f"Another replica that started later has the same address, {self._replica.wire}, and gets "
                "the shards."
            )
        if not decision.instance:
            self._store_refusal(
                "The group's leader cannot read the metadata of this replica, which gets no shards."
            )
        elif decision.instance != self._replica.instance:
            # The assignment was made for the previous process with this group.instance.id (KIP-345).
            self._request_rebalance()
            return AssignmentMessage(generation=decision.generation)
        return decision

    def _store_refusal(self, sentence: str) -> None:
        self._refused = sentence
        _logger.warning("%s", sentence)

    def on_lease_changed(self, fresh: bool) -> None:
        if not fresh:
            _logger.warning(
                "No heartbeat of the group succeeded for too long. Until one does, this coordinator claims "
                "no shards and names no owners. It serves its shards while it can append to their logs."
            )
        if self._published_assignment is not (self.assignment if fresh else None):
            self._deliver(self._make_listener_calls(OwnershipChange()))

    # Changes by this process.

    def on_fenced(self, state_partition: int) -> None:
        """Record that a shard was fenced by the log, and request a rebalance."""
        if self._owned_shards.on_fenced(state_partition):
            self._request_rebalance()

    def hand_over(self, state_partition: int, instance: str) -> None:
        """Request the hand-over of a shard to an instance; "" means any other instance."""
        if state_partition in self._owned_shards.held:
            self._wishes[state_partition] = instance
            self._request_rebalance(urgent=True)

    def _request_rebalance(self, *, urgent: bool = False, improves: bool = False) -> None:
        """Request a rebalance.

        If the rebalance only improves the placement of shards, wait longer for requests of other members.
        """
        self._joins += 1
        pause_s = self._limits.reachability_interval_s if improves else self._limits.rebalance_pause_s
        self.membership.request_rebalance(0.0 if urgent else pause_s)

    async def _watch_readiness(self) -> None:
        while True:
            # If the listener's loop hangs, this call is not made, and the process counts as not ready.
            self._deliver([self._readiness.record_loop_alive])
            await asyncio.sleep(self._limits.heartbeat_interval_s)
            if self._readiness.has_changed():
                self._request_rebalance()

    async def _watch_broker_reachability(self) -> None:
        while True:
            self._reachability.record_probes(await self._group_client.probe_leaders(self._brokers_to_probe))
            if self._reachability.unreached != self._unreached_reported:
                self._request_rebalance(improves=True)
            await asyncio.sleep(self._limits.reachability_interval_s)

    def _brokers_to_probe(self, leaders: Mapping[int, int]) -> set[int]:
        return self._reachability.brokers_to_probe(leaders, self._owned_shards.held)

    async def _improve_locality(self) -> None:
        """As the leader, check periodically whether shards could be closer to their partition leaders."""
        while True:
            await asyncio.sleep(self._limits.locality_interval_s)
            if not self.membership.leads or self._decided is None:
                continue
            before, self._leaders = self._leaders, await self._group_client.leaders_by_partition()
            # While partition leaders still move, for example during a rolling restart, nothing is changed.
            if before == self._leaders and self._locality_can_improve(self._decided):
                self._moves_max = self._limits.locality_moves_max
                self._request_rebalance(improves=True)

    def _locality_can_improve(self, decided: GroupPlan) -> bool:
        """Return whether a new assignment of the same members would differ from the current one."""
        members = {}
        for member_id, data in self._led_generation.items():
            try:
                metadata = decode_metadata(data)
            except UnreadableMessage:
                continue
            owned = tuple(sorted(decided.partitions_owned_by(metadata.replica.instance)))
            members[member_id] = encode_message(structs.replace(metadata, owned=owned))
        nearer = plan_assignment(members, self._leaders, moves_max=self._limits.locality_moves_max)
        return nearer.owners != decided.owners

    # Draining.

    async def hand_over_all(self) -> None:
        """Request that the group moves all shards away; return when it has none. `run` must be active."""
        self._draining = True
        if self._owned_shards.held:
            self._request_rebalance(urgent=True)
            await self._given_away.wait()
            # Requests are forwarded to the new owners until the process ends.
            await self._reader.settled.wait()

    async def wait_until_handed_over(self) -> None:
        """Wait until the listener has released the resigned shards."""
        await self.wait_for_listener_calls()
        while self._listener.is_resigning():  # noqa: ASYNC110
            await asyncio.sleep(_HANDED_OVER_PAUSE_S)

    async def wait_for_listener_calls(self) -> None:
        await self._deliver_calls_and_wait([])

    async def _deliver_calls_and_wait(self, calls: Calls) -> None:
        """Run a batch of calls on the listener's loop; return when the calls have run."""
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._deliver([*calls, partial(loop.call_soon_threadsafe, finished.set)])
        await finished.wait()

    def resign_remaining(self) -> None:
        """Resign the remaining shards, so that their next owners need not wait for the end of a lease."""
        held = sorted(self._owned_shards.held)
        _logger.warning("Draining timed out; some shards were not handed over.", extra={"shards": len(held)})
        self._deliver([partial(self._listener.on_resigned, partition) for partition in held])
        self._owned_shards.apply_assignment(None)

    def health(self) -> list[str]:
        """Return why this replica does not own the shards that it should own."""
        # Each attribute is read once, because the membership's thread may change it at any time.
        refused, membership_error = self._refused, self.membership.membership_error
        sentences = [] if refused is None else [refused]
        if membership_error is not None:
            sentences.append(membership_error.sentence)
        elif not self._lease.is_fresh():
            sentences.append("The last confirmed heartbeat is too old.")
        return sentences
