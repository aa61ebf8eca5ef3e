"""Delete pruned records in the background, with one request for many partitions.

Some implementations of Kafka's protocol have no DeleteRecords. Pruning is then disabled and the topic grows;
this is logged once and counted.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from coordinator.cluster.kafka.broker_results import NO_NODE, UnsupportedApi
from coordinator.errors import LogError
from protocol.errors import ErrorCode, kafka_error

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)


class Pruner:
    """Stores for each partition the offset to prune to, until a broker has deleted the records below it.

    `on_failure` is called for each failure, with "unsupported", "refused" or "unreachable".
    """

    def __init__(
        self,
        cluster: "Brokers",
        on_failure: Callable[[str], None],
        may_prune: Callable[[int], bool],
    ) -> None:
        """Before each deletion, `may_prune` is called; if it returns False, the deletion is dropped."""
        self._cluster = cluster
        self._on_failure = on_failure
        self._may_prune = may_prune
        self._prune_targets: dict[int, int] = {}
        self._is_disabled = False
        self._last_logged: set[int] = set()
        self._deletion: asyncio.Task[None] | None = None

    def prune(self, partition: int, before_offset: int) -> None:
        """Delete the records below a log offset soon. A failed deletion is retried at the next call."""
        if self._is_disabled:
            return
        self._prune_targets[partition] = max(before_offset, self._prune_targets.get(partition, before_offset))
        if self._deletion is None or self._deletion.done():
            self._deletion = asyncio.get_running_loop().create_task(self._delete_pending_records())

    def cancel(self, partition: int) -> None:
        """Drop the pending deletion of a partition, because its log is about to be read again.

        If the log was truncated meanwhile, it may lack the records that made older ones redundant.
        """
        self._prune_targets.pop(partition, None)

    async def wait_until_idle(self, partitions: Collection[int]) -> None:
        """Wait until no deletion in these partitions is pending: it would change their start offsets."""
        while (
            self._deletion is not None
            and not self._deletion.done()
            and not self._prune_targets.keys().isdisjoint(partitions)
        ):
            await asyncio.wait({self._deletion})

    async def close(self) -> None:
        if self._deletion is not None:
            try:
                await asyncio.wait({self._deletion})
            finally:
                self._deletion.cancel()

    async def _delete_pending_records(self) -> None:
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
                await self._delete_records(node, offsets)
                if self._is_disabled:
                    return

    async def _delete_records(self, node: int, offsets: dict[int, int]) -> None:
        if node == NO_NODE:
            self._on_failure("unreachable")
            return
        try:
            answers = await self._cluster.delete_records(node, offsets)
        except UnsupportedApi as error:
            _logger.warning("pruning is off, and the state topic grows: %s", error)
            self._on_failure("unsupported")
            self._is_disabled = True
        except LogError:
            self._on_failure("unreachable")
        else:
            for partition, offset in offsets.items():
                self._handle_delete_result(
                    partition, offset, answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                )

    def _handle_delete_result(self, partition: int, offset: int, code: int) -> None:
        if code != ErrorCode.NONE:
            self._log_failure(partition, code)
        elif self._prune_targets.get(partition) == offset:
            del self._prune_targets[partition]

    def _log_failure(self, partition: int, code: int) -> None:
        self._on_failure("refused")
        self._cluster.refresh_soon()
        if code not in self._last_logged:
            self._last_logged.add(code)
            _logger.warning(
                "partition %d of the state topic was not pruned: %s",
                partition,
                kafka_error(code),
            )
