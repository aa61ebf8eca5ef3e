"""Who coordinates a share-partition: asked with FindCoordinator, and remembered until it proves wrong.

Kafka's persister asks before every request; we remember, because answers change only when coordinators
move, and a coordinator says so (NOT_COORDINATOR) or is gone.
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
from coordinator.client.nodes import Node, Nodes
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import FindCoordinatorRequest
from protocol.state_records import SharePartitionKey

SHARE_KEY_TYPE = 2
SHARE_KEY_TYPE_MIN_VERSION = 6

# Each takes some 400 bytes. When there are more, all are asked for anew.
COORDINATORS_REMEMBERED_MAX = 65_536


class Lookup:
    """Finds coordinators. `direct`: the bootstrap address is the coordinator of every share-partition."""

    def __init__(self, nodes: Nodes, bootstrap: list[Node], *, direct: bool) -> None:
        self._nodes = nodes
        self._bootstrap = bootstrap
        self._direct = direct
        self._coordinators: dict[SharePartitionKey, Node] = {}

    async def find(
        self, keys: Collection[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        """Return for each share-partition its coordinator, or why it could not be found.

        Raises ClientClosed only.
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
            found.update(await self._ask(unknown))
        return found

    def forget(self, key: SharePartitionKey) -> None:
        """Ask anew for a share-partition: its coordinator says that it is not, or is not yet."""
        self._coordinators.pop(key, None)

    def forget_node(self, node: Node) -> None:
        """Ask anew for everything that a node coordinates: it did not answer."""
        self._coordinators = {key: found for key, found in self._coordinators.items() if found != node}
        self._deprioritise(node)

    async def _ask(
        self, keys: list[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        """Ask one bootstrap address after the other, beginning with the one that answered last."""
        failure: ShareCoordinatorError | None = None
        for node in list(self._bootstrap):
            try:
                return await self._ask_at(node, keys)
            except ClientClosed:
                raise
            except ShareCoordinatorError as error:
                failure = error
                self._deprioritise(node)
        assert failure is not None
        return {key: failure.with_key(key) for key in keys}

    def _deprioritise(self, node: Node) -> None:
        """Ask other bootstrap addresses first from now on."""
        if self._bootstrap[0] == node:
            self._bootstrap = [*self._bootstrap[1:], node]

    async def _ask_at(
        self, node: Node, keys: list[SharePartitionKey]
    ) -> dict[SharePartitionKey, Node | ShareCoordinatorError]:
        connection = await self._nodes.connection(node)
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
        found = {key: _coordinator(key, answers.get(text)) for key, text in text_of.items()}
        self._remember(found)
        return found

    def _remember(self, found: dict[SharePartitionKey, Node | ShareCoordinatorError]) -> None:
        if len(self._coordinators) + len(found) > COORDINATORS_REMEMBERED_MAX:
            self._coordinators.clear()
        for key, node in found.items():
            if isinstance(node, Node):
                self._coordinators[key] = node


def _coordinator(key: SharePartitionKey, answer: Any) -> Node | ShareCoordinatorError:
    """Judge what was answered for a key (None: nothing)."""
    if answer is None:
        message = "FindCoordinator was answered without this share-partition."
        return CoordinatorUnavailable(ErrorCode.COORDINATOR_NOT_AVAILABLE, message, key)
    if answer.error_code:
        return error_for_code(answer.error_code, answer.error_message, key)
    if not answer.host or not 0 < answer.port < 65536 or answer.node_id < 0:
        message = f"FindCoordinator answered node {answer.node_id} at {answer.host!r}:{answer.port}."
        return CoordinatorUnavailable(ErrorCode.COORDINATOR_NOT_AVAILABLE, message, key)
    return Node(answer.node_id, answer.host, answer.port)
