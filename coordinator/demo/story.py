"""The story: a share group's records from first delivery to deletion, with a change of leaders in between.

Each step makes calls to a coordinator and then reads what it holds. Nothing of an answer is written here:
a step carries the answers as they came.
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

# The states of a record as Kafka numbers them (KIP-932). ACQUIRED is known to the leader only.
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)

RECORDS = 10


class RecordedCall(NamedTuple):
    """One request to the coordinator and its answer: an error if it was refused, else maybe values."""

    name: str
    request: dict[str, Any]
    answer: Any
    error: ShareCoordinatorError | None
    took_ms: float


class DemoStep(NamedTuple):
    """What happens, why, what was asked, and what the coordinator holds after it (None: nothing)."""

    title: str
    text: str
    calls: list[RecordedCall]
    state: ReadState | None


class UnexpectedAcceptance(Exception):
    """The coordinator accepted what a share coordinator must refuse; the text is one line for people."""


class DemoScenario:
    """Plays on one share-partition, which must be new. `steps` runs once."""

    def __init__(self, client: ShareCoordinatorClient, key: SharePartitionKey) -> None:
        self._client = client
        self._key = key
        self._calls: list[RecordedCall] = []
        self._leader_epoch = 1

    async def steps(self) -> AsyncIterator[DemoStep]:
        """Play step by step. Raises ShareCoordinatorError when the coordinator fails, and
        UnexpectedAcceptance.
        """
        await self._call("initialize", state_epoch=1, start_offset=0)
        yield await self._step(
            "A share group subscribes to a topic",
            "Kafka asks the share coordinator to keep notes on how far the group is with a partition. "
            "The notes begin at offset 0.",
        )
        state: ReadState = await self._call("read", leader_epoch=1)
        yield await self._step(
            "Broker A becomes the leader of the partition",
            "It reads the notes once, under its leader epoch, and from then on only writes.",
        )
        yield await self._step(
            f"{RECORDS} records are handed out to consumers",
            "Each record goes to one consumer of the group. That is not written down: were the broker to "
            "die now, the records would simply be handed out again.",
        )
        async for step in self._broker_a(state.state_epoch):
            yield step
        async for step in self._broker_b():
            yield step
        async for step in self._end():
            yield step

    async def _broker_a(self, state_epoch: int) -> AsyncIterator[DemoStep]:
        """Let the first leader note accepted, released and rejected records, and move the start offset."""
        await self._write(state_epoch, complete=4, batches=[StateBatch(2, 5, ACKNOWLEDGED, 1)])
        yield await self._step(
            "Some records are accepted",
            "The consumer of records 2 to 5 is done with them; those of 0 and 1 are slower. Broker A tells "
            "the consumer so only after the coordinator has stored it.",
        )
        await self._write(state_epoch, complete=4, batches=[StateBatch(6, 6, AVAILABLE, 1)])
        await self._write(state_epoch, complete=4, batches=[StateBatch(6, 6, AVAILABLE, 2)])
        yield await self._step(
            "A record is released, twice",
            "Two consumers in turn could not work on record 6 and gave it back. It is available again, and "
            "the notes count its deliveries, so that a record which nobody can work on does not go round "
            "for ever.",
        )
        await self._write(state_epoch, complete=5, batches=[StateBatch(7, 7, ARCHIVED, 1)])
        yield await self._step(
            "A record is rejected",
            "Record 7 makes no sense to its consumer. It will not be handed out again.",
        )
        await self._write(
            state_epoch, complete=1, batches=[StateBatch(0, 1, ACKNOWLEDGED, 1)], start_offset=6
        )
        yield await self._step(
            "The start offset moves on",
            "Records 0 and 1 are accepted at last. Everything below offset 6 is settled, and the notes "
            "forget it.",
        )

    async def _broker_b(self) -> AsyncIterator[DemoStep]:
        """Let a second leader take over, the first one be refused, and the second one go on."""
        self._leader_epoch = 2
        state: ReadState = await self._call("read", leader_epoch=2)
        yield await self._step(
            "Broker A falls silent, and broker B becomes the leader",
            "It knows nothing but what it reads here, under the next leader epoch.",
        )
        await self._write(
            state.state_epoch,
            complete=2,
            batches=[StateBatch(8, 8, ARCHIVED, 1)],
            start_offset=6,
            refused_with=FencedLeaderEpoch,
        )
        yield await self._step(
            "Broker A was only slow",
            "It comes back, does not know that it leads no more, and wants to note that record 8 was "
            "rejected. Two leaders writing in turn would ruin the notes.",
        )
        await self._write(
            state.state_epoch,
            complete=0,
            batches=[StateBatch(6, 6, ACKNOWLEDGED, 3), StateBatch(8, 9, ACKNOWLEDGED, 1)],
            start_offset=RECORDS,
            leader_epoch=2,
        )
        yield await self._step(
            "Broker B goes on where broker A left off",
            "It hands out records 6, 8 and 9, and all are accepted; 6 at its third delivery.",
        )

    async def _end(self) -> AsyncIterator[DemoStep]:
        await self._call("summary")
        yield await self._step(
            "Somebody asks how far the group is",
            "Kafka's tools work out a share group's lag from this answer.",
        )
        await self._call("delete")
        await self._call("read", refused_with=Uninitialised, leader_epoch=2)
        yield await self._step("The group is deleted", "Its notes go with it.", deleted=True)

    # Calls.

    async def _step(self, title: str, text: str, *, deleted: bool = False) -> DemoStep:
        """Close a step: take its calls, and read what the coordinator holds now."""
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
        await self._call(
            "write",
            refused_with=refused_with,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete,
            batches=batches,
        )

    async def _call(
        self, name: str, *, refused_with: type[ShareCoordinatorError] | None = None, **request: Any
    ) -> Any:
        """Call a method of the client and note the answer; only the refusal that is due is no failure."""
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
        self._calls.append(RecordedCall(name, request, answer, refusal, took_ms))
        return answer
