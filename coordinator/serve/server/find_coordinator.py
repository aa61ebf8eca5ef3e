"""Respond to FindCoordinator from memory, because a broker sends it before every request.

The response has one of several node ids of the owner's process, all with its advertised address.  For each
node id, a broker keeps one connection with one request in flight.  Several node ids therefore allow several
requests in flight from a broker.  The ids are far outside the brokers' own range, because a broker would
reuse the connection of a known id and ignore the address.  In a group of coordinators, node ids follow from
the addresses of the replicas, so all replicas return the same response.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from coordinator.cluster.ownership import Assignment
from coordinator.config import INT32_MAX, HostPort
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    encode_response,
)
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from protocol.wire import write_uvarint

SHARE_KEY_TYPE = 2
SHARE_KEY_TYPE_MIN_VERSION = 6
FLEXIBLE_MIN_VERSION = 3
BATCHED_KEYS_MIN_VERSION = 4
_SHARE_GROUPS_ONLY = "This server coordinates share groups only: use FindCoordinator version 6, key type 2."
# The maximum numbers of keys and characters in one step of a large request; other clients are served between
# steps.
_STEP_KEYS = 200
_STEP_CHARS = 32 << 10
# Sizes in a response with batched keys (version 4 and later): the throttle time before the array, and the
# empty tagged fields after it.
_THROTTLE_BYTES, _END_BYTES = 4, 1
# Number of node ids of each replica.
NODE_IDS_PER_REPLICA = 64


class CoordinatorRoute(NamedTuple):
    """The node id and address of a coordinator in responses."""

    node_id: int
    host: str
    port: int


class EncodedPart(NamedTuple):
    """An encoded response or a part of one, and the first error code in it."""

    encoded: bytes
    error_code: int


class CoordinatorDirectory:
    """The route to the owner of each shard; initially this process at its `advertised` address.

    If the port is 0, or if a shard has no owner, the response is COORDINATOR_NOT_AVAILABLE.
    `route_version` increases whenever responses may have changed.
    """

    def __init__(
        self, advertised: HostPort, *, node_id_first: int, node_ids: int, state_partitions: int
    ) -> None:
        self.route_version = 0
        self._node_id_first = node_id_first
        self._node_ids = node_ids
        self._state_partitions = state_partitions
        self._routes: list[CoordinatorRoute | None] = []
        self.advertise(advertised)

    def advertise(self, advertised: HostPort) -> None:
        """Route all shards to this process at an advertised address."""
        self.advertised = advertised
        self._set_routes(
            _make_route(advertised, self._node_id_first + shard % self._node_ids)
            for shard in range(self._state_partitions)
        )

    def set_assignment(self, assignment: Assignment | None) -> None:
        """Route to the owners of an assignment; None means that the owners are unknown."""
        if assignment is None:
            self._set_routes([None] * self._state_partitions)
            return
        first_ids = _assign_node_ids(assignment, self._node_id_first)
        routes: list[CoordinatorRoute | None] = []
        for shard in range(self._state_partitions):
            owner = assignment.owner(shard)
            if owner is None:
                routes.append(None)
                continue
            node_id = first_ids[owner.wire] + shard % min(max(owner.connections, 1), NODE_IDS_PER_REPLICA)
            routes.append(_make_route(HostPort.parse(owner.wire), node_id))
        self._set_routes(routes)

    def _set_routes(self, routes: Iterable[CoordinatorRoute | None]) -> None:
        self._routes = list(routes)
        self.route_version += 1

    def find(self, request: FindCoordinatorRequest, api_version: int) -> FindCoordinatorResponse:
        """Return the response to a request; each key has its own result. The checks are in Kafka's order."""
        if api_version < BATCHED_KEYS_MIN_VERSION:
            return FindCoordinatorResponse(
                error_code=int(ErrorCode.INVALID_REQUEST),
                error_message=_SHARE_GROUPS_ONLY,
                node_id=-1,
                host="",
                port=-1,
            )
        if request.key_type != SHARE_KEY_TYPE or api_version < SHARE_KEY_TYPE_MIN_VERSION:
            return FindCoordinatorResponse(
                coordinators=[
                    self._error_result(key, ErrorCode.INVALID_REQUEST, _SHARE_GROUPS_ONLY)
                    for key in request.coordinator_keys
                ]
            )
        return FindCoordinatorResponse(
            coordinators=[self._find_route(key) for key in request.coordinator_keys]
        )

    def find_in_steps(self, request: FindCoordinatorRequest, api_version: int) -> Iterator[EncodedPart]:
        """Yield the encoded parts of the response; each takes about a millisecond."""
        if api_version < BATCHED_KEYS_MIN_VERSION:
            response = self.find(request, api_version)
            yield EncodedPart(encode_response(response, api_version), response.error_code)
            return
        opening = bytes(_THROTTLE_BYTES) + write_uvarint(len(request.coordinator_keys) + 1)
        error_code = 0
        for keys in _split_keys_into_steps(request.coordinator_keys):
            part = self.find(FindCoordinatorRequest(request.key, request.key_type, keys), api_version)
            encoded = encode_response(part, api_version)
            elements_at = _THROTTLE_BYTES + len(write_uvarint(len(keys) + 1))
            error_code = next((found.error_code for found in part.coordinators if found.error_code), 0)
            yield EncodedPart(opening + encoded[elements_at:-_END_BYTES], error_code)
            opening = b""
        yield EncodedPart(opening + bytes(_END_BYTES), 0)

    def _find_route(self, text: str) -> Coordinator:
        try:
            key = SharePartitionKey.parse(text)
        except ValueError:
            # Kafka sends an empty message with this error, so its clients expect one.
            return self._error_result(text, ErrorCode.INVALID_REQUEST, "")
        route = self._routes[state_partition(key, self._state_partitions)]
        if route is None:
            return self._error_result(text, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        return Coordinator(text, *route, error_code=0, error_message="")

    @staticmethod
    def _error_result(text: str, error_code: ErrorCode, message: str) -> Coordinator:
        return Coordinator(
            key=text, node_id=-1, host="", port=-1, error_code=int(error_code), error_message=message
        )


def join_encoded_parts(parts: list[EncodedPart], api_version: int) -> EncodedPart:
    """Return the response that consists of these parts, with the tagged fields of its header."""
    header = b"\0" if api_version >= FLEXIBLE_MIN_VERSION else b""
    error_code = next((part.error_code for part in parts if part.error_code), 0)
    return EncodedPart(header + b"".join(part.encoded for part in parts), error_code)


def _split_keys_into_steps(keys: list[str]) -> Iterator[list[str]]:
    """Divide keys into parts that take about a millisecond each."""
    part: list[str] = []
    chars = 0
    for key in keys:
        part.append(key)
        chars += len(key)
        if len(part) == _STEP_KEYS or chars > _STEP_CHARS:
            yield part
            part, chars = [], 0
    if part:
        yield part


def _make_route(address: HostPort, node_id: int) -> CoordinatorRoute | None:
    """Return the route to an address, or None if the address is incomplete.

    A response with error NONE and an empty host or port would end the broker's network thread.
    """
    if not address.host or not 0 < address.port < 65536:
        return None
    return CoordinatorRoute(node_id, address.host, address.port)


def _assign_node_ids(assignment: Assignment, node_id_first: int) -> dict[str, int]:
    """Return the first node id of each address.

    A hash of the address selects one of the ranges of ids; if it is taken, the next free range is used.
    """
    slots = (INT32_MAX - node_id_first) // NODE_IDS_PER_REPLICA
    taken: dict[int, str] = {}
    for wire in sorted({replica.wire for replica in assignment.replicas}):
        slot = crc32(wire.encode()) % slots
        while slot in taken:
            slot = (slot + 1) % slots
        taken[slot] = wire
    return {wire: node_id_first + slot * NODE_IDS_PER_REPLICA for slot, wire in taken.items()}
