"""A ledger of one share-partition that many write to: what was asked for, and what of that was acknowledged.

The one thing to know: each offset is asked for once, by whoever comes next, wherever it is sent. So whatever
becomes of a request that failed, state must hold what was acknowledged and nothing that was never asked.
"""

from collections.abc import Sequence

from coordinator.client import ShareCoordinatorClient, SharePartitionKey, StateBatch
from coordinator.shard import ShareState
from protocol.state_batches import unpack
from tests.builders import ACKNOWLEDGED

STATE_EPOCH = 1
LEADER_EPOCH = 0
# The start offset follows the writes at this distance, a step at a time.
OPEN_OFFSETS = 60
START_STEP = 20


class WriteLedger:
    """One share-partition. Used on one event loop, by any number of tasks."""

    def __init__(self, key: SharePartitionKey) -> None:
        self.key = key
        self.is_open = False
        self.next_offset = 0
        self.asked_start_offset = 0
        self.acknowledged: set[int] = set()
        self.acknowledged_start_offset = 0
        self.acknowledged_writes = 0

    async def open(self, client: ShareCoordinatorClient) -> None:
        """Begin the state."""
        await client.initialize(self.key, STATE_EPOCH, 0)
        self.is_open = True

    async def write(self, client: ShareCoordinatorClient) -> None:
        """Settle the next offset, and note it when that is acknowledged."""
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        if offset % START_STEP == 0:
            self.asked_start_offset = max(0, offset - OPEN_OFFSETS)
        start_offset = self.asked_start_offset
        await client.write(
            self.key,
            state_epoch=STATE_EPOCH,
            leader_epoch=LEADER_EPOCH,
            start_offset=start_offset,
            batches=[StateBatch(offset, offset, ACKNOWLEDGED, 1)],
        )
        self.acknowledged.add(offset)
        self.acknowledged_start_offset = max(self.acknowledged_start_offset, start_offset)
        self.acknowledged_writes += 1

    async def read(self, client: ShareCoordinatorClient) -> None:
        """Read, and hold the answer against what had been acknowledged before anybody was asked."""
        promised, start_offset = frozenset(self.acknowledged), self.acknowledged_start_offset
        state = await client.read(self.key, LEADER_EPOCH)
        self._compare(state.state_epoch, state.start_offset, state.batches, promised, start_offset)
        # What lies below the start offset is of no interest to anybody any more.
        self.acknowledged = {offset for offset in self.acknowledged if offset >= start_offset}

    def check(self, state: ShareState) -> None:
        """Hold a state that was found somewhere against all that was acknowledged; nobody writes now."""
        batches = unpack(state.batches)
        promised = frozenset(self.acknowledged)
        self._compare(
            state.state_epoch, state.start_offset, batches, promised, self.acknowledged_start_offset
        )

    def _compare(
        self,
        state_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch],
        promised: frozenset[int],
        promised_start_offset: int,
    ) -> None:
        there = {offset for batch in batches for offset in range(batch.first_offset, batch.last_offset + 1)}
        lost = {offset for offset in promised - there if offset >= start_offset}
        assert state_epoch == STATE_EPOCH
        assert promised_start_offset <= start_offset <= self.asked_start_offset, f"{self.key}: start offset"
        assert not lost, f"{self.key}: acknowledged and not there: {sorted(lost)}"
        assert all(offset < self.next_offset for offset in there), f"{self.key}: nobody wrote that"
        assert {(batch.delivery_state, batch.delivery_count) for batch in batches} <= {(ACKNOWLEDGED, 1)}
