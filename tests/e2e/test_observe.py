"""Test `share-coordinator observe` with unmodified brokers that use their own share coordinator."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.recovery.sources.topic import TopicSource
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.kafka import wait_until
from tests.kafka.delivery_history import check_history, read_history
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.observer import ObserverProcess
from tests.kafka.rig import BuiltInRig, built_in_rig

pytestmark = pytest.mark.broker

GROUP = "workers"
RECORDS = 12


def get_json(observer: ObserverProcess, path: str) -> Any:
    status, body = observer.get(path)
    assert status == 200, body
    return json.loads(body)


def acknowledge_all(rig: BuiltInRig, topic: str, how: str, *, seconds: float = 60) -> None:
    """Acknowledge all records of one poll with the type `how`."""
    consumer = rig.client.share_consumer(GROUP, topic)
    records = wait_until(consumer.poll, seconds=seconds, what="records are delivered")
    assert set(consumer.acknowledge([how] * len(records)).values()) == {None}
    consumer.close()


def read_share_partition(observer: ObserverProcess, topic_id: str) -> dict[str, Any]:
    partition = get_json(observer, f"/api/v1/share-partition?group={GROUP}&topic={topic_id}&partition=0")
    assert isinstance(partition, dict)
    return partition


@pytest.mark.parametrize("release", RELEASES)
def test_observer_shows_state_of_brokers_own_coordinator(release: str, tmp_path: Path) -> None:
    with built_in_rig(fetch_jars(release), tmp_path) as rig:
        topic_id = rig.client.create_topic("orders")
        rig.client.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
        rig.client.produce("orders", RECORDS)
        with ObserverProcess(tmp_path, rig.broker.bootstrap) as observer:
            # The state topic is created when the first share group consumes.
            wait_until(lambda: observer.get("/livez")[0] == 200, seconds=60, what="HTTP is served")
            acknowledge_all(rig, "orders", "ACCEPT")
            wait_until(lambda: observer.get("/readyz")[0] == 200, seconds=60, what="the observer caught up")
            rig.client.produce("orders", RECORDS, first=RECORDS)
            acknowledge_all(rig, "orders", "RELEASE")

            described = rig.share_groups.describe_offsets(GROUP)[0]
            partition = wait_until(
                lambda: _select_partition_with_released_records(read_share_partition(observer, topic_id)),
                seconds=10,
                what="the API shows the released record",
            )
            assert partition["topic"] == "orders"
            assert partition["start_offset"] == described.start_offset == RECORDS
            if described.lag is not None:
                assert partition["lag"] == described.lag == RECORDS
            assert partition["records_by_state"] == {"AVAILABLE": RECORDS}
            assert partition["delivery_count_max"] == 1
            signals = wait_until(
                lambda: _select_signals_with_lag(get_json(observer, "/api/v1/signals")),
                seconds=30,
                what="signals are computed",
            )
            assert signals["items"][0]["in_flight_records"] == RECORDS
            assert observer.get("/metrics")[0] == 200
            source = TopicSource("__share_group_state", rig.broker.bootstrap)
            key = SharePartitionKey(GROUP, parse_topic_id(topic_id), 0)
            check_history(observer, source, key, offset=RECORDS)
            events = read_history(observer, key, record_offset=RECORDS)["events"]
            assert (events[0]["delivery_state"], events[0]["delivery_count"]) == ("AVAILABLE", 1)


def _select_partition_with_released_records(partition: dict[str, Any]) -> dict[str, Any] | None:
    return partition if partition["records_by_state"].get("AVAILABLE") else None


def _select_signals_with_lag(signals: dict[str, Any]) -> dict[str, Any] | None:
    return signals if signals["items"] and signals["items"][0]["lag"] == RECORDS else None


def test_observer_survives_broker_restart_and_creates_nothing(tmp_path: Path) -> None:
    with built_in_rig(fetch_jars(RELEASES[-1]), tmp_path) as rig:
        topic_id = rig.client.create_topic("orders")
        rig.client.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
        rig.client.produce("orders", RECORDS)
        acknowledge_all(rig, "orders", "REJECT")
        topics = rig.client.topics()
        with ObserverProcess(tmp_path, rig.broker.bootstrap) as observer:
            wait_until(lambda: observer.get("/readyz")[0] == 200, seconds=60, what="the observer caught up")
            rig.broker.kill()
            rig.broker.start()
            rig.client.produce("orders", RECORDS, first=RECORDS)
            acknowledge_all(rig, "orders", "ACCEPT", seconds=120)
            wait_until(
                lambda: read_share_partition(observer, topic_id)["start_offset"] >= RECORDS,
                seconds=30,
                what="writes after the restart are shown",
            )
        assert rig.client.topics() == topics
        assert rig.share_groups.list() == [GROUP]
