"""The forecast of the state that expiry would delete."""

import pytest

from coordinator.operate.expiry import ExpiryRules, ExpiryStatus
from tests.kafka_in_memory.share_groups import ShareGroup, topic_id
from tests.manual_clock import ManualClock
from tests.unit.expiry.replicas import (
    GRACE,
    KNOWN,
    RETENTION,
    make_cluster,
    make_state,
    run_replica,
)
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_forecast_is_available_while_expiry_is_disabled() -> None:
    cluster, clock = make_cluster("t", g=ShareGroup("t")), ManualClock()
    records = [KNOWN, make_state("g", "t"), make_state("g", "gone")]
    async with run_replica(cluster, clock, records, rules=ExpiryRules(None, GRACE)) as replica:
        replica.expiry.start()
        await replica.expiry.forecast()
        clock.advance(10 * RETENTION)
        done = await replica.expiry.run_round()
        assert done.removals == []
        assert len(await replica.list_topics()) == 3
        foreseen = {each.topic_id: each for each in (await replica.expiry.forecast()).items}
        assert foreseen[topic_id("t")].expires_ms is None
        (item,) = (each for each in (await replica.expiry.forecast(5)).items if each.topic == "t")
        assert item.status is ExpiryStatus.DUE
        assert not (await replica.expiry.forecast()).enabled
