"""Track the size of a partition's log above its start offset, to within one block of about 64 KiB."""

from collections import deque

BLOCK_BYTES = 64 << 10


class PartitionSize:
    """Adds up batches in log order, and subtracts pruned ones in blocks of about 64 KiB."""

    def __init__(self) -> None:
        self.total_bytes = 0
        # The first log offset and the bytes of each block.
        self._blocks: deque[tuple[int, int]] = deque()

    def add(self, log_offset: int, size_bytes: int) -> None:
        """Add a batch that follows all others."""
        self.total_bytes += size_bytes
        if self._blocks and self._blocks[-1][1] < BLOCK_BYTES:
            first_log_offset, block_bytes = self._blocks[-1]
            self._blocks[-1] = (first_log_offset, block_bytes + size_bytes)
        else:
            self._blocks.append((log_offset, size_bytes))

    def subtract_below(self, before_offset: int) -> None:
        """Subtract the blocks that lie entirely below a log offset."""
        while len(self._blocks) > 1 and self._blocks[1][0] <= before_offset:
            self.total_bytes -= self._blocks.popleft()[1]
