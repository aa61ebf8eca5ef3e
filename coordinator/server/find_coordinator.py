"""Who coordinates a share-partition: answered from memory, because a broker asks before every request.

The answer names one of several node ids, all of them this process at its advertised address.  A broker
keeps one connection, with one request in flight, for each node id; several ids give it several.  The
ids are far outside the brokers' own range: a broker reuses the connection of an id that it knows.
"""

from coordinator.config import HostPort
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey

SHARE_KEY_TYPE = 2
SHARE_KEY_TYPE_MIN_VERSION = 6
BATCHED_KEYS_MIN_VERSION = 4


class CoordinatorDirectory:
    """Maps share-partitions to node ids of this process, at its `advertised` address.

    While that has port 0 (the listener has not got its port yet), nobody is named.
    """

    def __init__(
        self, advertised: HostPort, *, node_id_first: int, node_ids: int, state_partitions: int
    ) -> None:
        self.advertised = advertised
        self._node_id_first = node_id_first
        self._node_ids = node_ids
        self._state_partitions = state_partitions

    def find(self, request: FindCoordinatorRequest, api_version: int) -> FindCoordinatorResponse:
        """Answer a request, in the order of Kafka's checks; each key on its own."""
        if api_version < BATCHED_KEYS_MIN_VERSION:
            return FindCoordinatorResponse(
                error_code=int(ErrorCode.INVALID_REQUEST),
                error_message="This server coordinates share groups only: ask in version 6, key type 2.",
                node_id=-1,
                host="",
                port=-1,
            )
        if request.key_type != SHARE_KEY_TYPE or api_version < SHARE_KEY_TYPE_MIN_VERSION:
            message = "This server coordinates share groups only: ask in version 6, key type 2."
            return FindCoordinatorResponse(
                coordinators=[
                    self._refused(key, ErrorCode.INVALID_REQUEST, message) for key in request.coordinator_keys
                ]
            )
        return FindCoordinatorResponse(coordinators=[self._find(key) for key in request.coordinator_keys])

    def _find(self, text: str) -> Coordinator:
        try:
            key = SharePartitionKey.parse(text)
        except ValueError:
            # Kafka sends an empty message with this error, so its clients expect one.
            return self._refused(text, ErrorCode.INVALID_REQUEST, "")
        if not self.advertised.host or not 0 < self.advertised.port < 65536:
            # Such an address with error NONE kills the broker that is told it: better no answer than that.
            return self._refused(text, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        shard = state_partition(key, self._state_partitions)
        return Coordinator(
            key=text,
            node_id=self._node_id_first + shard % self._node_ids,
            host=self.advertised.host,
            port=self.advertised.port,
            error_code=0,
            error_message="",
        )

    @staticmethod
    def _refused(text: str, error_code: ErrorCode, message: str) -> Coordinator:
        return Coordinator(
            key=text, node_id=-1, host="", port=-1, error_code=int(error_code), error_message=message
        )
