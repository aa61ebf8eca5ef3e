"""Run a coordinator with the real components on a simulated Kafka cluster."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from coordinator.cluster.kafka.brokers import Brokers
from coordinator.cluster.kafka.share_groups import ShareGroups
from coordinator.cluster.ownership import Assignment, Replica
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.metrics import Metrics
from coordinator.operate.admin import OwnerDirectory
from coordinator.operate.expiry import Expiry, ExpiryRules
from coordinator.serve.forwarding import Forwarder
from coordinator.serve.runtime import Runtime
from coordinator.serve.server import Api, Listener
from coordinator.serve.service import Service
from tests.simulation.history import NO_OWNER, NOT_OURS, History
from tests.simulation.kafka.hand_over_client import HandOverClient
from tests.simulation.kafka.membership import TOPIC
from tests.simulation.kafka.traced_log import TracedLog
from tests.simulation.process import CoordinatorProcess, SimClock
from tests.simulation.rpc_parts import RPCS

_KINDS = {rpc.api_key: kind for kind, rpc in RPCS.items()}


class RecordedForwarder(Forwarder):
    """A forwarder that records in the history which operations it sends again."""

    def __init__(self, runtime: Runtime, *, instance: str, metrics: Metrics, history: History) -> None:
        super().__init__(runtime, instance=instance, metrics=metrics)
        self._history = history

    def hold_operation(self, call: Any, operation: Any, reason: Any) -> None:
        """Hold an operation until its owner is known; record that it may have been executed before."""
        super().hold_operation(call, operation, reason)
        was_not_executed = reason.message == NO_OWNER or reason.message.endswith(NOT_OURS)
        if operation.call is not None and not was_not_executed:
            kind = _KINDS[call.api_key]
            self._history.record_repetition(self._loop.time(), kind, operation.key, operation.unit)


if TYPE_CHECKING:
    from tests.simulation.kafka.world import KafkaWorld

DRAIN_S = 10.0
# State expires at the second observation of an empty or deleted group.
EXPIRY_RULES = ExpiryRules(retention_minutes=0, grace_minutes=0)
EXPIRY_INTERVAL_S = 5.0


class KafkaProcess(CoordinatorProcess):
    """A coordinator with its state in a topic and group membership, from its start to its crash or stop."""

    log: KafkaLog

    def __init__(self, world: "KafkaWorld", place: int, number: int) -> None:
        super().__init__(world, place, number, world.plan)
        plan = self._plan = world.plan
        self._traces = world.traces
        self.assignment: Assignment | None = None
        self._directory = self._make_directory()
        self._forwarder: RecordedForwarder
        self._history = world.history
        self._kafka = world.kafka
        addresses = Random(self.name).sample(list(world.brokers.addresses.values()), plan.brokers)
        self._bootstrap_servers = ",".join(f"{host}:{port}" for host, port in addresses)
        self._cluster = Brokers(
            self._bootstrap_servers, TOPIC, request_timeout_s=plan.log_limits.request_timeout_s
        )
        self._membership = world.membership
        replica = Replica(self.name, str(self.address))
        self._ownership = world.membership.create_ownership(replica, self._bootstrap_servers)
        self._expiry: Expiry | None = None
        self._http: HandOverClient | None = None
        self._owners = OwnerDirectory()
        self._share_groups: ShareGroups | None = None
        self._clock_rate = Random(f"{plan.seed} {self.name}").uniform(1.0, plan.clock_rate_max)

    def _monotonic_s(self) -> float:
        return self._clock_rate * self._loop.time()

    # Start, stop and crash.

    async def _start(self) -> None:
        plan, metrics = self._plan, Metrics()
        log_class = KafkaLog if self._traces is None else TracedLog
        self.log = log_class(
            self._cluster,
            TopicConfig(TOPIC, plan.state_partitions),
            owner=self.name,
            clock=self._clock,
            limits=plan.log_limits,
            monotonic=self._monotonic_s,
        )
        if isinstance(self.log, TracedLog):
            assert self._traces is not None
            self.log.traces, self.log.name, self.log.clock_rate = self._traces, self.name, self._clock_rate
        self.runtime = self._make_runtime(
            metrics, may_claim=self._ownership.lease_is_fresh, on_fenced=self._ownership.on_fenced
        )
        self._directory.set_assignment(None)
        self._forwarder = RecordedForwarder(
            self.runtime, instance=self.name, metrics=metrics, history=self._history
        )
        self._forwarder.active = plan.forwarding
        service = Service(self.runtime, self._forwarder if plan.forwarding else None)
        api = Api(service, self._directory, metrics)
        self.listener = Listener(api, metrics, plan.server_limits)
        await self.runtime.start(elect_all=False)
        await self.listener.start(self.address)
        await self._ownership.start(self)
        if plan.expiry:
            self._start_expiry(metrics)
        if plan.nemesis.hand_over_s is not None:
            self._http = HandOverClient(self.runtime, metrics, self._owners, self._ownership.hand_over)

    def _start_expiry(self, metrics: Metrics) -> None:
        timeout_s = self._plan.log_limits.request_timeout_s
        self._share_groups = ShareGroups(self._bootstrap_servers, request_timeout_s=timeout_s)
        self._expiry = Expiry(
            self.runtime,
            self._share_groups,
            EXPIRY_RULES,
            interval_s=EXPIRY_INTERVAL_S,
            # Unlike `self._clock`, this clock is not shifted by faults.
            clock=SimClock(self._loop),
            metrics=metrics,
            has_fresh_lease=self._ownership.lease_is_fresh,
            has_other_owners=True,
        )
        self._expiry.start()

    async def _stop(self) -> None:
        """Stop as on SIGTERM: hand the shards over first."""
        self._forwarder.freeze_assignment()
        await self._ownership.drain(DRAIN_S)
        self.runtime.mark_not_ready()
        await self.listener.drain(5.0)
        if self._expiry is not None:
            await self._expiry.stop()
        await self.listener.stop()
        await self._ownership.stop()
        await self._forwarder.close()
        await self.runtime.stop()

    async def _end(self) -> None:
        self._kafka.disconnect(self.name)
        await super()._end()
        await self.release()

    async def release(self) -> None:
        """Close the client objects of the process, which are connected to no broker any more."""
        await self._cluster.close()
        if self._share_groups is not None:
            await self._share_groups.close()
        await self._membership.release_connections(self.name)

    def send_http(self, path: str, body: dict[str, object]) -> None:
        """Send a request to the HTTP API, and do not wait for the response."""
        http = self._http
        if http is not None:
            self.create_task(http.send(path, body)).add_done_callback(self._record_http_failure)

    def _record_http_failure(self, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._loop.failures.append(error)

    @property
    def unfinished_operations(self) -> int:
        """The number of operations and requests that the forwarder has not completed."""
        return self._forwarder.held_operations + self._forwarder.requests_in_flight

    # The methods of OwnershipListener.

    def on_assignment_changed(self, assignment: Assignment | None) -> None:
        """Use a new assignment, or no assignment if this process is not a member of the group."""
        self.assignment = assignment
        self._owners.set_assignment(assignment)
        self._directory.set_assignment(assignment)
        self._forwarder.set_assignment(assignment)

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        """Claim and load a shard."""
        self._history.owner_changes_s.append(self._loop.time())
        self.runtime.elect(state_partition, release_expected=release_expected)

    def on_resigned(self, state_partition: int) -> None:
        """Release a shard."""
        self._history.owner_changes_s.append(self._loop.time())
        self.runtime.resign(state_partition)

    def is_ready_to_serve(self) -> bool:
        """Return whether this process could serve requests."""
        return self.runtime.can_serve

    def is_resigning(self) -> bool:
        """Return whether any resigned shard is not yet released."""
        return bool(self.runtime.resigning_shards)
