"""Deletes records that are not needed any more, many partitions with one request, at leisure.

A broker that cannot delete records (some that speak Kafka's protocol cannot) switches pruning off: the topic
grows, which is said once, and counted.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection

from coordinator.errors import LogError
from coordinator.kafka.cluster import NO_NODE, Cluster, UnsupportedApi
from protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class Pruner:
    """Keeps for each partition the offset below which records should go, until a broker has deleted them.

    `failed` is told a word each time that it did not work: "unsupported", "refused" or "unreachable".
    """

    def __init__(
        self,
        cluster: Cluster,
        failed: Callable[[str], None],
        may_prune: Callable[[int], bool],
    ) -> None:
        """Prune where `may_prune` allows it at that time; otherwise drop what was asked."""
        self._cluster = cluster
        self._failed = failed
        self._may_prune = may_prune
        self._prune_targets: dict[int, int] = {}
        self._retry_after_s = False
        self._last_logged: set[int] = set()
        self._working: asyncio.Task[None] | None = None

    def prune(self, partition: int, before_offset: int) -> None:
        """Delete the records below a log offset soon. What fails is tried again with the next call."""
        if self._retry_after_s:
            return
        self._prune_targets[partition] = max(before_offset, self._prune_targets.get(partition, 0))
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work())

    def forget(self, partition: int) -> None:
        """Drop what was asked and not done: what is known of the partition is about to be read anew.

        Its log may have gone back meanwhile, and then lacks the records that made those below unneeded.
        """
        self._prune_targets.pop(partition, None)

    async def wait_until_idle(self, partitions: Collection[int]) -> None:
        """Wait while records of these partitions are deleted: their start would move under a reader."""
        while (
            self._working is not None
            and not self._working.done()
            and not self._prune_targets.keys().isdisjoint(partitions)
        ):
            await asyncio.wait({self._working})

    async def close(self) -> None:
        """Let the request under way end, whatever comes of it."""
        if self._working is not None:
            try:
                await asyncio.wait({self._working})
            finally:
                self._working.cancel()

    async def _work(self) -> None:
        # Whatever else is pruned on this turn of the loop goes along.
        await asyncio.sleep(0)
        tried: dict[int, int] = {}
        while wanted := {p: o for p, o in self._prune_targets.items() if tried.get(p) != o}:
            tried.update(wanted)
            for partition in [partition for partition in wanted if not self._may_prune(partition)]:
                self._prune_targets.pop(partition, None)
                del wanted[partition]
            by_node: defaultdict[int, dict[int, int]] = defaultdict(dict)
            for partition, offset in wanted.items():
                by_node[self._cluster.leader(partition)][partition] = offset
            for node, offsets in by_node.items():
                await self._delete(node, offsets)
            if self._retry_after_s:
                self._prune_targets.clear()

    async def _delete(self, node: int, offsets: dict[int, int]) -> None:
        if node == NO_NODE:
            self._failed("unreachable")
            return
        try:
            answers = await self._cluster.delete_records(node, offsets)
        except UnsupportedApi as error:
            _logger.warning("pruning is off, and the state topic grows: %s", error)
            self._failed("unsupported")
            self._retry_after_s = True
            return
        except LogError:
            self._failed("unreachable")
            return
        for partition, offset in offsets.items():
            code = answers.get(partition, -1)
            if code == ErrorCode.NONE:
                if self._prune_targets.get(partition) == offset:
                    del self._prune_targets[partition]
            else:
                self._log_failure(partition, code)

    def _log_failure(self, partition: int, code: int) -> None:
        self._failed("refused")
        self._cluster.refresh_soon()
        if code not in self._last_logged:
            self._last_logged.add(code)
            _logger.warning(
                "partition %d of the state topic was not pruned: Kafka's error %d", partition, code
            )
