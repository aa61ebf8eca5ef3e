"""The expiry API: list abandoned state with its expiry time, and run an expiry round on request."""

import asyncio
from pathlib import Path

import httpx
import pytest

from coordinator.metrics import Metrics
from coordinator.observe import LogFollower
from coordinator.operate.admin import create_app
from coordinator.operate.admin import expiry_routes as admin_expiry
from coordinator.operate.expiry import Expiry, ExpiryRules
from coordinator.serve.runtime import Runtime
from protocol.state_records import topic_id_text
from tests.kafka_in_memory.kafka import KafkaInMemory
from tests.kafka_in_memory.share_group_cluster import ShareGroupCluster
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.manual_clock import ManualClock
from tests.unit.admin.admin_server import NOW_MS, AdminTestClient, run_admin
from tests.unit.admin.test_access_control import bearer_header
from tests.unit.admin.test_hand_over_routes import audit_lines, post_write_request, write_settings
from tests.unit.admin.test_tokens import WRITING
from tests.unit.expiry.replicas import (
    INTERVAL_MINUTES,
    MINUTE_MS,
    RULES,
    make_state,
)
from tests.unit.log.kafka_logs import run_in_real_time

pytestmark = pytest.mark.run_with(function=run_in_real_time)

__all__ = ["write_settings"]

RETENTION_MS = (RULES.retention_minutes or 0) * MINUTE_MS


class AbandonedStateCluster:
    """A fake cluster in which group g has no members, and the state of groups g and h."""

    def __init__(self, rules: ExpiryRules = RULES) -> None:
        self.clock = ManualClock()
        self.cluster = ShareGroupCluster()
        self.cluster.topics = {"t", "u"}
        self.cluster.groups = {"g": ShareGroup(), "h": ShareGroup()}
        self.cluster.groups["h"].join("t")
        self.rules = rules
        self.records = [
            make_state("g", "t", 0),
            make_state("g", "t", 1),
            make_state("g", "u", 5),
            make_state("h", "t"),
        ]

    def make_expiry(self, runtime: Runtime) -> Expiry:
        return Expiry(
            runtime,
            self.cluster.new_client(),
            self.rules,
            interval_s=INTERVAL_MINUTES * 60,
            clock=self.clock,
            metrics=Metrics(),
        )


async def get_expiry(coordinator: AdminTestClient, query: str = "") -> dict[str, object]:
    answer = await coordinator.get(f"/api/v1/expiry{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_abandoned_state_is_listed_with_its_expiry_time() -> None:
    setup = AbandonedStateCluster()
    async with run_admin(setup.records, None, setup.make_expiry) as coordinator:
        answer = await get_expiry(coordinator)
        one = {
            "group": "g",
            "topic": "t",
            "topic_id": topic_id_text(topic_id("t")),
            "partitions": [0, 1],
            "reason": "group_empty",
            "since": "2023-11-14T22:13:20.123Z",
            "since_ms": NOW_MS,
            "expires_at": "2023-11-14T23:53:20.123Z",
            "expires_at_ms": NOW_MS + RETENTION_MS,
            "status": "later",
        }
        assert answer == {
            "items": [
                one,
                {**one, "topic": "u", "topic_id": topic_id_text(topic_id("u")), "partitions": [5]},
            ],
            "total": 2,
            "limit": 1000,
            "offset": 0,
            "enabled": True,
            "retention_minutes": 100,
            "grace_minutes": 60,
            "observed_at": "2023-11-14T22:13:20.123Z",
            "last_round": None,
            "unanswered_groups": 0,
            "warning": None,
            "missing_shards": [],
        }
        page = await get_expiry(coordinator, "?limit=1&offset=1&retention_minutes=7")
        assert [each["topic"] for each in page["items"]] == ["u"]  # type: ignore[attr-defined]
        assert page["retention_minutes"] == 7
        assert (await coordinator.get("/api/v1/expiry?retention_minutes=0")).status_code == 422


async def test_expiry_returns_503_without_a_reachable_cluster() -> None:
    async with run_admin() as coordinator:
        answer = await coordinator.get("/api/v1/expiry")
        assert (answer.status_code, answer.json()["message"]) == (
            503,
            "bootstrap.servers is not set, so it is not known which groups are empty",
        )
    setup = AbandonedStateCluster()
    setup.cluster.stop_brokers()
    async with run_admin(setup.records, None, setup.make_expiry) as coordinator:
        answer = await coordinator.get("/api/v1/expiry")
        assert answer.status_code == 503
        assert "refuses connections" in answer.json()["message"]


async def test_observer_refuses_expiry_and_hand_overs_with_404() -> None:
    async with run_admin() as coordinator:
        follower = LogFollower(KafkaInMemory().new_client("topic"), "topic")
        app = create_app(coordinator.view._replace(runtime=follower), coordinator.access)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        answer = await client.get("/api/v1/expiry")
        assert (answer.status_code, answer.json()["message"]) == (
            404,
            "an observer expires no state; ask a coordinator",
        )
        answer = await client.post("/api/v1/hand-overs", json={"shard": 0, "execute": True})
        assert (answer.status_code, answer.json()["message"]) == (
            404,
            "an observer owns no shards; ask a coordinator",
        )


async def test_requested_expiry_round_requires_scope_write_and_is_audited(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    setup = AbandonedStateCluster()
    async with run_admin(setup.records, None, setup.make_expiry, **write_settings) as coordinator:
        assert (await coordinator.post("/api/v1/expiry", {"execute": True})).status_code == 401
        await request_expiry_list(coordinator)
        setup.clock.ms += RETENTION_MS
        dry = await post_write_request(coordinator, "expiry", {})
        assert (dry["executed"], len(dry["items"])) == (False, 0), "the last check is used"
        done = await post_write_request(coordinator, "expiry", {"execute": True})
        assert done["executed"]
        assert {(each["topic"], each["share_partitions"], each["refused"]) for each in done["items"]} == {
            ("t", 2, ""),
            ("u", 1, ""),
        }
        assert done["outcome"] == "removed the state of 3 share-partitions"
        assert audit_lines(caplog) == [("INFO", "token alice", "expiry", "{}", done["outcome"])]
        again = await post_write_request(coordinator, "expiry", {})
        assert again["outcome"] == "would remove the state of 0 share-partitions"


async def request_expiry_list(coordinator: AdminTestClient) -> None:
    answer = await coordinator.get("/api/v1/expiry", bearer_header(WRITING))
    assert answer.status_code == 200


async def test_requested_expiry_round_is_refused_if_expiry_is_disabled(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    setup = AbandonedStateCluster(ExpiryRules(None, 60))
    async with run_admin(setup.records, None, setup.make_expiry, **write_settings) as coordinator:
        answer = await post_write_request(coordinator, "expiry", {"execute": True}, status=409)
        assert "retention.minutes is -1" in answer["message"]
        setup.cluster.stop_brokers()
    async with run_admin(setup.records, None, AbandonedStateCluster().make_expiry) as coordinator:
        answer = (await coordinator.post("/api/v1/expiry", {"execute": True})).json()
        assert answer["status"] == 403
    assert audit_lines(caplog) == []


async def test_failed_expiry_round_is_audited(
    write_settings: dict[str, str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    setup = AbandonedStateCluster()
    setup.cluster.stop_brokers()
    async with run_admin(setup.records, None, setup.make_expiry, **write_settings) as coordinator:
        await post_write_request(coordinator, "expiry", {"execute": True}, status=503)
    ((level, *_, outcome),) = audit_lines(caplog)
    assert level == "WARNING"
    assert "refuses connections" in outcome


async def test_expiry_round_continues_after_its_request_timed_out(
    write_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_expiry, "_TIMEOUT_S", 0.01)
    setup, kafka_answers = AbandonedStateCluster(), asyncio.Event()

    async def wait_for_kafka() -> None:
        await kafka_answers.wait()

    async with run_admin(setup.records, None, setup.make_expiry, **write_settings) as coordinator:
        await request_expiry_list(coordinator)
        setup.clock.ms += RETENTION_MS
        setup.cluster.before["resolve"] = wait_for_kafka
        answer = await post_write_request(coordinator, "expiry", {"execute": True}, status=503)
        assert "it continues" in answer["message"]
        # During the round, a dry run uses the last check of the cluster.
        assert (await post_write_request(coordinator, "expiry", {}))["executed"] is False
        kafka_answers.set()
        async with asyncio.timeout(60):
            while {  # noqa: ASYNC110
                key
                for key in [each async for each, _ in coordinator.runtime.share_partitions()]
                if key.group_id == "g"
            }:
                await asyncio.sleep(0)
