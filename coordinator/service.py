"""The five share-state RPCs: a request is split by share-partition and its answers are gathered again.

No coroutine runs per request: a request becomes operations, each of which puts its result into the
request's place for it, and the last one calls `done` with the whole response.  Where brokers may come to the
wrong coordinator, a forwarder has the operations carried out where they belong.

Source of what is answered to odd requests (no group, no topics, no partitions): ShareCoordinatorService
of Kafka 4.4.  Results come in request order (Kafka's order is that of a hash map).
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator.forwarding import Forwardable, Forwarder
from coordinator.runtime import Origin, Runtime
from coordinator.runtime.mailbox import Decide, PlainWrites
from coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_records import SharePartitionKey

Done = Callable[[Any], None]


class Rpc(NamedTuple):
    """What tells one of the five RPCs from the others; everything else is the same for all."""

    name: str
    api_key: int
    decide: Decide
    response: Callable[[list[Any]], Any]
    topic_result: Callable[[bytes, list[Any]], Any]
    partition_result: Callable[..., Any]
    writes: bool
    # Kafka answers nothing at all when one of the topics has no partitions, but for Initialize.
    empty_topic_empties_answer: bool = True


INITIALIZE = Rpc(
    "InitializeShareGroupState",
    initialize_api.API_KEY,
    Shard.initialize_state,
    initialize_api.InitializeShareGroupStateResponse,
    initialize_api.InitializeStateResult,
    initialize_api.PartitionResult,
    writes=True,
    empty_topic_empties_answer=False,
)
READ = Rpc(
    "ReadShareGroupState",
    read_api.API_KEY,
    Shard.read_state,
    read_api.ReadShareGroupStateResponse,
    read_api.ReadStateResult,
    read_api.PartitionResult,
    writes=False,
)
WRITE = Rpc(
    "WriteShareGroupState",
    write_api.API_KEY,
    Shard.write_state,
    write_api.WriteShareGroupStateResponse,
    write_api.WriteStateResult,
    write_api.PartitionResult,
    writes=True,
)
DELETE = Rpc(
    "DeleteShareGroupState",
    delete_api.API_KEY,
    Shard.delete_state,
    delete_api.DeleteShareGroupStateResponse,
    delete_api.DeleteStateResult,
    delete_api.PartitionResult,
    writes=True,
)
SUMMARY = Rpc(
    "ReadShareGroupStateSummary",
    summary_api.API_KEY,
    Shard.read_state_summary,
    summary_api.ReadShareGroupStateSummaryResponse,
    summary_api.ReadStateSummaryResult,
    summary_api.PartitionResult,
    writes=False,
)


class _Gathering:
    """One request's results, in request order, until none is missing."""

    __slots__ = ("_done", "_missing", "_results", "_rpc")

    def __init__(self, rpc: Rpc, results: list[tuple[bytes, list[Any]]], missing: int, done: Done) -> None:
        self._rpc = rpc
        self._results = results
        self._missing = missing
        self._done = done

    def put(self, row: list[Any], place: int, result: Any) -> None:
        row[place] = result
        self._missing -= 1
        if self._missing == 0:
            rpc = self._rpc
            self._done(rpc.response([rpc.topic_result(topic_id, row) for topic_id, row in self._results]))


class _PartOfRequest(Forwardable):
    """The unit of one share-partition within a request."""

    __slots__ = ("_gathering", "_partition_result", "_place", "_row")

    def __init__(
        self,
        rpc: Rpc,
        key: SharePartitionKey,
        unit: list[Any],
        origin: Origin | None,
        received_s: float,
        row: list[Any],
        place: int,
    ) -> None:
        super().__init__(rpc.decide, key, unit, writes=rpc.writes, origin=origin, received_s=received_s)
        self._partition_result = rpc.partition_result
        self._row = row
        self._place = place
        self._gathering: _Gathering | None = None
        self.call = None

    def gather_in(self, gathering: _Gathering) -> None:
        self._gathering = gathering

    def answer(self, result: Any) -> None:
        assert self._gathering is not None
        self._gathering.put(self._row, self._place, result)

    def refuse(self, error_code: ErrorCode, error_message: str) -> None:
        if self.call is not None and error_code == ErrorCode.NOT_COORDINATOR:
            self.call.not_coordinator(self)
            return
        self.answer(self._partition_result(self.key.partition, int(error_code), error_message))


class Service:
    """Answers the five RPCs from the shards of a runtime, and those of others through a forwarder."""

    def __init__(self, runtime: Runtime, forwarder: Forwarder | None = None) -> None:
        self._runtime = runtime
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()

    @property
    def forwards(self) -> bool:
        """Tell whether requests that belong to other coordinators are carried to them."""
        return self._forwarder is not None and self._forwarder.active

    @property
    def may_forward(self) -> bool:
        """Tell whether that is so now, or may be at some time."""
        return self._forwarder is not None

    def plain_writes(self) -> PlainWrites | None:
        """Return what carries plain writes out (`coordinator.hot`), or None; it forwards nothing."""
        return self._runtime.plain_writes()

    def handle(
        self, rpc: Rpc, request: Any, origin: Origin | None, done: Done, *, forwarded: bool = False
    ) -> None:
        """Carry out a request of one of the five RPCs; one that was `forwarded` to us, here or not at all.

        `done` is called exactly once with the response, within this call or later, unless the origin
        has gone. Never raises for what a client sent.
        """
        topics = request.topics
        if not request.group_id or not topics:
            done(rpc.response([]))
            return
        if rpc.empty_topic_empties_answer and not all(topic.partitions for topic in topics):
            done(rpc.response([]))
            return
        results: list[tuple[bytes, list[Any]]] = []
        operations = self._split(rpc, request, origin, results)
        if not operations:
            done(rpc.response([]))
            return
        gathering = _Gathering(rpc, results, len(operations), done)
        for operation in operations:
            operation.gather_in(gathering)
        if self._forwarder is not None and self._forwarder.active and not forwarded:
            self._forwarder.take(rpc.api_key, operations)
            return
        submit = self._runtime.submit
        for operation in operations:
            submit(operation)

    def _split(
        self, rpc: Rpc, request: Any, origin: Origin | None, results: list[tuple[bytes, list[Any]]]
    ) -> list[_PartOfRequest]:
        """Make one operation for each share-partition, and lay out the rows for their results.

        A share-partition that is named more than once becomes one unit, in request order, with one
        result: brokers merge queued writes into one request and match the results by partition.
        """
        group_id: str = request.group_id
        received_s = self._loop.time()
        operations: list[_PartOfRequest] = []
        rows: dict[bytes, tuple[list[Any], dict[int, list[Any]]]] = {}
        for topic in request.topics:
            topic_id = topic.topic_id
            if not topic.partitions:
                continue
            if topic_id not in rows:
                rows[topic_id] = ([], {})
                results.append((topic_id, rows[topic_id][0]))
            row, units = rows[topic_id]
            for part in topic.partitions:
                partition = part.partition
                unit = units.get(partition)
                if unit is not None:
                    unit.append(part)
                    continue
                units[partition] = unit = [part]
                key = SharePartitionKey(group_id, topic_id, partition)
                operations.append(_PartOfRequest(rpc, key, unit, origin, received_s, row, len(row)))
                row.append(None)
        return operations
