"""Read share-partitions from a live coordinator, this one or Kafka's, without changing its state.

ReadShareGroupState fences lower leader epochs, and the first read with a leader epoch makes Kafka write a
record. So a read is sent only with a leader epoch that the coordinator knows. The coordinator reports this
leader epoch in its ReadShareGroupStateSummary response. If that epoch is fenced (it is 0 after an
initialisation), the greatest leader epoch in the log is used.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinator.client import (
    ClientSecurity,
    Connection,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
)
from coordinator.client.rpcs import READ, SUMMARY, Rpc, make_request, results_by_key
from coordinator.errors import LogUnavailable
from coordinator.shard.batches import NO_START_OFFSET, normalise
from protocol.errors import ErrorCode
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.state_records import SharePartitionKey

# Maximum number of share-partitions in one request, and of concurrent requests.
_KEYS_MAX = 200
_REQUESTS_MAX = 8
_RETRY = RetryPolicy(attempts_max=4, first_s=0.25)

_NOTHING = (0, 0, NO_START_OFFSET, -1)


class LiveCoordinator(NamedTuple):
    """A live coordinator: its addresses ("host:port,host:port"), and how to connect to it."""

    bootstrap: str
    security: ClientSecurity | None = None


@dataclass(frozen=True)
class LiveState:
    """The state of one share-partition in the coordinator's responses.

    `complete_count` is None if the coordinator's version does not send it. `batches` is None if the state
    batches could not be read.  `exists` is False if there is no state. `trouble` is the reason of a failure.
    """

    exists: bool = True
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_START_OFFSET
    complete_count: int | None = None
    read_state_epoch: int | None = None
    read_start_offset: int | None = None
    batches: bytes | None = None
    trouble: str = ""


async def read_states(
    live: "str | LiveCoordinator", leader_epochs: Mapping[SharePartitionKey, int]
) -> dict[SharePartitionKey, LiveState]:
    """Read share-partitions; `leader_epochs` has the greatest leader epoch in the log of each.

    Raises LogUnavailable if no coordinator answers.
    """
    bootstrap, security = live if isinstance(live, LiveCoordinator) else LiveCoordinator(live)
    tells_complete_count = await _summary_version(bootstrap, security) >= 1
    found: dict[SharePartitionKey, LiveState] = {}
    at_a_time = asyncio.Semaphore(_REQUESTS_MAX)

    async with ShareCoordinatorClient(
        bootstrap, client_id="share-coordinator-diff", retry=_RETRY, security=security
    ) as client:

        async def read_chunk(keys: list[SharePartitionKey]) -> None:
            async with at_a_time:
                found.update(await _read_chunk(client, keys, leader_epochs, tells_complete_count))

        await asyncio.gather(*map(read_chunk, _split_into_chunks(leader_epochs)))
    return {key: found[key] for key in leader_epochs}


async def _summary_version(bootstrap: str, security: ClientSecurity | None) -> int:
    why: object = "no address is given"
    for host, _, port in (address.strip().rpartition(":") for address in bootstrap.split(",")):
        try:
            connection = await Connection.open(
                host.strip("[]"), int(port), client_id="share-coordinator", security=security
            )
            versions = connection.versions
            await connection.close()
        except (ShareCoordinatorError, ValueError) as error:
            why = error
            continue
        if summary_api.API_KEY not in versions:
            raise LogUnavailable(
                f"{host}:{port} is not a share coordinator: it does not serve the share-state RPCs"
            )
        return int(versions[summary_api.API_KEY][1])
    raise LogUnavailable(f"the coordinator cannot be reached: {why}")


async def _read_chunk(
    client: ShareCoordinatorClient,
    keys: list[SharePartitionKey],
    leader_epochs: Mapping[SharePartitionKey, int],
    tells_complete_count: bool,
) -> dict[SharePartitionKey, LiveState]:
    parts: dict[SharePartitionKey, Any] = {key: summary_api.PartitionData(key.partition, 0) for key in keys}
    found: dict[SharePartitionKey, LiveState] = {}
    to_read: dict[SharePartitionKey, int] = {}
    empty: set[SharePartitionKey] = set()
    for key, result in (await _send_group_request(client, SUMMARY, parts)).items():
        if result.error_code:
            found[key] = LiveState(trouble=_format_response(result))
            continue
        shown = (result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)
        found[key] = LiveState(
            state_epoch=result.state_epoch,
            leader_epoch=result.leader_epoch,
            start_offset=result.start_offset,
            complete_count=result.delivery_complete_count if tells_complete_count else None,
        )
        to_read[key] = result.leader_epoch
        if shown == _NOTHING:
            empty.add(key)
    fenced = await _read_batches(client, to_read, found, empty)
    again = {key: leader_epochs[key] for key in fenced if leader_epochs[key] > to_read[key]}
    await _read_batches(client, again, found, empty)
    return found


async def _read_batches(
    client: ShareCoordinatorClient,
    leader_epochs: Mapping[SharePartitionKey, int],
    found: dict[SharePartitionKey, LiveState],
    empty: Collection[SharePartitionKey],
) -> list[SharePartitionKey]:
    """Read share-partitions into `found`; return the share-partitions whose leader epoch is fenced."""
    fenced = []
    parts: dict[SharePartitionKey, Any] = {
        key: read_api.PartitionData(key.partition, leader_epoch)
        for key, leader_epoch in leader_epochs.items()
    }
    for key, result in (await _send_group_request(client, READ, parts)).items():
        if result.error_code == ErrorCode.NONE:
            found[key] = LiveState(
                **{
                    **vars(found[key]),
                    "read_state_epoch": result.state_epoch,
                    "read_start_offset": result.start_offset,
                    "batches": normalise(result.state_batches, result.start_offset),
                }
            )
        elif result.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            fenced.append(key)
        elif result.error_code == ErrorCode.INVALID_REQUEST and key in empty:
            found[key] = LiveState(exists=False)
        else:
            found[key] = LiveState(**{**vars(found[key]), "trouble": _format_response(result)})
    return fenced


async def _send_group_request(
    client: ShareCoordinatorClient, rpc: Rpc, parts: Mapping[SharePartitionKey, Any]
) -> dict[SharePartitionKey, Any]:
    """Send one request for share-partitions of one group, and return the results."""
    if not parts:
        return {}
    group_id = next(iter(parts)).group_id
    response = await client.send(make_request(rpc, group_id, {key: [part] for key, part in parts.items()}))
    return results_by_key(group_id, response)


def _format_response(result: Any) -> str:
    try:
        name = ErrorCode(result.error_code).name
    except ValueError:
        name = f"error {result.error_code}"
    return f"{name}, {result.error_message or 'without a message'}"


def _split_into_chunks(keys: Collection[SharePartitionKey]) -> Iterator[list[SharePartitionKey]]:
    by_group: defaultdict[str, list[SharePartitionKey]] = defaultdict(list)
    for key in keys:
        by_group[key.group_id].append(key)
    for of_group in by_group.values():
        for at in range(0, len(of_group), _KEYS_MAX):
            yield of_group[at : at + _KEYS_MAX]
