"""Metadata when brokers disagree: a broker without a connection to the controller reports old leaders."""

import asyncio
from collections.abc import Callable

import pytest

from coordinator.cluster.kafka.brokers import Brokers
from tests.unit.kafka.fake_brokers import NEW_TOPIC_ID, TOPIC, FakeBroker, start_brokers

OLD, NEW = [(1, 4)], [(2, 5)]
DEADLINE_S = 30.0


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def make_brokers(bootstrap: str) -> Brokers:
    return Brokers(bootstrap, TOPIC, request_timeout_s=5.0)


def test_stale_broker_does_not_hide_the_newest_leader() -> None:
    async def main() -> None:
        stale = FakeBroker(1, OLD)
        async with start_brokers(stale, FakeBroker(2, NEW), FakeBroker(3, NEW)) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()
            for _ in range(20):
                asked = stale.answered
                brokers.refresh_soon()
                await wait_until(lambda asked=asked: stale.answered > asked)  # type: ignore[misc]
                await wait_until(lambda: brokers.leader(0) == 2)
            # Requests that any broker may answer are not sent to the stale broker first.
            assert brokers._connections.metadata.nodes_best_first()[0] != 1
            await brokers.close()

    asyncio.run(main())


def test_new_leader_is_found_although_a_stale_broker_answered_last() -> None:
    async def main() -> None:
        stale, *others = FakeBroker(1, OLD), FakeBroker(2, OLD), FakeBroker(3, OLD)
        async with start_brokers(stale, *others) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()
            assert brokers.leader(0) == 1
            for broker in others:
                broker.leaders = NEW
            brokers.refresh_soon()
            await wait_until(lambda: brokers.leader(0) == 2)
            await brokers.close()

    asyncio.run(main())


def test_many_stale_brokers_only_delay_the_newest_leader() -> None:
    async def main() -> None:
        fleet = [FakeBroker(node, OLD) for node in range(1, 8)]
        fleet[5].leaders = NEW
        async with start_brokers(*fleet) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()

            def is_found() -> bool:
                brokers.refresh_soon()
                return brokers.leader(0) == 2

            await wait_until(is_found)
            await brokers.close()

    asyncio.run(main())


def test_silent_broker_does_not_delay_a_refresh() -> None:
    async def main() -> None:
        silent, *others = FakeBroker(1, OLD), FakeBroker(2, NEW), FakeBroker(3, NEW)
        async with start_brokers(*others, silent) as bootstrap:
            silent.silent = True
            brokers = Brokers(bootstrap, TOPIC, request_timeout_s=DEADLINE_S)
            await brokers.connect()
            async with asyncio.timeout(DEADLINE_S / 2):
                for _ in range(5):
                    await brokers._connections.refresh()
            assert brokers.leader(0) == 2
            await brokers.close()

    asyncio.run(main())


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_topic_with_another_id_at_most_brokers_is_not_used(stale_node: int) -> None:
    async def main() -> None:
        fleet = [FakeBroker(node, OLD) for node in (1, 2, 3)]
        async with start_brokers(*fleet) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()
            brokers.pin_topic_id()
            assert brokers.recreated_reason() is None
            for broker in fleet:
                if broker.node != stale_node:
                    broker.topic_id, broker.leaders = NEW_TOPIC_ID, [(3, 0)]
            brokers.refresh_soon()
            await wait_until(lambda: brokers.recreated_reason() is not None)
            reason = brokers.recreated_reason() or ""
            assert reason.startswith(f"Topic {TOPIC} was deleted and created again: its topic id was ")
            assert "Restart this process" in reason
            assert "\n" not in reason
            assert brokers.leader(0) == 1, "the leaders of the new topic are not those of the old one"
            await brokers.close()

    asyncio.run(main())


@pytest.mark.parametrize("stale_node", [1, 2, 3])
def test_stale_broker_does_not_make_a_topic_look_recreated(stale_node: int) -> None:
    """A coordinator that starts after the topic was created again also receives the old topic id."""

    async def main() -> None:
        fleet = [FakeBroker(node, [(3, 0)], NEW_TOPIC_ID) for node in (1, 2, 3)]
        stale = fleet[stale_node - 1]
        stale.topic_id, stale.leaders = b"\1" * 16, OLD
        async with start_brokers(*fleet) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()
            assert brokers.pin_topic_id() == NEW_TOPIC_ID
            asked = stale.answered
            brokers.refresh_soon()
            await wait_until(lambda: stale.answered > asked)
            assert brokers.recreated_reason() is None
            assert brokers.leader(0) == 3
            await brokers.close()

    asyncio.run(main())


def test_brokers_without_topic_ids_receive_the_old_request_version() -> None:
    async def main() -> None:
        fleet = [FakeBroker(node, NEW, newest_version=5) for node in (1, 2, 3)]
        async with start_brokers(*fleet) as bootstrap:
            brokers = make_brokers(bootstrap)
            await brokers.connect()
            assert brokers.leader(0) == 2
            assert brokers.pin_topic_id() == bytes(16)
            assert brokers.recreated_reason() is None
            topic = await brokers.describe_topic()
            assert topic is not None
            assert (topic.partitions, topic.replicas, topic.ready) == (1, 3, True)
            await brokers.close()

    asyncio.run(main())
