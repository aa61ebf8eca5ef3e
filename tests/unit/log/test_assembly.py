"""The log takes its settings from the configuration."""

from pathlib import Path

import pytest

from coordinator.config import Config
from coordinator.log.assembly import make_log
from coordinator.log.journal import Journal
from coordinator.log.kafka import KafkaLog, KafkaLogLimits, TopicConfig
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics


@pytest.mark.parametrize("sync", ["always", "os"])
async def test_journal_has_the_configured_folder_segments_and_sync(tmp_path: Path, sync: str) -> None:
    config = Config(
        log="journal", data_dir=tmp_path, state_partitions=3, journal_segment_bytes=1 << 20, journal_sync=sync
    )
    log = make_log(config, Metrics())
    assert isinstance(log, Journal)
    assert log._sync_mode == sync
    await log.open()
    assert max(file.stat().st_size for file in tmp_path.iterdir()) == 1 << 20  # noqa: ASYNC240
    await log.close()


def test_topic_log_has_the_configured_topic_and_times() -> None:
    config = Config(
        log="kafka",
        bootstrap_servers="kafka:9092",
        state_topic="states",
        state_partitions=7,
        state_topic_replication_factor=5,
        state_topic_min_isr=4,
        request_timeout_ms=2_000,
        delivery_timeout_ms=20_000,
        owner_lease_ms=1_500,
    )
    log = make_log(config, Metrics())
    assert isinstance(log, KafkaLog)
    assert log._topic_config == TopicConfig("states", 7, 5, 4)
    limits = KafkaLogLimits(request_timeout_s=2.0, append_timeout_s=20.0, lease_s=1.5)
    assert log._limits == limits


def test_memory_log_needs_no_other_setting() -> None:
    assert isinstance(make_log(Config(log="memory"), Metrics()), MemoryLog)
