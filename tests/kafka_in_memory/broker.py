"""Answer the requests that one broker receives; a cluster object implements the rules."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.cluster.kafka.broker_results import FetchResult, ProduceResult
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

if TYPE_CHECKING:
    from tests.simulation.kafka.brokers import SimBrokers

_LIST_OFFSETS, _METADATA, _FIND_COORDINATOR = 2, 3, 10
_API_VERSIONS, _CREATE_TOPICS, _DELETE_RECORDS, _INIT_PRODUCER_ID, _DESCRIBE_CONFIGS = 18, 19, 21, 22, 32
_EARLIEST = -2
_GROUP = 0
# The number of replicas of each partition; fewer if there are fewer brokers.
_REPLICAS = 3
# The first version of FindCoordinator that allows several keys.
_BATCHED_KEYS = 4


class RequestSender(NamedTuple):
    """The sender of a request, and how often each partition had lost its producer state at that time."""

    name: str
    forgotten: Sequence[int] = ()


def _respond_when_done(result: Any, respond: Callable[[Any], None]) -> None:
    """Respond with a result, or with a future's result unless the future is cancelled."""
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


def _encode_group_response(request: Request, response: Any) -> bytes:
    return encode_response(request, *(response if isinstance(response, tuple) else (response,)))


class Broker:
    """A broker of a cluster. `serve` answers one request.

    `groups` knows which broker coordinates the only consumer group: `coordinator_known_to` returns the group
    coordinator that a broker knows, and `coordinator_at` the group if a broker coordinates it. `next_error`
    returns the error with which the next request of an API fails. `newest` maps API keys to the newest
    supported version.
    """

    def __init__(
        self,
        node: int,
        cluster: "SimBrokers",
        groups: Any = None,
        newest: Mapping[int, int] | None = None,
        share_groups: ShareGroups | None = None,
    ) -> None:
        # The number of received requests by API key.
        self.requests: Counter[int] = Counter()
        # Called for each request. Called for each request; if the function returns a future, the request is
        # served when the future is done.
        self.on_request: Callable[[Request], asyncio.Future[None] | None] = lambda request: None
        self._node = node
        self._share_groups = share_groups
        self._groups = groups
        self._api_versions = api_versions_response(newest or {})
        self._cluster = cluster
        self._apis: dict[int, Callable[[RequestSender, Any], tuple[Any, ...]]] = {
            _CREATE_TOPICS: self._create_topics,
            _DESCRIBE_CONFIGS: self._describe_configs,
            _LIST_OFFSETS: self._list_offsets,
            _FIND_COORDINATOR: self._find_coordinator,
            _DELETE_RECORDS: self._delete_records,
            _INIT_PRODUCER_ID: self._init_producer_id,
        }

    def serve(self, sender: RequestSender, frame: bytes, respond: Callable[[bytes], None]) -> None:
        """Serve a request. Serve a request; the function `respond` gets the response, at once or later."""
        request = decode_request(frame)
        self.requests[request.api_key] += 1
        delay = self.on_request(request)
        if delay is None:
            self._serve(sender, request, respond)
        else:
            delay.add_done_callback(lambda _: self._serve(sender, request, respond))

    def _serve(self, sender: RequestSender, request: Request, respond: Callable[[bytes], None]) -> None:
        if request.api_key == _API_VERSIONS:
            respond(frame_response(request, self._api_versions))
        elif request.api_key == produce.API_KEY:
            topic_id, result = self._produce(sender, request.message)
            _respond_when_done(result, lambda done: respond(_encode_produced(request, topic_id, done)))
        elif request.api_key == fetch.API_KEY:
            self._serve_fetch(request, respond)
        elif request.api_key == _METADATA:
            respond(self._metadata(request))
        elif request.api_key in GROUP_APIS:
            error = self._groups.next_error(request.api_key)
            result = serve_group(request, self._groups.coordinator_at(self._node), error)
            _respond_when_done(result, lambda done: respond(encode_result(request, done)))
        elif request.api_key == _FIND_COORDINATOR and request.version >= _BATCHED_KEYS:
            respond(encode_response(request, self._find_coordinators(request.message)))
        elif request.api_key not in self._apis:
            assert self._share_groups is not None
            result = self._share_groups.serve(request.api_key, request.message, self._is_coordinator_of)
            _respond_when_done(result, lambda done: respond(_encode_group_response(request, done)))
        else:
            fields = self._apis[request.api_key](sender, request.message)
            respond(encode_response(request, *fields))

    def _metadata(self, request: Request) -> bytes:
        cluster = self._cluster
        described = cluster.topic_metadata(self._node)
        nodes, addresses = list(cluster.addresses), cluster.addresses.items()
        replicas = nodes[:_REPLICAS]
        partitions = [
            DescribedPartition(0, each.partition, each.leader, each.leader_epoch, replicas, [each.leader], [])
            for each in described.partitions
        ]
        code, topic_id = described.error_code, described.topic_id
        response = MetadataResponse(
            0,
            [DescribedBroker(node, host, port, None) for node, (host, port) in addresses],
            cluster.cluster_id,
            nodes[0],
            [
                DescribedTopic(code, each.name or described.name, topic_id, False, partitions, 0)
                if each.name is not None or self._share_groups is None
                else DescribedTopic(
                    *self._share_groups.find_topic(each.topic_id, self._node), each.topic_id, False, [], 0
                )
                for each in request.message.topics or ()
            ],
        )
        return encode_response(request, response)

    def _produce(self, sender: RequestSender, request: produce.ProduceRequest) -> tuple[bytes, Any]:
        (topic,) = request.topic_data
        batches = [(each.index, each.records or b"") for each in topic.partition_data]
        if not self._is_known_topic(topic.topic_id):
            unknown = ProduceResult(ErrorCode.UNKNOWN_TOPIC_ID, -1)
            return topic.topic_id, dict.fromkeys((number for number, _ in batches), unknown)
        timeout_s = request.timeout_ms / 1_000
        return topic.topic_id, self._cluster.produce(sender, self._node, batches, timeout_s)

    def _is_known_topic(self, topic_id: bytes) -> bool:
        return topic_id == self._cluster.topic_id or not self._cluster.checks_topic_ids

    def _serve_fetch(self, request: Request, respond: Callable[[bytes], None]) -> None:
        """Respond to a Fetch at once if there is data or an error, else after its maximum wait."""
        response, wait_ms = self._fetch(request.message), request.message.max_wait_ms
        if not wait_ms or any(each.error_code or each.records for each in response.responses[0].partitions):
            respond(encode_response(request, response))
            return
        asyncio.get_running_loop().call_later(
            wait_ms / 1_000, lambda: respond(encode_response(request, self._fetch(request.message)))
        )

    def _fetch(self, request: fetch.FetchRequest) -> FetchResponse:
        (topic,) = request.topics
        asked = {each.partition: (each.current_leader_epoch, each.fetch_offset) for each in topic.partitions}
        results: Mapping[int, FetchResult]
        if self._is_known_topic(topic.topic_id):
            results = self._cluster.fetch(self._node, asked)
        else:
            results = {number: FetchResult(ErrorCode.UNKNOWN_TOPIC_ID, -1, b"") for number in asked}
        partitions = [
            PartitionData(number, result.error_code, -1, -1, result.start_offset, None, -1, result.data)
            for number, result in results.items()
        ]
        return FetchResponse(0, ErrorCode.NONE, 0, [FetchableTopicResponse(topic.topic_id, partitions)])

    def _create_topics(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        ((name, partitions, _, _, configs),) = request.create_topic_requests
        assert name == self._cluster.topic
        return ([(name, self._cluster.create_topic(partitions, dict(configs)), None)],)

    def _describe_configs(self, sender: RequestSender, request: Any) -> tuple[Any, ...]:
        ((kind, name, _),) = request.resources
        entries = [(config, value, False, False, False) for config, value in self._cluster.configs.items()]
        return 0, [(ErrorCode.NONE, None, kind, name, entries)]

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
            code = self._groups.next_error(_FIND_COORDINATOR)
            node = self._groups.coordinator_known_to(self._node)
        else:
            code, node = cluster.find_coordinator(self._node, request.coordinator_key)
        return 0, code, None, node, *cluster.addresses.get(node, ("", -1))

    def _is_coordinator_of(self, key: str) -> bool:
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
