"""HTTP probes and /metrics: readiness requires all shards; a started coordinator stays started."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.unit.admin.admin_server import get_json, run_admin
from tests.unit.admin.test_state_routes import make_snapshot


async def test_coordinator_is_ready_when_all_shards_are_active() -> None:
    assert await get_json("/readyz") == {"status": "ready", "reasons": []}


async def test_stopping_coordinator_is_alive_but_not_ready() -> None:
    async with run_admin() as coordinator:
        coordinator.runtime.mark_not_ready()
        ready, alive = await coordinator.get("/readyz"), await coordinator.get("/livez")
        health = await coordinator.get("/healthz")
    assert (ready.status_code, alive.status_code, health.status_code) == (503, 200, 503)
    assert ready.json() == {"status": "not ready", "reasons": ["The coordinator is stopping."]}
    assert alive.json()["status"] == "alive"


async def test_startupz_stays_started_after_a_shard_fails() -> None:
    async with run_admin() as coordinator:
        before = await coordinator.get("/startupz")
        runner = coordinator.runtime._runners[0]
        runner.status = type(runner.status).FAILED
        after = await coordinator.get("/startupz")
    assert (before.status_code, after.status_code) == (200, 200)
    assert after.json() == {"status": "started", "reasons": []}


async def test_healthz_summarizes_shards_and_listener() -> None:
    shown = await get_json("/healthz", [make_snapshot()])
    assert shown["shards"] == {"ACTIVE": 4}
    assert shown["share_partitions"] == 1
    assert shown["listen"] == "127.0.0.1:9095"


@pytest.mark.parametrize(
    "accept", ["*/*", "text/plain; version=latest", 'application/openmetrics-text;version="1.0.0"']
)
async def test_metrics_are_in_prometheus_text_format_by_default(accept: str) -> None:
    """The last two Accept headers request versions of metrics formats that do not exist."""
    async with run_admin([make_snapshot()]) as coordinator:
        answer = await coordinator.get("/metrics", {"Accept": accept})
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'share_coordinator_shards{state="active"} 4.0' in answer.text
    assert "share_coordinator_share_partition_start_offset" not in answer.text


async def test_metrics_are_compressed_if_the_client_accepts_it() -> None:
    async with run_admin([make_snapshot()], metrics_partition_level="all") as coordinator:
        plain = await coordinator.get("/metrics", {"Accept-Encoding": "identity"})
        compressed = await coordinator.get("/metrics", {"Accept-Encoding": "deflate, gzip;q=0.5"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert int(compressed.headers["content-length"]) * 5 < len(plain.content)
    assert "share_coordinator_share_partition_start_offset{" in compressed.text


async def test_metrics_are_valid_openmetrics_if_the_client_prefers_it() -> None:
    async with run_admin([make_snapshot()], metrics_partition_level="all") as coordinator:
        answer = await coordinator.get("/metrics", {"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"share_coordinator_shards", "share_coordinator_share_partition_start_offset"} <= families
    assert answer.text.endswith("# EOF\n")
