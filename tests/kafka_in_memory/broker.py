"""Answer the requests of one broker by the rules of a cluster."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from coordinator.cluster.kafka.cluster import FetchResult, ListedOffset, ProduceResult, ProducerId
from coordinator.cluster.kafka.metadata import TopicMetadata
from protocol.errors import ErrorCode
from protocol.messages import fetch, produce
from protocol.messages import find_coordinator as find_api
from protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from protocol.messages.metadata import (
    DescribedBroker,
    DescribedPartition,
    DescribedTopic,
    MetadataResponse,
)
from protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.kafka_in_memory.frames import (
    Request,
    api_versions_response,
    decode_request,
    encode_response,
    frame_response,
)
from tests.kafka_in_memory.groups import GROUP_APIS, encode_result
from tests.kafka_in_memory.groups import serve_group_request as serve_group
from tests.kafka_in_memory.share_groups import ShareGroups

_LIST_OFFSETS, _METADATA, _FIND_COORDINATOR = 2, 3, 10
_API_VERSIONS, _DELETE_RECORDS, _INIT_PRODUCER_ID = 18, 21, 22
_EARLIEST = -2
_GROUP = 0
# The first version of FindCoordinator with several keys.
_BATCHED_KEYS = 4


class RequestSender(NamedTuple):
    """A client process, and how often each partition had lost its producer state when it sent a request."""

    name: str
    forgotten: Sequence[int] = ()


class Cluster(Protocol):
    """The state of a cluster and its rules, in plain values. `topic` is the only topic."""

    topic: str
    topic_id: bytes
    addresses: Mapping[int, tuple[str, int]]

    def topic_metadata(self, node: int) -> TopicMetadata:
        """Return the topic as a broker reports it."""
        ...

    def produce(
        self, sender: RequestSender, node: int, batches: Sequence[tuple[int, bytes]], timeout_s: float
    ) -> Mapping[int, ProduceResult] | asyncio.Future[Mapping[int, ProduceResult]]:
        """Append; return the results, at once or later."""
        ...

    def list_end_offsets(self, node: int, numbers: Sequence[int]) -> Mapping[int, ListedOffset]:
        """Return high watermarks."""
        ...

    def list_start_offsets(self, node: int, numbers: Sequence[int]) -> Mapping[int, ListedOffset]:
        """Return log start offsets."""
        ...

    def fetch(self, node: int, positions: Mapping[int, tuple[int, int]]) -> Mapping[int, FetchResult]:
        """Return batches from each (leader epoch known to the client, log offset)."""
        ...

    def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Delete records; return error codes."""
        ...

    def find_coordinator(self, node: int, transactional_id: str) -> tuple[int, int]:
        """Return an error code, and the coordinator of a transactional id."""
        ...

    def producer_id(self, node: int, transactional_id: str | None) -> ProducerId:
        """Return a producer id."""
        ...


def _when_done(result: Any, respond: Callable[[Any], None]) -> None:
    """Respond with a result, or with the result of a future unless it is cancelled."""
    if isinstance(result, asyncio.Future):
        result.add_done_callback(lambda done: None if done.cancelled() else respond(done.result()))
    else:
        respond(result)


def _encode_produced(request: Request, topic_id: bytes, results: Mapping[int, ProduceResult]) -> bytes:
    partitions = [
        PartitionProduceResponse(number, result.error_code, result.base_offset, -1, -1, [], None)
        for number, result in results.items()
    ]
    return encode_response(request, ProduceResponse([TopicProduceResponse(topic_id, partitions)], 0))


class Broker:
    """A broker of a cluster. `serve` answers one request.

    `groups` tells which broker coordinates the only group: `coordinator_known_to` returns the coordinator in
    the metadata of a broker, and `coordinator_at` the group at a broker. `newest` limits versions by API key.
    """

    def __init__(
        self,
        node: int,
        cluster: Cluster,
        groups: Any = None,
        newest: Mapping[int, int] | None = None,
        share_groups: ShareGroups | None = None,
    ) -> None:
        # The number of requests by API key.
        self.requests: Counter[int] = Counter()
        self._node = node
        self._share_groups = share_groups
        self._groups = groups
        self._api_versions = api_versions_response(newest or {})
        self._cluster = cluster
        self._apis: dict[int, Callable[[RequestSender, Any], tuple[Any, ...]]] = {
            _LIST_OFFSETS: self._list_offsets,
            _FIND_COORDINATOR: self._find_coordinator,
            _DELETE_RECORDS: self._delete_records,
            _INIT_PRODUCER_ID: self._init_producer_id,
            fetch.API_KEY: self._fetch,
        }

    def serve(self, sender: RequestSender, frame: bytes, respond: Callable[[bytes], None]) -> None:
        """Serve a request. `respond` receives the response, at once or later."""
        request = decode_request(frame)
        self.requests[request.api_key] += 1
        if request.api_key == _API_VERSIONS:
            respond(frame_response(request, self._api_versions))
        elif request.api_key == produce.API_KEY:
            topic_id, result = self._produce(sender, request.message)
            _when_done(result, lambda done: respond(_encode_produced(request, topic_id, done)))
        elif request.api_key == _METADATA:
            respond(self._metadata(request))
        elif request.api_key in GROUP_APIS:
            result = serve_group(request, self._groups.coordinator_at(self._node))
            _when_done(result, lambda done: respond(encode_result(request, done)))
        elif request.api_key == _FIND_COORDINATOR and request.version >= _BATCHED_KEYS:
            respond(encode_response(request, self._find_coordinators(request.message)))
        elif request.api_key not in self._apis:
            assert self._share_groups is not None
            result = self._share_groups.serve(request.api_key, request.message, self._coordinates)
            _when_done(result, lambda done: respond(encode_response(request, done)))
        else:
            fields = self._apis[request.api_key](sender, request.message)
            respond(encode_response(request, *fields))

    def _metadata(self, request: Request) -> bytes:
        cluster = self._cluster
        described = cluster.topic_metadata(self._node)
        nodes, addresses = list(cluster.addresses), cluster.addresses.items()
        partitions = [
            DescribedPartition(0, each.partition, each.leader, each.leader_epoch, nodes, [each.leader], [])
            for each in described.partitions
        ]
        code, topic_id = described.error_code, described.topic_id
        response = MetadataResponse(
            0,
            [DescribedBroker(node, host, port, None) for node, (host, port) in addresses],
            "cluster",
            nodes[0],
            [
                DescribedTopic(code, each.name, topic_id, False, partitions, 0)
                if each.name is not None or self._share_groups is None
                else DescribedTopic(
                    0, self._share_groups.topic_name(each.topic_id), each.topic_id, False, [], 0
                )
                for each in request.message.topics or ()
            ],
        )
        return encode_response(request, response)

    def _produce(self, sender: RequestSender, request: produce.ProduceRequest) -> tuple[bytes, Any]:
        (topic,) = request.topic_data
        batches = [(each.index, each.records or b"") for each in topic.partition_data]
        if topic.topic_id != self._cluster.topic_id:
            unknown = ProduceResult(ErrorCode.UNKNOWN_TOPIC_ID, -1)
            return topic.topic_id, dict.fromkeys((number for number, _ in batches), unknown)
        timeout_s = request.timeout_ms / 1_000
        return topic.topic_id, self._cluster.produce(sender, self._node, batches, timeout_s)

    def _fetch(self, sender: RequestSender, request: fetch.FetchRequest) -> tuple[FetchResponse]:
        (topic,) = request.topics
        asked = {each.partition: (each.current_leader_epoch, each.fetch_offset) for each in topic.partitions}
        results: Mapping[int, FetchResult]
        if topic.topic_id == self._cluster.topic_id:
            results = self._cluster.fetch(self._node, asked)
        else:
            results = {number: FetchResult(ErrorCode.UNKNOWN_TOPIC_ID, -1, b"") for number in asked}
        partitions = [
            PartitionData(number, result.error_code, -1, -1, result.start_offset, None, -1, result.data)
            for number, result in results.items()
        ]
        return (FetchResponse(0, ErrorCode.NONE, 0, [FetchableTopicResponse(topic.topic_id, partitions)]),)

    def _list_offsets(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        ((name, asked),) = request.topics
        (time,) = {time for _, time in asked}
        list_offsets = (
            self._cluster.list_start_offsets if time == _EARLIEST else self._cluster.list_end_offsets
        )
        listed = list_offsets(self._node, [number for number, _ in asked])
        partitions = [(number, code, -1, offset) for number, (code, offset) in listed.items()]
        return 0, [(name, partitions)]

    def _delete_records(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        ((name, offsets),) = request.topics
        codes = self._cluster.delete_records(self._node, dict(offsets))
        return 0, [(name, [(number, -1, code) for number, code in codes.items()])]

    def _find_coordinator(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        cluster = self._cluster
        if request.coordinator_type == _GROUP:
            code, node = ErrorCode.NONE, self._groups.coordinator_known_to(self._node)
        else:
            code, node = cluster.find_coordinator(self._node, request.coordinator_key)
        return 0, code, None, node, *cluster.addresses.get(node, ("", -1))

    def _coordinates(self, key: str) -> bool:
        return self._cluster.find_coordinator(self._node, key) == (ErrorCode.NONE, self._node)

    def _find_coordinators(
        self, request: find_api.FindCoordinatorRequest
    ) -> find_api.FindCoordinatorResponse:
        cluster = self._cluster
        found = [(key, *cluster.find_coordinator(self._node, key)) for key in request.coordinator_keys]
        return find_api.FindCoordinatorResponse(
            coordinators=[
                find_api.Coordinator(key, node, *cluster.addresses.get(node, ("", -1)), code)
                for key, code, node in found
            ]
        )

    def _init_producer_id(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        return 0, *self._cluster.producer_id(self._node, request.transactional_id)
