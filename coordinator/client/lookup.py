"""Find the coordinators of share-partitions with FindCoordinator, and cache them until an error.

Kafka's persister sends FindCoordinator before every request; this client caches the response.  A cached
response is outdated only when coordinators move: the old coordinator then returns NOT_COORDINATOR or is
unreachable.
"""

from collections.abc import Collection
from typing import Any

from coordinator.client.errors import (
    ClientClosed,
    CoordinatorUnavailable,
    ShareCoordinatorError,
    UnsupportedVersion,
    error_for_code,
)
from coordinator.client.nodes import Node, NodeConnections
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import FindCoordinatorRequest
from protocol.state_records import SharePartitionKey

SHARE_KEY_TYPE = 2
SHARE_KEY_TYPE_MIN_VERSION = 6

# Size of the cache; an entry takes about 400 bytes. When the cache is full, it is cleared.
COORDINATORS_REMEMBERED_MAX = 65_536


class CoordinatorLookup:
    """Finds coordinators. With `direct`, the bootstrap address coordinates every share-partition."""

    def __init__(self, nodes: NodeConnections, bootstrap: list[Node], *, direct: bool) -> None:
        self._nodes = nodes
        self._bootstrap = bootstrap
        self._direct = direct
        self._coordinators: dict[SharePartitionKey, Node] = {}

    async def find_coordinators(
        self, keys: Collection[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        """Return the coordinator of each share-partition, or the error of its lookup.

        Raises only ClientClosed.
        """
        if self._direct:
            return dict.fromkeys(keys, self._bootstrap[0])
        found: dict[SharePartitionKey, Node | ShareCoordinatorError] = {}
        unknown: list[SharePartitionKey] = []
        for key in keys:
            node = self._coordinators.get(key)
            if node is None:
                unknown.append(key)
            else:
                found[key] = node
        if unknown:
            found.update(await self._request_coordinators(unknown))
        return found

    def forget(self, key: SharePartitionKey) -> None:
        """Remove a share-partition from the cache after its coordinator returned a retriable error."""
        self._coordinators.pop(key, None)

    def forget_node(self, node: Node) -> None:
        """Remove all share-partitions of a node from the cache after the node did not respond."""
        self._coordinators = {key: found for key, found in self._coordinators.items() if found != node}
        self._move_address_to_end(node)

    async def _request_coordinators(
        self, keys: list[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        """Send FindCoordinator to one bootstrap address after another until one responds."""
        failure: ShareCoordinatorError | None = None
        for node in list(self._bootstrap):
            try:
                return await self._request_from_node(node, keys)
            except ClientClosed:
                raise
            except ShareCoordinatorError as error:
                failure = error
                self._move_address_to_end(node)
        assert failure is not None
        return {key: failure.with_key(key) for key in keys}

    def _move_address_to_end(self, node: Node) -> None:
        if self._bootstrap[0] == node:
            self._bootstrap = [*self._bootstrap[1:], node]

    async def _request_from_node(
        self, node: Node, keys: list[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        connection = await self._nodes.get_connection(node)
        text_of = {key: str(key) for key in keys}
        request = FindCoordinatorRequest(key_type=SHARE_KEY_TYPE, coordinator_keys=list(text_of.values()))
        version = connection.newest_version(FindCoordinatorRequest)
        if version < SHARE_KEY_TYPE_MIN_VERSION:
            message = (
                f"{node.host}:{node.port} does not know of share coordinators: "
                f"it serves FindCoordinator up to version {version}, and 6 is needed."
            )
            raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, message)
        response = await connection.request(request, version=version)
        answers = {answer.key: answer for answer in response.coordinators}
        found = {key: _make_node(key, answers.get(text)) for key, text in text_of.items()}
        self._cache_coordinators(found)
        return found

    def _cache_coordinators(self, found: dict[SharePartitionKey, Node | ShareCoordinatorError]) -> None:
        if len(self._coordinators) + len(found) > COORDINATORS_REMEMBERED_MAX:
            self._coordinators.clear()
        for key, node in found.items():
            if isinstance(node, Node):
                self._coordinators[key] = node


def _make_node(key: SharePartitionKey, answer: Any) -> Node | ShareCoordinatorError:
    """Return the coordinator in the result of FindCoordinator, or an error.

    `answer` is None if the response has no result for the share-partition.
    """
    if answer is None:
        message = "The FindCoordinator response does not contain this share-partition."
        return CoordinatorUnavailable(ErrorCode.COORDINATOR_NOT_AVAILABLE, message, key)
    if answer.error_code:
        return error_for_code(answer.error_code, answer.error_message, key)
    if not answer.host or not 0 < answer.port < 65536 or answer.node_id < 0:
        message = f"FindCoordinator answered node {answer.node_id} at {answer.host!r}:{answer.port}."
        return CoordinatorUnavailable(ErrorCode.COORDINATOR_NOT_AVAILABLE, message, key)
    return Node(answer.node_id, answer.host, answer.port)
