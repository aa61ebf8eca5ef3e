"""Prepare Kafka's own share coordinator, with all state partitions loaded, for tests and benchmarks."""

from dataclasses import dataclass
from functools import partial
from itertools import count

from protocol.errors import ErrorCode
from protocol.messages import find_coordinator
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.kafka.processes import wait_until
from tests.kafka.rig import BuiltInRig
from tests.kafka.wire import HOST, send_request

STATE_TOPIC = "__share_group_state"
STATE_PARTITIONS = 50
_SHARE = 2


@dataclass(frozen=True)
class BuiltInCoordinator:
    """Kafka's own share coordinator, which answers the five share-state RPCs on the client listener."""

    host: str
    port: int
    topic: str
    topic_id: bytes
    partitions: int


def prepare_coordinator(rig: BuiltInRig, *, topic: str, partitions: int) -> BuiltInCoordinator:
    """Create a topic, and wait until every state partition accepts state of the topic."""
    topic_id = parse_topic_id(rig.client.create_topic(topic, partitions=partitions))
    port = rig.broker.client_port
    # The first FindCoordinator fails, because the broker creates __share_group_state only then.
    key = SharePartitionKey("nobody", topic_id, 0)
    wait_until(
        partial(_has_coordinator, port, key), seconds=120, what=f"Kafka returns a coordinator for {key}"
    )
    for key in _key_of_each_state_partition(topic_id, partitions - 1):
        wait_until(partial(_can_store_state, port, key), seconds=120, what=f"Kafka can store state of {key}")
    return BuiltInCoordinator(HOST, port, topic, topic_id, partitions)


def _has_coordinator(port: int, key: SharePartitionKey) -> bool:
    request = find_coordinator.FindCoordinatorRequest(key_type=_SHARE, coordinator_keys=[str(key)])
    (coordinator,) = send_request(port, find_coordinator, 6, request).coordinators
    return bool(coordinator.error_code == ErrorCode.NONE)


def _key_of_each_state_partition(topic_id: bytes, partition: int) -> list[SharePartitionKey]:
    found: dict[int, SharePartitionKey] = {}
    for number in count():
        key = SharePartitionKey(f"nobody-{number}", topic_id, partition)
        found.setdefault(state_partition(key, STATE_PARTITIONS), key)
        if len(found) == STATE_PARTITIONS:
            break
    return list(found.values())


def _can_store_state(port: int, key: SharePartitionKey) -> bool:
    """Return whether the state partition of `key` is loaded and its coordinator has the topic's metadata.

    A read of the summary succeeds for a group without state, and fails if the topic is missing in the
    metadata.
    """
    topic = summary_api.ReadStateSummaryData(key.topic_id, [summary_api.PartitionData(key.partition, 0)])
    request = summary_api.ReadShareGroupStateSummaryRequest(key.group_id, [topic])
    ((result,),) = (topic.partitions for topic in send_request(port, summary_api, 0, request).results)
    return bool(result.error_code == ErrorCode.NONE)
