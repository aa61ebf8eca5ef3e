"""Check that all coordinators report the same owners and return the state in the topic."""

import asyncio
from collections.abc import Collection, Sequence

from coordinator.client import (
    ConnectionLimits,
    FencedLeaderEpoch,
    RetryPolicy,
    ShareCoordinatorClient,
    SharePartitionKey,
    StateBatch,
)
from coordinator.shard import ShareState
from protocol.messages import find_coordinator
from protocol.state_batches import unpack
from tests.chaos.topic_reader import TopicState, read_topic
from tests.kafka import ConditionTimeout
from tests.kafka.wire import send_request

SHARE_KEY_TYPE, GROUP_KEY_TYPE = 2, 0
ATTEMPTS = 20
RETRY = RetryPolicy(attempts_max=30, first_s=0.1, wait_max_s=1)
LIMITS = ConnectionLimits(connect_s=2, request_s=15)

# (state epoch, leader epoch, start offset, delivery complete count, state batches)
Answered = tuple[int, int, int, int, list[StateBatch]]


def find_coordinators(
    port: int, keys: Collection[SharePartitionKey]
) -> list[tuple[int, int, str, int]] | None:
    """Return a coordinator's FindCoordinator response: error, node id, host and port for each key."""
    request = find_coordinator.FindCoordinatorRequest(
        key_type=SHARE_KEY_TYPE, coordinator_keys=[str(key) for key in keys]
    )
    try:
        answer = send_request(port, find_coordinator, 6, request)
    except (OSError, ValueError):
        return None
    return [(one.error_code, one.node_id, one.host, one.port) for one in answer.coordinators]


def find_group_coordinator(port: int, group: str) -> int:
    """Return the id of the broker that coordinates a group."""
    request = find_coordinator.FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=[group])
    (found,) = send_request(port, find_coordinator, 4, request).coordinators
    assert found.error_code == 0, found
    node_id: int = found.node_id
    return node_id


def owners_agree(ports: Sequence[int], keys: Collection[SharePartitionKey]) -> bool:
    """Return whether all coordinators name the same owner for every share-partition."""
    answers = [find_coordinators(port, keys) for port in ports]
    first = answers[0]
    return first is not None and all(error == 0 for error, *_ in first) and answers.count(first) == len(ports)


async def compare_with_topic(
    addresses: Sequence[str],
    bootstrap: str,
    topic: str,
    partitions: int,
    keys: Collection[SharePartitionKey],
) -> TopicState:
    """Check that the coordinators return the state in the topic for every share-partition.

    Brokers may write at the same time. So each state is read before and after the topic. Only states that are
    equal in both reads are compared with the topic; the others are read again.
    """
    async with ShareCoordinatorClient(",".join(addresses), retry=RETRY, limits=LIMITS) as client:
        left = set(keys)
        for _ in range(ATTEMPTS):
            before = await _read_states(client, left)
            found = await read_topic(bootstrap, topic, partitions)
            unknown = found.states.keys() - keys
            assert not unknown, f"the topic has unexpected share-partitions: {unknown}"
            after = await _read_states(client, left)
            for key in sorted(left):
                if before[key] == after[key] and after[key] is not None:
                    state = found.states.get(key)
                    assert state is not None, f"{key} is not in the topic"
                    assert _state_fields(state) == after[key], (
                        f"{key}: the coordinator and the topic have different states"
                    )
                    left.discard(key)
            if not left:
                return found
    raise ConditionTimeout(f"states that changed during every comparison: {sorted(left)}")


async def _read_states(
    client: ShareCoordinatorClient, keys: Collection[SharePartitionKey]
) -> dict[SharePartitionKey, Answered | None]:
    answers = await asyncio.gather(*(_read_state(client, key) for key in keys))
    return dict(zip(keys, answers, strict=True))


async def _read_state(client: ShareCoordinatorClient, key: SharePartitionKey) -> Answered | None:
    """Return the state of a share-partition, or None if its leader epoch changed between two requests."""
    summary = await client.summary(key)
    try:
        state = await client.read(key, summary.leader_epoch)
    except FencedLeaderEpoch:
        return None
    if (state.state_epoch, state.start_offset) != (summary.state_epoch, summary.start_offset):
        return None
    return (*summary, state.batches)


def _state_fields(state: ShareState) -> Answered:
    return (
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.delivery_complete_count,
        unpack(state.batches),
    )
