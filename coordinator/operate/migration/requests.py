"""Send the RPCs of a migration, each for several share-partitions of one group."""

from collections.abc import Mapping
from typing import Any

from coordinator.client import ShareCoordinatorClient
from coordinator.client.rpcs import (
    DELETE,
    INITIALIZE,
    READ,
    SUMMARY,
    WRITE,
    Rpc,
    make_request,
    results_by_key,
)
from coordinator.operate.migration.fold import ComparableState, MigrationRefused
from coordinator.shard.batches import NO_START_OFFSET, normalise
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_records import SharePartitionKey

NO_COMPLETE_COUNT = -1

# The fields of a Summary response for a share-partition that has no state or was only initialised.
_NOTHING = (0, 0, NO_START_OFFSET, NO_COMPLETE_COUNT)

Failures = dict[SharePartitionKey, str]


async def read_held_states(
    client: ShareCoordinatorClient,
    wanted: Mapping[SharePartitionKey, ComparableState],
    held: dict[SharePartitionKey, ComparableState],
    unknown_topics: set[SharePartitionKey],
    *,
    stores_complete_count: bool,
) -> None:
    """Read the states of share-partitions into `held`, and those without a topic into `unknown_topics`.

    The state that an interrupted `replace_states` leaves is treated as no state. Batches are read only if all
    other fields are equal. Changes nothing. Raises MigrationRefused if the target returns another error.
    """
    to_read: dict[SharePartitionKey, ComparableState] = {}
    parts: dict[SharePartitionKey, Any] = {key: summary_api.PartitionData(key.partition, 0) for key in wanted}
    for key, result in (await send_group_request(client, SUMMARY, parts)).items():
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            unknown_topics.add(key)
            continue
        if result.error_code:
            raise MigrationRefused(
                f"the target did not return the state of {_make_result_error(key, result)}"
            )
        shown = (result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)
        there = ComparableState(shown[0], shown[1], shown[1], shown[2], shown[3], None)
        begun = _is_interrupted_replacement(there, wanted[key], stores_complete_count)
        if begun or shown == _NOTHING or there == wanted[key]._replace(batches=None):
            to_read[key] = there
        else:
            held[key] = there
    parts = {key: read_api.PartitionData(key.partition, there.leader_epoch) for key, there in to_read.items()}
    for key, result in (await send_group_request(client, READ, parts)).items():
        if result.error_code == ErrorCode.INVALID_REQUEST:
            continue
        held[key] = there = to_read[key]
        # If the leader epoch is higher than in the Summary, the states differ in any case.
        if result.error_code == ErrorCode.NONE:
            batches = normalise(result.state_batches, result.start_offset)
            held[key] = there = there._replace(
                state_epoch=result.state_epoch, start_offset=result.start_offset, batches=batches
            )
            begun = not batches and _is_interrupted_replacement(there, wanted[key], stores_complete_count)
            if begun and there != wanted[key]:
                del held[key]
        elif result.error_code != ErrorCode.FENCED_LEADER_EPOCH:
            raise MigrationRefused(
                f"the target did not return the state of {_make_result_error(key, result)}"
            )


async def delete_states(
    client: ShareCoordinatorClient, keys: list[SharePartitionKey], failures: Failures
) -> None:
    """Delete the state of share-partitions. If the topic no longer exists, its state counts as deleted."""
    parts = {key: delete_api.PartitionData(key.partition) for key in keys}
    for key, result in (await send_group_request(client, DELETE, parts)).items():
        if result.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            failures[key] = _make_result_error(key, result)


async def replace_states(
    client: ShareCoordinatorClient,
    wanted: Mapping[SharePartitionKey, ComparableState],
    failures: Failures,
    *,
    stores_complete_count: bool,
) -> None:
    """Replace the state of share-partitions at a coordinator.

    Delete is sent first: Initialize alone keeps the highest leader epoch of the older state, and a Read with
    that epoch or a lower one could not set the leader epoch.
    """
    await delete_states(client, list(wanted), failures)
    wanted = {key: state for key, state in wanted.items() if key not in failures}
    begun = {
        key: _find_start_offset_for_initialize(state, stores_complete_count) for key, state in wanted.items()
    }
    parts: dict[SharePartitionKey, Any] = {
        key: initialize_api.PartitionData(key.partition, wanted[key].state_epoch, start_offset)
        for key, start_offset in begun.items()
    }
    await _send_collecting_failures(client, INITIALIZE, parts, failures)
    parts = {
        key: read_api.PartitionData(key.partition, state.leader_epoch_max)
        for key, state in wanted.items()
        if key not in failures and state.leader_epoch_max > 0
    }
    await _send_collecting_failures(client, READ, parts, failures)
    parts = {
        key: write_api.PartitionData(
            partition=key.partition,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch_max,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            state_batches=state.batches or b"",
        )
        for key, state in wanted.items()
        if key not in failures
    }
    await _send_collecting_failures(client, WRITE, parts, failures)


def _find_start_offset_for_initialize(state: ComparableState, stores_complete_count: bool) -> int:
    """Return the start offset for Initialize: the state's, or -1 if its complete count is unknown.

    Initialize with an offset sets the complete count to 0, and no Write makes it unknown again.  If the count
    is unknown and the target stores complete counts, the start offset is therefore sent with Write instead.
    """
    if stores_complete_count and state.delivery_complete_count == NO_COMPLETE_COUNT:
        return NO_START_OFFSET
    return state.start_offset


def _is_interrupted_replacement(
    there: ComparableState, wanted: ComparableState, stores_complete_count: bool
) -> bool:
    """Return whether a state is the intermediate one that an interrupted `replace_states` leaves."""
    first_offset = _find_start_offset_for_initialize(wanted, stores_complete_count)
    counted = NO_COMPLETE_COUNT if first_offset == NO_START_OFFSET or not stores_complete_count else 0
    return (there.state_epoch, there.start_offset, there.delivery_complete_count) == (
        wanted.state_epoch,
        first_offset,
        counted,
    ) and there.leader_epoch in (0, wanted.leader_epoch_max)


async def _send_collecting_failures(
    client: ShareCoordinatorClient, rpc: Rpc, parts: Mapping[SharePartitionKey, Any], failures: Failures
) -> None:
    for key, result in (await send_group_request(client, rpc, parts)).items():
        if result.error_code:
            failures[key] = _make_result_error(key, result)


async def send_group_request(
    client: ShareCoordinatorClient, rpc: Rpc, parts: Mapping[SharePartitionKey, Any]
) -> dict[SharePartitionKey, Any]:
    """Send one request for share-partitions of one group, and return the results."""
    if not parts:
        return {}
    group_id = next(iter(parts)).group_id
    response = await client.send(make_request(rpc, group_id, {key: [part] for key, part in parts.items()}))
    return results_by_key(group_id, response)


def _make_result_error(key: SharePartitionKey, result: Any) -> str:
    return f"{key}: {format_result_error(result)}"


def format_result_error(result: Any) -> str:
    """Return the name of a result's error code, and its message."""
    try:
        name = ErrorCode(result.error_code).name
    except ValueError:
        name = f"error {result.error_code}"
    return f"{name}, {result.error_message or 'without a message'}"
