"""The steps of the demo as data, and the client that runs them: two leaders, from first delivery to deletion.

The requests are fixed. The responses, and the state after each step, come from a running coordinator.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from coordinator.client import (
    FencedLeaderEpoch,
    ReadState,
    ShareCoordinatorClient,
    ShareCoordinatorError,
    SharePartitionKey,
    StateBatch,
    Uninitialised,
)

# The delivery states as Kafka numbers them (KIP-932). ACQUIRED is never stored.
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)

RECORDS = 10
_STATE_EPOCH = 1
# The leader epochs of the two brokers.
_BROKER_A, _BROKER_B = 1, 2


class DemoRequest(NamedTuple):
    """A request: a method of the client and its arguments. `refused_with` is the error that must follow."""

    name: str
    arguments: dict[str, Any]
    refused_with: type[ShareCoordinatorError] | None = None


class DemoStep(NamedTuple):
    """A step: its explanation and requests. Afterwards, the broker with `leader_epoch` reads the state."""

    title: str
    text: str
    requests: tuple[DemoRequest, ...] = ()
    leader_epoch: int | None = _BROKER_A


class DemoResponse(NamedTuple):
    """The response to a request: values, or an error."""

    request: DemoRequest
    values: Any
    error: ShareCoordinatorError | None
    took_ms: float


class UnexpectedAcceptance(Exception):
    """The coordinator accepted a request that it must refuse; the text is one line for people."""


def _write(
    *batches: StateBatch,
    complete: int,
    start_offset: int = 0,
    leader_epoch: int = _BROKER_A,
    refused_with: type[ShareCoordinatorError] | None = None,
) -> DemoRequest:
    arguments = {
        "state_epoch": _STATE_EPOCH,
        "leader_epoch": leader_epoch,
        "start_offset": start_offset,
        "delivery_complete_count": complete,
        "batches": list(batches),
    }
    return DemoRequest("write", arguments, refused_with)


STEPS = (
    DemoStep(
        "A share group subscribes to a topic",
        "Kafka's group coordinator asks the share coordinator to create the state of a partition for "
        "the group. The start offset is 0.",
        (DemoRequest("initialize", {"state_epoch": _STATE_EPOCH, "start_offset": 0}),),
    ),
    DemoStep(
        "Broker A becomes the leader of the partition",
        "Broker A reads the state once with its leader epoch. Afterwards it only writes.",
        (DemoRequest("read", {"leader_epoch": _BROKER_A}),),
    ),
    DemoStep(
        f"{RECORDS} records are delivered to consumers",
        "Each record is delivered to one consumer of the group. First deliveries are not stored. If the "
        "broker crashed now, the records would be delivered again.",
    ),
    DemoStep(
        "Some records are accepted",
        "The consumer of records 2 to 5 accepts them; the consumers of records 0 and 1 are slower. "
        "Broker A confirms the acceptance after the coordinator has stored it.",
        (_write(StateBatch(2, 5, ACKNOWLEDGED, 1), complete=4),),
    ),
    DemoStep(
        "A record is released, twice",
        "Two consumers, one after the other, released record 6. It is available again. The state counts "
        "its deliveries, so that a record that no consumer can process is not delivered forever.",
        (
            _write(StateBatch(6, 6, AVAILABLE, 1), complete=4),
            _write(StateBatch(6, 6, AVAILABLE, 2), complete=4),
        ),
    ),
    DemoStep(
        "A record is rejected",
        "The consumer rejects record 7, for example because it is invalid. It is not delivered again.",
        (_write(StateBatch(7, 7, ARCHIVED, 1), complete=5),),
    ),
    DemoStep(
        "The start offset moves on",
        "Records 0 and 1 are accepted. Records below offset 6 are complete and no longer stored.",
        (_write(StateBatch(0, 1, ACKNOWLEDGED, 1), complete=1, start_offset=6),),
    ),
    DemoStep(
        "Broker A stops responding, and broker B becomes the leader",
        "Broker B reads the whole state with the next leader epoch.",
        (DemoRequest("read", {"leader_epoch": _BROKER_B}),),
        _BROKER_B,
    ),
    DemoStep(
        "Broker A was only paused",
        "Broker A continues as if it were still the leader, and writes that record 8 was rejected. The "
        "coordinator fences it, because two leaders would overwrite each other's state.",
        (_write(StateBatch(8, 8, ARCHIVED, 1), complete=2, start_offset=6, refused_with=FencedLeaderEpoch),),
        _BROKER_B,
    ),
    DemoStep(
        "Broker B continues",
        "Broker B delivers records 6, 8 and 9. Consumers accept all, record 6 at its third delivery.",
        (
            _write(
                StateBatch(6, 6, ACKNOWLEDGED, 3),
                StateBatch(8, 9, ACKNOWLEDGED, 1),
                complete=0,
                start_offset=RECORDS,
                leader_epoch=_BROKER_B,
            ),
        ),
        _BROKER_B,
    ),
    DemoStep(
        "An operator asks for the lag of the group",
        "Kafka's tools compute the lag of a share group from this response.",
        (DemoRequest("summary", {}),),
        _BROKER_B,
    ),
    DemoStep(
        "The group is deleted",
        "Its state is deleted.",
        (
            DemoRequest("delete", {}),
            DemoRequest("read", {"leader_epoch": _BROKER_B}, refused_with=Uninitialised),
        ),
        None,
    ),
)


async def run_steps(
    client: ShareCoordinatorClient, key: SharePartitionKey
) -> AsyncIterator[tuple[DemoStep, list[DemoResponse], ReadState | None]]:
    """Run the steps on a new share-partition; yield each with its responses and the state after it.

    Raises ShareCoordinatorError for errors, and UnexpectedAcceptance.
    """
    for step in STEPS:
        responses = [await _send(client, key, request) for request in step.requests]
        state = None if step.leader_epoch is None else await client.read(key, step.leader_epoch)
        yield step, responses, state


async def _send(client: ShareCoordinatorClient, key: SharePartitionKey, request: DemoRequest) -> DemoResponse:
    """Send a request. Only the expected error is accepted."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    values: Any = None
    refusal: ShareCoordinatorError | None = None
    try:
        values = await getattr(client, request.name)(key, **request.arguments)
    except ShareCoordinatorError as error:
        if request.refused_with is None or not isinstance(error, request.refused_with):
            raise
        refusal = error
    if request.refused_with is not None and refusal is None:
        expected = request.refused_with.__name__
        raise UnexpectedAcceptance(
            f"The coordinator accepted a {request.name} that it must refuse ({expected})."
        )
    return DemoResponse(request, values, refusal, (loop.time() - began_s) * 1000)
