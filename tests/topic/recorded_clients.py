"""Clients of several coordinators whose requests and responses are recorded as a history.

Each request is sent once, to a coordinator that the client chooses: it may be the owner, a former owner, or
neither. The checker of tests/simulation decides whether the history is linearizable. The checker depends on
the protocol only, and not on leases or claims.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from time import monotonic
from typing import Any

from coordinator.client import ONCE, ConnectionLimits, ShareCoordinatorClient, SharePartitionKey
from coordinator.serve.forwarding.limits import ForwardingLimits
from protocol.errors import ErrorCode
from protocol.state_batches import StateBatch, pack
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE
from tests.simulation.checkers import check_history
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, UNSURE, WRITE, History, Operation
from tests.simulation.rpc_parts import RPCS, DeletePart, InitializePart, ReadPart, SummaryPart, WritePart

# The pause of a client between two requests.
THINK_S = 0.03
LIMITS = ConnectionLimits(connect_s=1.0, request_s=1.0)
# The limits of requests without faults. These limits are longer than any pause of a busy machine.
PATIENT = ConnectionLimits(connect_s=10.0, request_s=10.0)
STATE_EPOCH = 1
FENCED = {int(ErrorCode.FENCED_LEADER_EPOCH), int(ErrorCode.FENCED_STATE_EPOCH)}
USER_OFFSETS = 40


class HistoryRecordingClients:
    """Some share-partitions, their history, and clients that read and write them until cancelled."""

    def __init__(self, keys: Sequence[SharePartitionKey], ports: Sequence[int], rng: Random) -> None:
        self.history = History()
        # The durations of successful requests that began while no fault was active. If a request was
        # repeated, only its last attempt counts.
        self.latencies_s: list[float] = []
        self.recovered_s = 0.0
        # The last refused request of each client that repeats its requests.
        self.refused: dict[ShareCoordinatorClient, str] = {}
        self._keys = keys
        self._ports = ports
        # At each coordinator, one key in three is only read. An append in flight blocks the reads of its
        # share-partition, also the reads that a defect would answer with stale state.
        self._written = [
            [key for number, key in enumerate(keys) if number % len(ports) != place]
            for place in range(len(ports))
        ]
        self._rng = rng
        self._leader_epochs: Counter[SharePartitionKey] = Counter()
        self._writes = 0
        self._calls = 0

    def make_client(self, place: int, limits: ConnectionLimits = LIMITS) -> ShareCoordinatorClient:
        """Return a client that sends all requests to one coordinator."""
        address = ("127.0.0.1", self._ports[place])
        return ShareCoordinatorClient(address, direct=True, retry=ONCE, limits=limits)

    async def initialize_all_keys(self) -> None:
        """Initialize the state of all share-partitions."""
        async with self.make_client(0, PATIENT) as client:
            for key in self._keys:
                # Without a start offset, a repeated request changes nothing.
                part = InitializePart(key.partition, STATE_EPOCH, -1)
                await self._send_until_accepted(client, INITIALIZE, key, part)

    async def send_random_requests(self, place: int) -> None:
        await self._send_until_cancelled(place, (READ, READ, WRITE, WRITE, WRITE))

    async def send_random_reads(self, place: int) -> None:
        """Send random reads to one coordinator until cancelled.

        At a coordinator without a connection to the brokers, each write blocks its client. A client that
        only reads is not blocked.
        """
        await self._send_until_cancelled(place, (READ, READ, READ, SUMMARY))

    async def _send_until_cancelled(self, place: int, kinds: Sequence[str]) -> None:
        async with self.make_client(place) as client:
            while True:
                await asyncio.sleep(self._rng.uniform(0, 2 * THINK_S))
                kind = self._rng.choice(kinds)
                key = self._rng.choice(self._written[place] if kind == WRITE else self._keys)
                await self._send_and_record(client, kind, key, self._make_random_part(kind, key))

    async def write_and_read_all_keys(self) -> None:
        """Write and read each share-partition at each coordinator.

        Repeat each request until it succeeds.
        """
        began_s = monotonic()
        async with asyncio.TaskGroup() as tasks:
            for place in range(len(self._ports)):
                tasks.create_task(self._write_and_read_all_keys_at(place))
        self.recovered_s = monotonic() - began_s

    async def delete_all_keys(self) -> None:
        """Delete the state of all share-partitions."""
        async with self.make_client(0, PATIENT) as client:
            for key in self._keys:
                await self._send_until_accepted(client, DELETE, key, DeletePart(key.partition))

    def check_linearizability(self) -> None:
        """Check that the history is linearizable: no acknowledged write is lost, and no read is stale."""
        given_up = check_history(self.history)
        assert given_up == 0, f"the history of {given_up} share-partitions has too many possible orders"

    async def _write_and_read_all_keys_at(self, place: int) -> None:
        async with self.make_client(place, PATIENT) as client:
            for kind in (WRITE, READ):
                for key in self._keys:
                    await self._send_until_accepted(client, kind, key)

    async def _send_until_accepted(
        self, client: ShareCoordinatorClient, kind: str, key: SharePartitionKey, part: Any = None
    ) -> None:
        while True:
            began_s = monotonic()
            op = await self._send_and_record(
                client, kind, key, part or self._make_random_part(kind, key, valid=True)
            )
            if op.accepted:
                break
            self.refused[client] = f"{kind} {key}: {op.answer}"
            await asyncio.sleep(THINK_S)
        self.latencies_s.append(monotonic() - began_s)

    async def _send_and_record(
        self, client: ShareCoordinatorClient, kind: str, key: SharePartitionKey, part: Any
    ) -> Operation:
        self._calls += 1
        # Requests of one client may overtake each other, so each request has its own client name.
        op = self.history.record_request(monotonic(), f"call {self._calls}", kind, key, [part])
        rpc = RPCS[kind]
        response = await client.send(rpc.request(key.group_id, [rpc.topic(key.topic_id, [part])]))
        ((result,),) = (topic.partitions for topic in response.results)
        error_code, took_s = result.error_code, monotonic() - op.invoked[0]
        may_be_repeated = error_code in FENCED and took_s >= ForwardingLimits().pause_s
        if error_code in UNSURE or may_be_repeated:
            # A coordinator may have forwarded the request before this error. If the response was lost, the
            # coordinator forwards the request again, and the first attempt may have taken effect
            # (docs/routing.md).
            result.error_code = int(ErrorCode.NETWORK_EXCEPTION)
        self.history.record_response(monotonic(), op, result)
        known = self._leader_epochs[key]
        if op.accepted and kind == READ:
            self._leader_epochs[key] = max(known, part.leader_epoch)
        elif error_code == ErrorCode.FENCED_LEADER_EPOCH and part.leader_epoch == known:
            # A read without a response has stored a higher leader epoch.
            self._leader_epochs[key] += 1
        return op

    def _make_random_part(self, kind: str, key: SharePartitionKey, *, valid: bool = False) -> Any:
        rng, leader_epoch = self._rng, self._leader_epochs[key]
        # Some requests come from former leaders, and some reads from new ones.
        if kind == READ:
            return ReadPart(key.partition, leader_epoch + (not valid and rng.random() < 0.03))
        if kind == SUMMARY:
            return SummaryPart(key.partition, leader_epoch)
        self._writes += 1
        first = rng.randrange(USER_OFFSETS)
        delivery_state = rng.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
        # A unique delivery count identifies each write.
        batch = StateBatch(first, first + rng.randrange(6), delivery_state, self._writes % 32_000)
        if not valid and rng.random() < 0.05:
            leader_epoch = max(0, leader_epoch - 1)
        start_offset = rng.choice((-1, rng.randrange(USER_OFFSETS // 4)))
        return WritePart(key.partition, STATE_EPOCH, leader_epoch, start_offset, -1, pack([batch]))
