"""The signals of a coordinator with a real broker: rates, lost records, and events in a topic."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from coordinator.client import ShareCoordinatorClient
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE
from tests.kafka import BuiltInRig, wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.log_start import delete_records
from tests.kafka.ports import free_ports

pytestmark = pytest.mark.broker

TOPIC = "served-signals"
EVENTS = "share-group-events"
GROUP = "served"
RECORDS = 20
# A deadline: signals are computed every 5 s.
COMPUTED_S = 120


@pytest.fixture
def coordinator(built_in: BuiltInRig, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    port, http_port = free_ports(2)
    built_in.client.create_topic(EVENTS, partitions=2)
    settings = {"bootstrap.servers": built_in.broker.bootstrap, "signals.events.topic": EVENTS}
    process = CoordinatorProcess(tmp_path, port=port, http_port=http_port, settings=settings)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def get_signals(coordinator: CoordinatorProcess) -> dict[str, Any]:
    status, body = coordinator.get(f"/api/v1/signal?group={GROUP}")
    return json.loads(body) if status == 200 else {}


def test_coordinator_reports_rates_and_lost_records(
    built_in: BuiltInRig, coordinator: CoordinatorProcess
) -> None:
    key = SharePartitionKey(GROUP, parse_topic_id(built_in.client.create_topic(TOPIC)), 0)
    built_in.client.produce(TOPIC, RECORDS)
    leader_epoch = 0

    def write(start_offset: int, *batches: StateBatch) -> None:
        """Write as a share-partition leader would; each call is a new leader, so it repeats nothing."""
        nonlocal leader_epoch
        leader_epoch += 1

        async def send() -> None:
            async with ShareCoordinatorClient(f"127.0.0.1:{coordinator.port}") as client:
                await client.write(
                    key, state_epoch=1, leader_epoch=leader_epoch, start_offset=start_offset, batches=batches
                )

        asyncio.run(send())

    asyncio.run(_initialize_state(coordinator.port, key))
    wait_until(
        lambda: get_signals(coordinator).get("lag") == RECORDS, seconds=COMPUTED_S, what="the lag is computed"
    )

    def has_rates() -> bool:
        # Offsets 0 to 3 stay unfinished; the delivery count grows, so no write repeats the one before.
        write(
            0,
            StateBatch(4, 7, AVAILABLE, leader_epoch % 100 + 1),
            StateBatch(8, 9, ARCHIVED, 5),
            StateBatch(10, 11, ACKNOWLEDGED, 1),
        )
        shown = get_signals(coordinator)
        rates = ("acknowledged_per_second", "released_per_second", "rejected_per_second")
        return all((shown[name] or 0) > 0 for name in rates)

    wait_until(has_rates, seconds=COMPUTED_S, what="all three rates are above 0")
    assert get_signals(coordinator)["oldest_record_age_seconds"] >= 1

    # Advances the log start offset, as retention does; the next leader begins there.
    delete_records(built_in.broker.bootstrap, TOPIC, before_offset=8)
    write(8)
    shown = _wait_for_loss(coordinator)
    assert (shown["problem"], shown["lost_records"]) == ("lost-before-delivery", 8)

    key_and_event = asyncio.run(_read_event(built_in.broker.bootstrap, "lost-before-delivery"))
    assert key_and_event == (GROUP.encode(), shown["message"].partition(",")[0])

    # The first write after a restart is seen, too. Offsets 8 to 11 are complete.
    coordinator.stop()
    delete_records(built_in.broker.bootstrap, TOPIC, before_offset=16)
    coordinator.start()
    write(16)
    assert _wait_for_loss(coordinator)["lost_records"] == 4


def _wait_for_loss(coordinator: CoordinatorProcess) -> dict[str, Any]:
    wait_until(
        lambda: get_signals(coordinator).get("lost_records"),
        seconds=COMPUTED_S,
        what="lost records are reported",
    )
    return get_signals(coordinator)


async def _initialize_state(port: int, key: SharePartitionKey) -> None:
    async with ShareCoordinatorClient(f"127.0.0.1:{port}") as client:
        await client.initialize(key, state_epoch=1, start_offset=0)


async def _read_event(bootstrap: str, problem: str) -> tuple[bytes | None, str]:
    """Wait for the event that this problem began; return its key and the first part of its message."""
    consumer = AIOKafkaConsumer(EVENTS, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(COMPUTED_S):
            async for record in consumer:
                event = json.loads(record.value)
                if (event["problem"], event["began"]) == (problem, True):
                    return record.key, event["message"].partition(",")[0]
    finally:
        await consumer.stop()
    raise AssertionError("the consumer ended")
