"""The steps of the demo: the records of a share group from first delivery to deletion, with two leaders.

Each step sends requests to a coordinator and then reads its state. Responses are not predefined.
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


class DemoCall(NamedTuple):
    """One request to the coordinator and its response: an error, or values."""

    name: str
    request: dict[str, Any]
    answer: Any
    error: ShareCoordinatorError | None
    took_ms: float


class DemoStep(NamedTuple):
    """A step: title, explanation, requests, and the state afterwards (None: no state)."""

    title: str
    text: str
    calls: list[DemoCall]
    state: ReadState | None


class UnexpectedAcceptance(Exception):
    """The coordinator accepted a request that it must refuse; the text is one line for people."""


class DemoScenario:
    """The steps on one share-partition, which must be new. `steps` runs once."""

    def __init__(self, client: ShareCoordinatorClient, key: SharePartitionKey) -> None:
        self._client = client
        self._key = key
        self._calls: list[DemoCall] = []
        self._leader_epoch = 1

    async def steps(self) -> AsyncIterator[DemoStep]:
        """Run step by step. Raises ShareCoordinatorError for errors, and UnexpectedAcceptance."""
        await self._record_call("initialize", state_epoch=1, start_offset=0)
        yield await self._finish_step(
            "A share group subscribes to a topic",
            "Kafka's group coordinator asks the share coordinator to create the state of a partition for "
            "the group. The start offset is 0.",
        )
        state: ReadState = await self._record_call("read", leader_epoch=1)
        yield await self._finish_step(
            "Broker A becomes the leader of the partition",
            "Broker A reads the state once with its leader epoch. Afterwards it only writes.",
        )
        yield await self._finish_step(
            f"{RECORDS} records are delivered to consumers",
            "Each record is delivered to one consumer of the group. First deliveries are not stored. If the "
            "broker crashed now, the records would be delivered again.",
        )
        async for step in self._steps_of_broker_a(state.state_epoch):
            yield step
        async for step in self._steps_of_broker_b():
            yield step
        async for step in self._show_deletion():
            yield step

    async def _steps_of_broker_a(self, state_epoch: int) -> AsyncIterator[DemoStep]:
        """Steps of the first leader: accepted, released and rejected records, and a new start offset."""
        await self._write(state_epoch, complete=4, batches=[StateBatch(2, 5, ACKNOWLEDGED, 1)])
        yield await self._finish_step(
            "Some records are accepted",
            "The consumer of records 2 to 5 accepts them; the consumers of records 0 and 1 are slower. "
            "Broker A confirms the acceptance after the coordinator has stored it.",
        )
        await self._write(state_epoch, complete=4, batches=[StateBatch(6, 6, AVAILABLE, 1)])
        await self._write(state_epoch, complete=4, batches=[StateBatch(6, 6, AVAILABLE, 2)])
        yield await self._finish_step(
            "A record is released, twice",
            "Two consumers, one after the other, released record 6. It is available again. The state counts "
            "its deliveries, so that a record that no consumer can process is not delivered "
            "forever.",
        )
        await self._write(state_epoch, complete=5, batches=[StateBatch(7, 7, ARCHIVED, 1)])
        yield await self._finish_step(
            "A record is rejected",
            "The consumer rejects record 7, for example because it is invalid. It is not delivered again.",
        )
        await self._write(
            state_epoch, complete=1, batches=[StateBatch(0, 1, ACKNOWLEDGED, 1)], start_offset=6
        )
        yield await self._finish_step(
            "The start offset moves on",
            "Records 0 and 1 are accepted. Records below offset 6 are complete and no longer stored.",
        )

    async def _steps_of_broker_b(self) -> AsyncIterator[DemoStep]:
        """Steps of a second leader: takeover, fencing of the first one, and continuation."""
        self._leader_epoch = 2
        state: ReadState = await self._record_call("read", leader_epoch=2)
        yield await self._finish_step(
            "Broker A stops responding, and broker B becomes the leader",
            "Broker B reads the whole state with the next leader epoch.",
        )
        await self._write(
            state.state_epoch,
            complete=2,
            batches=[StateBatch(8, 8, ARCHIVED, 1)],
            start_offset=6,
            refused_with=FencedLeaderEpoch,
        )
        yield await self._finish_step(
            "Broker A was only paused",
            "Broker A continues as if it were still the leader, and writes that record 8 was rejected. The "
            "coordinator fences it, because two leaders would overwrite each other's state.",
        )
        await self._write(
            state.state_epoch,
            complete=0,
            batches=[StateBatch(6, 6, ACKNOWLEDGED, 3), StateBatch(8, 9, ACKNOWLEDGED, 1)],
            start_offset=RECORDS,
            leader_epoch=2,
        )
        yield await self._finish_step(
            "Broker B continues",
            "Broker B delivers records 6, 8 and 9. Consumers accept all, record 6 at its third delivery.",
        )

    async def _show_deletion(self) -> AsyncIterator[DemoStep]:
        await self._record_call("summary")
        yield await self._finish_step(
            "An operator asks for the lag of the group",
            "Kafka's tools compute the lag of a share group from this response.",
        )
        await self._record_call("delete")
        await self._record_call("read", refused_with=Uninitialised, leader_epoch=2)
        yield await self._finish_step("The group is deleted", "Its state is deleted.", deleted=True)

    # Calls.

    async def _finish_step(self, title: str, text: str, *, deleted: bool = False) -> DemoStep:
        """Finish a step: collect its requests, and read the state."""
        calls, self._calls = self._calls, []
        state = None if deleted else await self._client.read(self._key, self._leader_epoch)
        return DemoStep(title, text, calls, state)

    async def _write(
        self,
        state_epoch: int,
        *,
        complete: int,
        batches: list[StateBatch],
        start_offset: int = 0,
        leader_epoch: int = 1,
        refused_with: type[ShareCoordinatorError] | None = None,
    ) -> None:
        await self._record_call(
            "write",
            refused_with=refused_with,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete,
            batches=batches,
        )

    async def _record_call(
        self, name: str, *, refused_with: type[ShareCoordinatorError] | None = None, **request: Any
    ) -> Any:
        """Call a method of the client and record the response; only the expected error is accepted."""
        loop = asyncio.get_running_loop()
        answer: Any = None
        refusal: ShareCoordinatorError | None = None
        began_s = loop.time()
        try:
            answer = await getattr(self._client, name)(self._key, **request)
        except ShareCoordinatorError as error:
            if refused_with is None or not isinstance(error, refused_with):
                raise
            refusal = error
        took_ms = (loop.time() - began_s) * 1000
        if refused_with is not None and refusal is None:
            raise UnexpectedAcceptance(
                f"The coordinator accepted a {name} that it must refuse ({refused_with.__name__})."
            )
        self._calls.append(DemoCall(name, request, answer, refusal, took_ms))
        return answer
