"""The periodic rounds of expiry, and the separate thread for requests to Kafka."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from coordinator.config import Config
from coordinator.errors import ConfigError, LogUnavailable
from coordinator.metrics import Metrics
from coordinator.operate.expiry import Expiry, make_expiry
from coordinator.operate.expiry.cluster_thread import ClusterThread
from tests.kafka_in_memory.kafka import RealTimeLoop
from tests.kafka_in_memory.share_group_cluster import ShareGroupCluster
from tests.kafka_in_memory.share_groups import ShareGroup
from tests.manual_clock import ManualClock
from tests.unit.coroutine_tests import wait_until
from tests.unit.expiry.replicas import (
    RULES,
    make_state,
    run_replica,
)
from tests.unit.log.kafka_logs import run_in_real_time

pytestmark = pytest.mark.run_with(function=run_in_real_time)


@pytest.fixture(autouse=True)
def _connect_new_threads_to_fake_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each new thread use an event loop that connects to clusters in memory."""
    monkeypatch.setattr(asyncio, "new_event_loop", RealTimeLoop)


def make_cluster() -> ShareGroupCluster:
    cluster = ShareGroupCluster()
    cluster.topics, cluster.groups = {"t"}, {"g": ShareGroup("t")}
    return cluster


async def test_rounds_continue_after_a_failed_round(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster, clock, metrics = make_cluster(), ManualClock(), Metrics()
    async with run_replica(cluster, clock, [make_state("g", "t")]) as replica:
        client = cluster.new_client()
        expiry = Expiry(replica.runtime, client, RULES, interval_s=0.001, clock=clock, metrics=metrics)

        def read_metric(name: str) -> float:
            return metrics.registry.get_sample_value(f"share_coordinator_{name}") or 0

        cluster.stop_brokers()
        expiry.start()
        await wait_until(lambda: read_metric("expiry_failures_total") >= 3)
        assert read_metric("expiry_last_round_timestamp_seconds") == 0
        cluster.start_brokers()
        await wait_until(lambda: read_metric("expiry_last_round_timestamp_seconds"))
        clock.advance(RULES.retention_minutes or 0)
        await wait_until(lambda: cluster.deleted_groups == ["g"])
        await expiry.stop()
        assert await replica.list_topics() == set()
    messages = [
        record.getMessage() for record in caplog.records if record.name == "coordinator.operate.expiry.expiry"
    ]
    ((host, port),) = cluster.brokers.addresses.values()
    address = f"{host}:{port}"
    assert messages == [
        f"Expiry failed, retrying in 0.001 s: No broker of {address} can be reached ({address}: broker 1 "
        "refuses connections).",
        "Expiry works again.",
        "group g, topic t expired (group_empty): 3 share-partitions",
    ]


async def test_requests_to_kafka_run_in_a_separate_thread() -> None:
    cluster = make_cluster()
    threads = set()

    async def record_thread() -> None:
        threads.add(threading.current_thread())

    cluster_thread = ClusterThread(cluster.new_client)
    cluster.before["describe"] = record_thread
    assert (await cluster_thread.describe_groups(["g"]))["g"].is_empty
    cluster.before["resolve"] = record_thread
    assert (await cluster_thread.resolve_topic_ids([])).cluster_id == "cluster"
    assert await cluster_thread.list_groups() == {"g"}
    assert len(await cluster_thread.list_offsets(["g"])) == 3
    assert (await cluster_thread.delete_offsets("g", ["t"]))["t"].error_code == 0
    assert (await cluster_thread.delete_groups(["g"]))["g"].error_code == 0
    (thread,) = threads
    assert thread is not threading.current_thread()

    async def stop_brokers() -> None:
        cluster.stop_brokers()

    cluster.before["describe"] = stop_brokers
    with pytest.raises(LogUnavailable):
        await cluster_thread.describe_groups(["g"])
    await cluster_thread.close()
    await cluster_thread.close()
    assert not thread.is_alive()


async def test_stop_cancels_a_round_and_ends_its_thread() -> None:
    cluster, clock = make_cluster(), ManualClock()
    begun = threading.Event()

    async def block_request() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with run_replica(cluster, clock, [make_state("g", "t")]) as replica:
        cluster_thread = ClusterThread(cluster.new_client)
        expiry = Expiry(replica.runtime, cluster_thread, RULES, interval_s=1, clock=clock, metrics=Metrics())
        cluster.before["describe"] = block_request
        expiry.start()
        await wait_until(begun.is_set)
        async with asyncio.timeout(60):
            await expiry.stop()
    assert "expiry" not in {thread.name for thread in threading.enumerate()}


async def test_pending_request_fails_when_the_thread_is_closed() -> None:
    cluster, begun = make_cluster(), threading.Event()

    async def block_request() -> None:
        begun.set()
        await asyncio.Event().wait()

    cluster_thread = ClusterThread(cluster.new_client)
    cluster.before["describe"] = block_request
    describing = asyncio.create_task(cluster_thread.describe_groups(["g"]))
    await wait_until(begun.is_set)
    async with asyncio.timeout(60):
        await cluster_thread.close()
        with pytest.raises(LogUnavailable, match="The coordinator is stopping"):
            await describing
        with pytest.raises(LogUnavailable, match="The coordinator is stopping"):
            await cluster_thread.list_groups()
    assert "expiry" not in {thread.name for thread in threading.enumerate()}


def test_retention_time_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be -1 \(disabled\) or at least 1"):
        Config(bootstrap_servers="kafka:9092", state_retention_minutes=0)


async def test_expiry_without_bootstrap_servers_is_disabled_with_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with run_replica(make_cluster(), ManualClock(), []) as replica:

        def make_expiry_from_settings(**settings: object) -> Expiry | None:
            config = Config(data_dir=tmp_path, **settings)  # type: ignore[arg-type]
            metrics, clock = Metrics(), ManualClock()
            return make_expiry(config, replica.runtime, metrics, clock=clock, has_fresh_lease=lambda: True)

        assert make_expiry_from_settings() is None
        assert caplog.messages == []
        assert make_expiry_from_settings(state_retention_minutes=10) is None
        assert "without bootstrap.servers" in caplog.text
        disabled = make_expiry_from_settings(bootstrap_servers="kafka:9092")
        assert disabled is not None
        assert not disabled.enabled
        disabled.start()
        await disabled.stop()
        enabled = make_expiry_from_settings(bootstrap_servers="kafka:9092", state_retention_minutes=10)
        assert enabled is not None
        assert (enabled.enabled, enabled.rules.retention_minutes, enabled.rules.grace_minutes) == (
            True,
            10,
            60,
        )
