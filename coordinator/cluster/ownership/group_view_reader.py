"""Read the owners of all shards from the group after each assignment."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from coordinator.cluster.kafka.group_results import DescribeResult
from coordinator.cluster.ownership.join_errors import JoinFailure
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import GroupView, UnreadableMessage, read_group_view
from coordinator.errors import LogError
from protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class GroupViewReader:
    """Sends DescribeGroups until all owners of a generation are known, and passes them to `found`.

    The event `settled` is set while there is nothing to read. All methods are called on the membership's
    loop.
    """

    def __init__(
        self,
        describe: Callable[[], Awaitable[DescribeResult]],
        found: Callable[[GroupView], None],
        *,
        state_partitions: int,
        limits: GroupLimits,
    ) -> None:
        self.settled = asyncio.Event()
        self.settled.set()
        self._describe = describe
        self._found = found
        self._state_partitions = state_partitions
        self._limits = limits
        self._generation = -1
        self._wanted = asyncio.Event()

    def start_reading(self, generation: int) -> None:
        """Start to read the owners of all shards in the generation of this process's assignment."""
        self._generation = generation
        self.settled.clear()
        self._wanted.set()

    def cancel(self) -> None:
        """Stop reading, because the owners are known or not relevant for this process."""
        self._wanted.clear()
        self.settled.set()

    async def run(self) -> None:
        pause_s = self._limits.retry_pause_first_s
        while True:
            await self._wanted.wait()
            generation = self._generation
            view = await self._read_view(generation)
            if not self._wanted.is_set() or generation != self._generation:
                continue
            if view is not None:
                self.cancel()
                self._found(view)
                pause_s = self._limits.retry_pause_first_s
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._limits.retry_pause_max_s)

    async def _read_view(self, generation: int) -> GroupView | None:
        """Return the view, or None if it cannot be read now, for example during a rebalance."""
        try:
            described = await self._describe()
            if described.error_code != ErrorCode.NONE or not described.members:
                return None
            return read_group_view(described.members, generation, self._state_partitions)
        except (LogError, JoinFailure):
            return None
        except UnreadableMessage as error:
            _logger.warning("The group's members do not agree about the owners of shards: %s.", error)
            return None
