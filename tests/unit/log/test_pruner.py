"""The requests that the pruner sends to brokers, and its retries."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from coordinator.cluster.kafka.broker_results import NO_NODE
from coordinator.errors import LogUnavailable
from coordinator.log.kafka.pruning import Pruner
from protocol.errors import ErrorCode
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)


class FakeBrokers:
    """A fake of the part of `Brokers` that the pruner uses.

    DeleteRecords returns the planned codes, then NONE.
    """

    def __init__(self) -> None:
        # Partition 3 has no leader.
        self.leaders = {0: 1, 1: 1, 2: 2, 3: NO_NODE}
        self.codes: list[int] = []
        self.requests: list[tuple[int, dict[int, int]]] = []
        self.refreshes = 0
        self.before_answer: Callable[[], object] = lambda: None
        self.failed: list[str] = []
        self.kept: set[int] = set()
        self.pruner = Pruner(self, self.failed.append, lambda partition: partition not in self.kept)  # type: ignore[arg-type]

    def leader(self, partition: int) -> int:
        return self.leaders[partition]

    def refresh_soon(self) -> None:
        self.refreshes += 1

    async def delete_records(self, node: int, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self.requests.append((node, dict(offsets)))
        await asyncio.sleep(1)
        act, self.before_answer = self.before_answer, lambda: None
        act()
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        return dict.fromkeys(offsets, code)

    async def prune(self, *targets: tuple[int, int]) -> list[tuple[int, dict[int, int]]]:
        """Prune, wait 10 s, and return the requests that were sent."""
        self.requests.clear()
        for partition, before_offset in targets:
            self.pruner.prune(partition, before_offset)
        await asyncio.sleep(10)
        return list(self.requests)


async def test_each_broker_gets_one_request_with_the_greatest_offsets() -> None:
    brokers = FakeBrokers()
    sent = await brokers.prune((0, 3), (0, 2), (1, 5), (2, 7))
    assert sent == [(1, {0: 3, 1: 5}), (2, {2: 7})]
    assert await brokers.prune((1, 6)) == [(1, {1: 6})], "finished deletions are not repeated"


async def test_refused_deletion_is_retried_at_the_next_call_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers()
    brokers.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert await brokers.prune((0, 3)) == [(1, {0: 3})]
    assert await brokers.prune((1, 5)) == [(1, {0: 3, 1: 5})]
    assert await brokers.prune((1, 6)) == [(1, {0: 3, 1: 6})]
    assert (brokers.failed, brokers.refreshes) == (["refused"] * 3, 3)
    assert [message for message in caplog.messages if "Kafka's error" in message] == [
        "partition 0 of the state topic was not pruned: Kafka's error NOT_LEADER_OR_FOLLOWER (6)"
    ]


async def test_offset_that_grows_during_the_request_is_sent_next() -> None:
    brokers = FakeBrokers()
    brokers.before_answer = lambda: brokers.pruner.prune(0, 9)
    assert await brokers.prune((0, 3)) == [(1, {0: 3}), (1, {0: 9})]


async def test_missing_leader_and_unreachable_broker_are_counted() -> None:
    brokers = FakeBrokers()

    def raise_log_unavailable() -> None:
        raise LogUnavailable("no broker")

    brokers.before_answer = raise_log_unavailable
    assert await brokers.prune((3, 1), (0, 3), (2, 7)) == [(1, {0: 3}), (2, {2: 7})]
    assert brokers.failed == ["unreachable"] * 2


async def test_pruner_drops_deletions_of_partitions_that_must_not_be_pruned() -> None:
    brokers = FakeBrokers()
    brokers.kept = {0}
    assert await brokers.prune((0, 3), (1, 5)) == [(1, {1: 5})]
    brokers.kept = set()
    assert await brokers.prune((2, 7)) == [(2, {2: 7})]


async def test_wait_until_idle_waits_only_for_the_given_partitions() -> None:
    brokers, loop = FakeBrokers(), asyncio.get_running_loop()
    brokers.pruner.prune(0, 3)
    began_s = loop.time()
    await brokers.pruner.wait_until_idle([1, 2])
    assert loop.time() == began_s
    await brokers.pruner.wait_until_idle([0, 2])
    assert loop.time() == began_s + 1


async def test_close_that_is_cancelled_ends_the_request() -> None:
    brokers, answered = FakeBrokers(), []
    brokers.before_answer = lambda: answered.append(True)
    brokers.pruner.prune(0, 3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(brokers.pruner.close(), 0.5)
    await asyncio.sleep(10)
    assert not answered
