"""Read share-partitions from a live coordinator, this project's or Kafka's, without changing its state.

ReadShareGroupState fences lower leader epochs, and the first read with a leader epoch makes Kafka write a
record. So a read is sent only with a leader epoch that the coordinator knows. The leader epoch of a read
comes from the coordinator's ReadShareGroupStateSummary response. If the coordinator fences that epoch (0
after an initialisation), the greatest leader epoch in the log is used.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from coordinator.client import (
    ClientSecurity,
    Connection,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
)
from coordinator.client.addresses import parse_addresses
from coordinator.client.rpcs import READ, SUMMARY
from coordinator.errors import LogUnavailable
from coordinator.operate.migration.requests import format_result_error, send_group_request
from coordinator.shard.batches import NO_START_OFFSET, normalise
from protocol.errors import ErrorCode
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.state_records import SharePartitionKey

# The maximum number of share-partitions in one request, and the maximum number of concurrent requests.
_KEYS_MAX = 200
_REQUESTS_MAX = 8
_RETRY = RetryPolicy(attempts_max=4, first_s=0.25)

# The response for a share-partition without state, or with a state that was only initialised.
_NOTHING = {
    "state_epoch": 0,
    "leader_epoch": 0,
    "start_offset": NO_START_OFFSET,
    "delivery_complete_count": -1,
}


class LiveCoordinator(NamedTuple):
    """A live coordinator: its addresses ("host:port,host:port"), and how to connect to it."""

    bootstrap: str
    security: ClientSecurity | None = None


class LiveState(NamedTuple):
    """The state of one share-partition: the fields of the ReadSummary and of the Read response, by name.

    A field is None if the coordinator's version does not send it. If there is no state, both responses are
    None. If the Read request failed, `read` has no fields. `failure` is the reason of a failure.
    """

    summary: Mapping[str, Any] | None
    read: Mapping[str, Any] | None = {}
    failure: str = ""


async def read_states(
    live: "str | LiveCoordinator", leader_epochs: Mapping[SharePartitionKey, int]
) -> dict[SharePartitionKey, LiveState]:
    """Read share-partitions; `leader_epochs` maps each one to its greatest leader epoch in the log.

    Raises LogUnavailable if no coordinator answers.
    """
    bootstrap, security = live if isinstance(live, LiveCoordinator) else LiveCoordinator(live)
    has_complete_count = await _read_summary_version(bootstrap, security) >= 1
    found: dict[SharePartitionKey, LiveState] = {}
    at_a_time = asyncio.Semaphore(_REQUESTS_MAX)

    async with ShareCoordinatorClient(
        bootstrap, client_id="share-coordinator-diff", retry=_RETRY, security=security
    ) as client:

        async def read_chunk(keys: list[SharePartitionKey]) -> None:
            async with at_a_time:
                read = await _read_summaries(client, keys, has_complete_count)
                wanted = {key: state.summary["leader_epoch"] for key, state in read.items() if state.summary}
                fenced = await _read_batches(client, wanted, read)
                again = {key: leader_epochs[key] for key in fenced if leader_epochs[key] > wanted[key]}
                await _read_batches(client, again, read)
                found.update(read)

        await asyncio.gather(*map(read_chunk, _split_into_chunks(leader_epochs)))
    return {key: found[key] for key in leader_epochs}


async def _read_summary_version(bootstrap: str, security: ClientSecurity | None) -> int:
    reason: object = "no address is given"
    for host, port in parse_addresses(bootstrap):
        try:
            connection = await Connection.open(host, port, client_id="share-coordinator", security=security)
            versions = connection.versions
            await connection.close()
        except ShareCoordinatorError as error:
            reason = error
            continue
        if summary_api.API_KEY not in versions:
            raise LogUnavailable(
                f"{host}:{port} is not a share coordinator: it does not serve the share-state RPCs"
            )
        return int(versions[summary_api.API_KEY][1])
    raise LogUnavailable(f"the coordinator cannot be reached: {reason}")


async def _read_summaries(
    client: ShareCoordinatorClient, keys: list[SharePartitionKey], has_complete_count: bool
) -> dict[SharePartitionKey, LiveState]:
    found: dict[SharePartitionKey, LiveState] = {}
    parts: dict[SharePartitionKey, Any] = {key: summary_api.PartitionData(key.partition, 0) for key in keys}
    for key, result in (await send_group_request(client, SUMMARY, parts)).items():
        summary = {name: getattr(result, name) for name in _NOTHING}
        if result.error_code:
            found[key] = LiveState({}, failure=format_result_error(result))
        elif has_complete_count:
            found[key] = LiveState(summary)
        else:
            found[key] = LiveState(summary | {"delivery_complete_count": None})
    return found


async def _read_batches(
    client: ShareCoordinatorClient,
    leader_epochs: Mapping[SharePartitionKey, int],
    found: dict[SharePartitionKey, LiveState],
) -> list[SharePartitionKey]:
    """Read the state batches of share-partitions into `found`; return those whose leader epoch is fenced."""
    fenced = []
    parts: dict[SharePartitionKey, Any] = {
        key: read_api.PartitionData(key.partition, leader_epoch)
        for key, leader_epoch in leader_epochs.items()
    }
    for key, result in (await send_group_request(client, READ, parts)).items():
        state = found[key]
        if result.error_code == ErrorCode.NONE:
            read = {
                "state_epoch": result.state_epoch,
                "start_offset": result.start_offset,
                "batches": normalise(result.state_batches, result.start_offset),
            }
            found[key] = state._replace(read=read)
        elif result.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            fenced.append(key)
        elif result.error_code == ErrorCode.INVALID_REQUEST and _has_no_state(state):
            found[key] = LiveState(None, None)
        else:
            found[key] = state._replace(failure=format_result_error(result))
    return fenced


def _has_no_state(state: LiveState) -> bool:
    return all(value in (None, _NOTHING[name]) for name, value in (state.summary or {}).items())


def _split_into_chunks(keys: Collection[SharePartitionKey]) -> Iterator[list[SharePartitionKey]]:
    by_group: defaultdict[str, list[SharePartitionKey]] = defaultdict(list)
    for key in keys:
        by_group[key.group_id].append(key)
    for of_group in by_group.values():
        for at in range(0, len(of_group), _KEYS_MAX):
            yield of_group[at : at + _KEYS_MAX]
