"""Record the requested and the acknowledged writes of one share-partition with several writers.

Each offset is written once, by any writer, to any coordinator. So the state must contain all acknowledged
offsets, and no offset that was never requested. Offsets of failed requests may be in the state or not.
"""

from collections.abc import Sequence

from coordinator.client import ShareCoordinatorClient, SharePartitionKey, StateBatch
from coordinator.shard import ShareState
from protocol.state_batches import unpack
from tests.builders import ACKNOWLEDGED

STATE_EPOCH = 1
LEADER_EPOCH = 0
# The start offset is at least this number of offsets below the newest write.
OPEN_OFFSETS = 60
START_STEP = 20


class WriteLedger:
    """The writes of one share-partition. All tasks that use a ledger run on one event loop."""

    def __init__(self, key: SharePartitionKey) -> None:
        self.key = key
        self.is_open = False
        self.next_offset = 0
        self.asked_start_offset = 0
        self.acknowledged: set[int] = set()
        self.acknowledged_start_offset = 0
        self.acknowledged_writes = 0

    async def open(self, client: ShareCoordinatorClient) -> None:
        """Initialize the state."""
        await client.initialize(self.key, STATE_EPOCH, 0)
        self.is_open = True

    async def write(self, client: ShareCoordinatorClient) -> None:
        """Acknowledge the next offset, and record the write when the coordinator confirms it."""
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
        """Read the state, and compare it with the writes that were acknowledged before the request."""
        promised, start_offset = frozenset(self.acknowledged), self.acknowledged_start_offset
        state = await client.read(self.key, LEADER_EPOCH)
        self._compare_state(state.state_epoch, state.start_offset, state.batches, promised, start_offset)
        # Offsets below the start offset are no longer checked.
        self.acknowledged = {offset for offset in self.acknowledged if offset >= start_offset}

    def check(self, state: ShareState) -> None:
        """Compare a given state with all acknowledged writes; no write may be in progress."""
        batches = unpack(state.batches)
        promised = frozenset(self.acknowledged)
        self._compare_state(
            state.state_epoch, state.start_offset, batches, promised, self.acknowledged_start_offset
        )

    def _compare_state(
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
        assert not lost, f"{self.key}: acknowledged offsets are missing: {sorted(lost)}"
        assert all(offset < self.next_offset for offset in there), (
            f"{self.key}: the state has offsets that were never written"
        )
        assert {(batch.delivery_state, batch.delivery_count) for batch in batches} <= {(ACKNOWLEDGED, 1)}
