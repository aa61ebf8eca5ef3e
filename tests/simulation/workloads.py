"""Simulate clients that follow Kafka's rules: share-partition leaders and group coordinators.

A new share-partition leader usually has a new leader epoch. The new leader reads before it writes, and stops
when it is fenced. Several leaders of a share-partition run at the same time, because an older leader does not
detect at once that it was replaced. The group coordinator increments the state epoch. `hostile_clients` has
clients that follow no rules.
"""

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import Any

from protocol.errors import ErrorCode
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey
from tests.simulation.clients import Broker, Clients
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE, Operation
from tests.simulation.plan import Workload
from tests.simulation.rpc_parts import DeletePart, InitializePart, ReadPart, SummaryPart, WritePart

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
DELIVERIES_MAX = 5
# A leader delivers records below the start offset plus this number.
WINDOW = 24
# Hostile clients use delivery counts from this number on. Each identifies one write.
HOSTILE_COUNT_MIN = 1_000

_FENCED = (int(ErrorCode.FENCED_LEADER_EPOCH), int(ErrorCode.FENCED_STATE_EPOCH))


class SharedClientState:
    """The state that all clients share: the epochs, the brokers, and whether calls are permitted."""

    def __init__(self, clients: Clients, load: Workload, keys: list[SharePartitionKey], rng: Random) -> None:
        self.clients = clients
        self.load = load
        self.keys = keys
        self.rng = rng
        self.brokers = [
            Broker(f"broker {number}", clients, Random(rng.getrandbits(64)), look_up_rate=load.look_up_rate)
            for number in range(load.brokers)
        ]
        self.leader_epochs = dict.fromkeys(keys, 0)
        self.state_epochs: dict[str, int] = {}
        # This event is set while clients may begin calls.
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls_in_progress = 0
        self.sends_garbage = True
        # The last delivery count that a hostile client used.
        self.hostile_count = HOSTILE_COUNT_MIN
        # The number of final responses of each client.
        self.answers: dict[str, int] = {}
        # A client begins no calls after this number of final responses. None: no limit.
        self.answers_wanted: int | None = None

    async def pause_randomly(self, rng: Random, mean_s: float) -> None:
        """Sleep for a random time with a mean of `mean_s` seconds."""
        await asyncio.sleep(rng.expovariate(1 / mean_s))

    async def call(
        self, client_name: str, broker: Broker, kind: str, key: SharePartitionKey, part: Any
    ) -> Operation:
        """Wait until a call is permitted, send it, and count its response."""
        await self.wait_for_permission(client_name)
        try:
            op = await broker.call(kind, key, part)
        finally:
            self.calls_in_progress -= 1
        self.count_final_response(client_name, op)
        return op

    async def wait_for_permission(self, client_name: str) -> None:
        """Wait until this client may begin a call, and count the call as in progress."""
        while not self.gate.is_set() or self._has_enough_answers(client_name):
            await (asyncio.sleep(1.0) if self.gate.is_set() else self.gate.wait())
        self.calls_in_progress += 1

    def count_final_response(self, client_name: str, op: Operation) -> None:
        """Count an operation if its response is final, which includes a refusal."""
        if op.known:
            self.answers[client_name] = self.answers.get(client_name, 0) + 1

    def _has_enough_answers(self, client_name: str) -> bool:
        answers_max = self.answers_wanted
        return answers_max is not None and self.answers.get(client_name, 0) >= answers_max


class PartitionLeader:
    """A share-partition leader that is elected again and again, usually with a new leader epoch."""

    def __init__(self, name: str, cluster: SharedClientState, key: SharePartitionKey, rng: Random) -> None:
        self.name = name
        self._cluster = cluster
        self._key = key
        self._rng = rng
        self._broker = rng.choice(cluster.brokers)
        self._leader_epoch = 0
        self._state_epoch = 0
        self._start_offset = 0
        self._complete: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._in_transition: set[int] = set()
        self._fenced = False

    async def run(self) -> None:
        """Read and write the state of the share-partition until cancelled."""
        cluster, rng = self._cluster, self._rng
        while True:
            cluster.leader_epochs[self._key] += rng.choice((0, 1, 1, 1, 2))
            self._leader_epoch = cluster.leader_epochs[self._key]
            op = await self._send_call(READ, ReadPart(self._key.partition, self._leader_epoch))
            if op.accepted:
                self._reset_progress(op)
                await self._lead_until_fenced()
            await cluster.pause_randomly(rng, cluster.load.think_s + 0.01)

    async def _lead_until_fenced(self) -> None:
        """Deliver records and write their states until fenced, or until a random time has passed."""
        cluster, rng = self._cluster, self._rng
        until_s = cluster.clients.loop.time() + rng.expovariate(1 / cluster.load.lead_s)
        writes: set[asyncio.Task[None]] = set()
        while not self._fenced and cluster.clients.loop.time() < until_s:
            while len(writes) >= cluster.load.writes_outstanding_max:
                _, writes = await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
            if self._fenced:
                break
            writes.add(asyncio.create_task(self._deliver_and_write()))
            await cluster.pause_randomly(rng, cluster.load.think_s)
        if writes:
            await asyncio.gather(*writes)

    def _reset_progress(self, op: Operation) -> None:
        answer = op.answer
        self._fenced = False
        self._state_epoch = answer.state_epoch
        self._start_offset = max(answer.start_offset, 0)
        self._complete.clear()
        self._counts.clear()
        self._in_transition.clear()
        for first, last, state, count in unpack(answer.state_batches):
            for user_offset in range(first, last + 1):
                if state == AVAILABLE:
                    self._counts[user_offset] = count
                else:
                    self._complete[user_offset] = state

    async def _deliver_and_write(self) -> None:
        """Deliver some offsets, and write their new states."""
        rng = self._rng
        free = [
            user_offset
            for user_offset in range(self._start_offset, self._start_offset + WINDOW)
            if user_offset not in self._complete and user_offset not in self._in_transition
        ]
        if not free:
            await asyncio.sleep(0.2)
            return
        first = rng.choice(free[:4])
        chosen = [user_offset for user_offset in free if first <= user_offset < first + rng.randrange(1, 7)]
        decided = {user_offset: self._decide_delivery(user_offset) for user_offset in chosen}
        self._in_transition.update(chosen)
        batches = [StateBatch(user_offset, user_offset, *decided[user_offset]) for user_offset in chosen]
        if rng.random() < 0.5:
            batches = _merge_batches(batches)
        part = WritePart(
            self._key.partition,
            self._state_epoch,
            self._leader_epoch,
            self._start_offset,
            len(self._complete),
            pack(batches),
        )
        op = await self._send_call(WRITE, part)
        self._in_transition.difference_update(chosen)
        if op.accepted:
            self._apply_written_states(decided)
        elif op.error_code in _FENCED or (op.known and rng.random() < 0.5):
            self._fenced = True

    def _decide_delivery(self, user_offset: int) -> tuple[int, int]:
        count = self._counts.get(user_offset, 0) + 1
        if count >= DELIVERIES_MAX:
            return ARCHIVED, count
        return self._rng.choice((ACKNOWLEDGED, ACKNOWLEDGED, AVAILABLE, ARCHIVED)), count

    def _apply_written_states(self, decided: dict[int, tuple[int, int]]) -> None:
        """Apply the written delivery states, and advance the start offset past completed offsets."""
        for user_offset, (state, count) in decided.items():
            if state == AVAILABLE:
                self._counts[user_offset] = count
            else:
                self._complete[user_offset] = state
        while self._start_offset in self._complete:
            del self._complete[self._start_offset]
            self._start_offset += 1

    def _send_call(self, kind: str, part: Any) -> Awaitable[Operation]:
        return self._cluster.call(self.name, self._broker, kind, self._key, part)


def _merge_batches(batches: list[StateBatch]) -> list[StateBatch]:
    """Merge adjacent state batches with equal delivery state and count."""
    merged: list[StateBatch] = []
    for batch in batches:
        if merged and merged[-1].last_offset + 1 == batch.first_offset and merged[-1][2:] == batch[2:]:
            merged[-1] = merged[-1]._replace(last_offset=batch.last_offset)
        else:
            merged.append(batch)
    return merged


class GroupCoordinator:
    """A group coordinator that initializes, resets and deletes the state of its group and reads summaries."""

    def __init__(self, group_id: str, cluster: SharedClientState, rng: Random) -> None:
        self.name = f"group coordinator {group_id}"
        self._group_id = group_id
        self._cluster = cluster
        self._rng = rng
        self._broker = rng.choice(cluster.brokers)
        self._keys = [key for key in cluster.keys if key.group_id == group_id]

    async def run(self) -> None:
        """Initialize all share-partitions, then maintain them until cancelled."""
        cluster, rng = self._cluster, self._rng
        await asyncio.gather(
            *(self._initialize_share_partition(key, rng.choice((-1, 0, 3))) for key in self._keys)
        )
        next_reset_s = cluster.clients.loop.time() + rng.expovariate(1 / cluster.load.reset_s)
        while True:
            await cluster.pause_randomly(rng, cluster.load.summary_s)
            if cluster.clients.loop.time() < next_reset_s:
                await self._read_summaries()
            else:
                next_reset_s = cluster.clients.loop.time() + rng.expovariate(1 / cluster.load.reset_s)
                await self._reset_or_delete(rng.choice(self._keys))

    async def _read_summaries(self) -> None:
        keys = self._rng.sample(self._keys, self._rng.randrange(1, len(self._keys) + 1))
        await asyncio.gather(*(self._send_call(SUMMARY, key, SummaryPart(key.partition, 0)) for key in keys))

    async def _reset_or_delete(self, key: SharePartitionKey) -> None:
        """Send InitializeShareGroupState or DeleteShareGroupState, as in one of five real situations."""
        rng = self._rng
        match rng.randrange(5):
            case 0:
                # Send the same request twice, as a broker does after a lost response.
                await self._initialize_share_partition(key, -1, epoch_up=0)
            case 1:
                # Reset the start offset at the same state epoch, as brokers 4.1 to 4.4 do.
                await self._initialize_share_partition(key, rng.randrange(40), epoch_up=0)
            case 2:
                await self._initialize_share_partition(key, rng.randrange(40), epoch_up=1)
            case 3:
                await self._send_call(DELETE, key, DeletePart(key.partition))
                await self._cluster.pause_randomly(rng, self._cluster.load.deleted_s)
                await self._initialize_share_partition(key, rng.choice((-1, 0)), epoch_up=1)
            case 4:
                # Use an old state epoch, as a delayed request does.
                stale = max(0, self._cluster.state_epochs.get(self._group_id, 0) - rng.randrange(3))
                await self._send_call(INITIALIZE, key, InitializePart(key.partition, stale, -1))

    async def _initialize_share_partition(
        self, key: SharePartitionKey, start_offset: int, *, epoch_up: int = 1
    ) -> None:
        state_epochs = self._cluster.state_epochs
        state_epochs[self._group_id] = state_epochs.get(self._group_id, 0) + epoch_up
        part = InitializePart(key.partition, state_epochs[self._group_id], start_offset)
        while not (await self._send_call(INITIALIZE, key, part)).known:
            await self._cluster.pause_randomly(self._rng, 1.0)

    def _send_call(self, kind: str, key: SharePartitionKey, part: Any) -> Awaitable[Operation]:
        return self._cluster.call(self.name, self._broker, kind, key, part)
