"""The forecast of the state that expiry would delete."""

from coordinator.operate.expiry import ExpiryRules, ExpiryStatus
from tests.unit.expiry.fake_cluster import (
    GRACE,
    KNOWN,
    RETENTION,
    FakeGroup,
    ManualClock,
    make_cluster,
    make_state,
    run_replica,
    topic_id,
)


async def test_forecast_is_available_while_expiry_is_disabled() -> None:
    cluster, clock = make_cluster("t", g=FakeGroup("t")), ManualClock()
    records = [KNOWN, make_state("g", "t"), make_state("g", "gone")]
    async with run_replica(cluster, clock, records, rules=ExpiryRules(None, GRACE)) as one:
        one.expiry.start()
        await one.expiry.forecast()
        clock.advance(10 * RETENTION)
        done = await one.expiry.run_round()
        assert done.removals == []
        assert len(await one.topics()) == 3
        foreseen = {each.topic_id: each for each in (await one.expiry.forecast()).items}
        assert foreseen[topic_id("t")].expires_ms is None
        (item,) = (each for each in (await one.expiry.forecast(5)).items if each.topic == "t")
        assert item.status is ExpiryStatus.DUE
        assert not (await one.expiry.forecast()).enabled
