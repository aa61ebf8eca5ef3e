"""Request metadata from several brokers, and keep the newest response.

A broker that is disconnected from the controller responds at once, with outdated leaders. Therefore, each
refresh sends requests to several brokers. A refresh after an error uses other brokers than the last refresh.
A refresh ends at the first response, so that a broker that does not respond cannot delay it. Responses that
arrive later are also stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from coordinator.cluster.kafka.broker_results import NO_NODE, NoResponse, UnsupportedApi
from coordinator.cluster.kafka.metadata import NO_LEADER_EPOCH, ClusterMetadata, MergedTopicMetadata
from coordinator.errors import LogUnavailable
from protocol.errors import ErrorCode
from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)

BROKERS_ASKED = 3
# If none of the asked brokers answers within this time, the next `BROKERS_ASKED` brokers are asked too.
_FIRST_ANSWER_S = 1.0
# How long a refresh that requires several responses waits for further ones after the first.
_LATER_ANSWERS_S = 1.0


class MetadataCache:
    """The metadata of a cluster and of one topic, as several brokers report it. Used on one event loop.

    `addresses` maps node ids to addresses. `unreachable_reason` is the reason while no broker answers, else
    None.
    """

    def __init__(
        self,
        topic: str | None,
        ask: Callable[[int], Awaitable[ClusterMetadata]],
        request_from_bootstrap_servers: Callable[[], Awaitable[ClusterMetadata]],
        first_broker: int = 0,
    ) -> None:
        """Create an empty cache.

        `ask` raises NoResponse, and `request_from_bootstrap_servers` LogUnavailable if no broker answers.

        `first_broker`, modulo the number of brokers, is the index of the first broker to ask. Processes with
        different numbers spread their requests over the cluster.
        """
        self._topic_name = topic
        self._ask = ask
        self._request_metadata_from_bootstrap_servers = request_from_bootstrap_servers
        self.topic = MergedTopicMetadata()
        self.addresses: dict[int, tuple[str, int]] = {}
        self.unreachable_reason: str | None = None
        self._recreation_is_logged = False
        self._last_responder = NO_NODE
        self._first = first_broker
        self._asking: dict[int, asyncio.Task[ClusterMetadata | None]] = {}

    async def close(self) -> None:
        """Cancel the requests in flight."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        # asyncio closes a half-open connection in the next iteration of the event loop.
        await asyncio.sleep(0)

    def leader(self, partition: int) -> int:
        """Return the leader of a partition with the newest leader epoch, NO_NODE if unknown."""
        known = self.topic.partitions.get(partition)
        return NO_NODE if known is None else known.leader

    def leader_epoch(self, partition: int) -> int:
        """Return the newest known leader epoch of a partition, NO_LEADER_EPOCH if unknown."""
        known = self.topic.partitions.get(partition)
        return NO_LEADER_EPOCH if known is None else known.leader_epoch

    def recreated_reason(self) -> str | None:
        """Return why the topic cannot be used if it was deleted and created again, else None."""
        new_topic_id = self.topic.new_topic_id()
        if new_topic_id is None:
            return None
        return (
            f"Topic {self._topic_name} was deleted and created again: its topic id was "
            f"{topic_id_text(self.topic.topic_id)} and is {topic_id_text(new_topic_id)}. The new topic is "
            f"not used. Restart this process to begin with the state in the new topic."
        )

    def nodes_best_first(self) -> list[int]:
        """Return all brokers; the last one that answered is first if its metadata was the newest."""
        return sorted(self.addresses, key=lambda node: node != self._last_responder)

    def record_response(self, node: int) -> None:
        """Record the broker that answered last."""
        self._last_responder = node

    async def refresh(
        self, *, wait_for_others: bool = False, ask_others: bool = False
    ) -> list[ClusterMetadata]:
        """Ask several brokers, or the bootstrap servers if no broker answers; return the first responses.

        With `wait_for_others`, also wait a short time for later responses. With `ask_others`, start with
        other brokers than the last refresh. Raises LogUnavailable if no server answers, LogRefused if a
        bootstrap server rejects this client.
        """
        self._first += BROKERS_ASKED if ask_others else 0
        nodes = self._nodes_to_ask()
        asked: set[asyncio.Task[ClusterMetadata | None]] = set()
        for first in range(0, len(nodes), BROKERS_ASKED):
            asked |= {self._start_request(node) for node in nodes[first : first + BROKERS_ASKED]}
            is_last = first + BROKERS_ASKED >= len(nodes)
            if await _wait_for_first_response(asked, None if is_last else _FIRST_ANSWER_S):
                if wait_for_others:
                    await asyncio.wait(asked, timeout=_LATER_ANSWERS_S)
                return _completed_results(asked)
        try:
            metadata = await self._request_metadata_from_bootstrap_servers()
        except LogUnavailable as error:
            self.unreachable_reason = str(error)
            raise
        self._store_metadata(NO_NODE, metadata)
        return [metadata]

    def _nodes_to_ask(self) -> list[int]:
        """Return all brokers in the order in which this refresh asks them."""
        nodes = sorted(self.addresses)
        first = self._first % len(nodes) if nodes else 0
        return nodes[first:] + nodes[:first]

    def _start_request(self, node: int) -> "asyncio.Task[ClusterMetadata | None]":
        """Start a request to a broker, or return the request in flight."""
        task = self._asking.get(node)
        if task is None:
            task = self._asking[node] = asyncio.create_task(self._request_from_node(node))
            task.add_done_callback(lambda _: self._asking.pop(node, None))
        return task

    async def _request_from_node(self, node: int) -> ClusterMetadata | None:
        try:
            metadata = await self._ask(node)
        except (NoResponse, UnsupportedApi):
            return None
        self._store_metadata(node, metadata)
        return metadata

    def _store_metadata(self, node: int, metadata: ClusterMetadata) -> None:
        """Store a broker's report, unless another broker has reported newer metadata."""
        is_newest = True
        for topic in metadata.topics:
            if topic.name == self._topic_name and topic.error_code == ErrorCode.NONE:
                is_newest = self.topic.update(node, topic)
        if is_newest or not self.addresses:
            self.addresses, self._last_responder = dict(metadata.brokers), node
        elif node == self._last_responder:
            self._last_responder = NO_NODE
        if self.unreachable_reason is not None:
            _logger.info("Kafka is reachable again")
            self.unreachable_reason = None
        reason = self.recreated_reason()
        if reason is not None and not self._recreation_is_logged:
            _logger.error("%s", reason)
        self._recreation_is_logged = reason is not None


async def _wait_for_first_response(
    asked: "Iterable[asyncio.Task[ClusterMetadata | None]]", timeout_s: float | None
) -> bool:
    """Wait for the first response; return False if no broker answers within the timeout."""
    waiting = set(asked)
    try:
        async with asyncio.timeout(timeout_s):
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result() is not None for task in done):
                    return True
    except TimeoutError:
        pass
    return False


def _completed_results(asked: "Iterable[asyncio.Task[ClusterMetadata | None]]") -> list[ClusterMetadata]:
    results = [task.result() for task in asked if task.done()]
    return [metadata for metadata in results if metadata is not None]
