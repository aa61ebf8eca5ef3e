"""Abandoned state of a real broker's share groups, and a clock that is moved: what expires, and when."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.client import ShareCoordinatorClient
from coordinator.errors import LogUnavailable
from coordinator.expiry import Status
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.e2e.expiry_rig import (
    GRACE_MINUTES,
    LOOK_MINUTES,
    RETENTION_MINUTES,
    Coordinator,
    ExpiringRig,
    before_call,
    expiring_rig,
)
from tests.kafka import RELEASES, KafkaJars, fetch_jars, free_ports, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EMPTY_LATER = ("group_empty", Status.LATER)


@pytest.fixture(scope="module")
def rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpiringRig]:
    with expiring_rig(newest_jars, tmp_path_factory.mktemp("expiring")) as rig:
        yield rig


@pytest.fixture
def coordinator(rig: ExpiringRig) -> Coordinator:
    return rig.coordinator


def expires(coordinator: Coordinator, group: str) -> None:
    """See what is due go, though a broker has not come back yet to who was started again.

    It deletes in a later round then.
    """
    wait_until(
        lambda: coordinator.states(group) == set() or not coordinator.round(), seconds=120, what="it expires"
    )


def test_a_group_that_has_been_empty_for_long_enough_expires(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    rig.client.create_topic("empty", partitions=2)
    before = coordinator.counted("group_empty")
    rig.visit("leaving", "empty")
    coordinator.round()
    coordinator.pass_time(RETENTION_MINUTES - LOOK_MINUTES)
    assert len(coordinator.states("leaving")) == 2
    assert coordinator.status("leaving") == {"empty": EMPTY_LATER}
    coordinator.pass_time(LOOK_MINUTES)
    assert coordinator.states("leaving") == set()
    assert coordinator.counted("group_empty") == before + 2
    assert "leaving" not in rig.tool.list(), "nothing is left of the group, so it goes too"
    # Kafka knows that it is gone: the group begins anew, by its share.auto.offset.reset.
    rig.visit("leaving", "empty")
    assert len(coordinator.states("leaving")) == 2


def test_the_oldest_broker_deletes_what_expires(tmp_path: Path) -> None:
    with expiring_rig(fetch_jars(RELEASES[0]), tmp_path) as rig:
        coordinator = rig.coordinator
        rig.client.create_topic("older", partitions=2)
        rig.visit("leaving", "older")
        coordinator.round()
        coordinator.pass_time(RETENTION_MINUTES - LOOK_MINUTES)
        assert len(coordinator.states("leaving")) == 2
        coordinator.pass_time(LOOK_MINUTES)
        assert coordinator.states("leaving") == set()
        assert "leaving" not in rig.tool.list()


def test_a_group_with_members_does_not_expire(rig: ExpiringRig, coordinator: Coordinator) -> None:
    rig.client.create_topic("busy")
    member = rig.join("staying", "busy")
    coordinator.round()
    coordinator.pass_time(3 * RETENTION_MINUTES)
    assert len(coordinator.states("staying")) == 1
    assert coordinator.status("staying") == {}
    member.close()
    coordinator.round()
    assert coordinator.status("staying") == {"busy": EMPTY_LATER}, "and counts from when it became empty"


def test_a_topic_that_a_group_does_not_subscribe_to_any_more_has_a_clock_of_its_own(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    for topic in ("kept", "left"):
        rig.client.create_topic(topic)
    member = rig.join("half", "kept")
    rig.visit("half", "left")
    coordinator.round()
    assert coordinator.status("half") == {"left": ("topic_unsubscribed", Status.LATER)}
    coordinator.pass_time(RETENTION_MINUTES)
    # Kafka deletes nothing of a group that has members, whatever they subscribe to.
    assert coordinator.status("half") == {"left": ("topic_unsubscribed", Status.WAITS_FOR_EMPTY_GROUP)}
    assert len(coordinator.states("half")) == 2
    member.close()
    coordinator.round()
    assert coordinator.status("half") == {"kept": EMPTY_LATER}
    assert len(coordinator.states("half")) == 1
    assert "half" in rig.tool.list()
    coordinator.pass_time(RETENTION_MINUTES)
    assert coordinator.states("half") == set()


def test_a_group_that_is_not_empty_for_a_moment_begins_anew(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    rig.client.create_topic("visited")
    rig.visit("visiting", "visited")
    coordinator.round()
    coordinator.pass_time(RETENTION_MINUTES - LOOK_MINUTES)
    # Between two looks: both see the group empty, and its group epoch tells.
    rig.visit("visiting", "visited")
    coordinator.pass_time(RETENTION_MINUTES)
    assert len(coordinator.states("visiting")) == 1
    coordinator.pass_time(LOOK_MINUTES)
    assert coordinator.states("visiting") == set()


def test_a_restart_makes_nothing_expire_early(rig: ExpiringRig, coordinator: Coordinator) -> None:
    rig.client.create_topic("restarted")
    rig.visit("quiet", "restarted")
    rig.visit("disturbed", "restarted")
    coordinator.round()
    coordinator.pass_time(RETENTION_MINUTES // 2)
    coordinator.stop()
    coordinator.clock.move(RETENTION_MINUTES // 2 - LOOK_MINUTES)
    coordinator.start()
    rig.visit("disturbed", "restarted")
    coordinator.round()
    # That nobody came meanwhile Kafka can tell, and that somebody did.
    coordinator.pass_time(LOOK_MINUTES)
    assert coordinator.states("quiet") == set()
    assert len(coordinator.states("disturbed")) == 1
    # Without the file it is not known since when a group has been empty.
    coordinator.restart(keeps_file=False)
    coordinator.round()
    coordinator.pass_time(RETENTION_MINUTES - LOOK_MINUTES)
    assert len(coordinator.states("disturbed")) == 1
    coordinator.pass_time(LOOK_MINUTES)
    expires(coordinator, "disturbed")


def test_who_joins_between_the_look_and_the_deletion_keeps_everything(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    rig.client.create_topic("raced")
    rig.visit("racing", "raced")
    coordinator.round()
    coordinator.clock.move(RETENTION_MINUTES)
    members = []
    restore = before_call(
        coordinator.expiry._remover._groups,
        "delete_offsets",
        lambda: members.append(rig.join("racing", "raced")),
    )
    try:
        (removal,) = coordinator.round().removals
    finally:
        restore()
    assert removal.refused
    assert not removal.failed
    assert len(coordinator.states("racing")) == 1
    members[0].close()


def test_state_of_a_topic_that_was_deleted_goes_after_the_grace_time(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    for topic in ("there", "deleted"):
        rig.client.create_topic(topic, partitions=3)
    member = rig.join("surviving", "there")
    rig.visit("surviving", "deleted")
    assert len(coordinator.states("surviving")) == 6
    coordinator.round()
    rig.delete_topic("deleted")
    coordinator.round()
    coordinator.pass_time(GRACE_MINUTES - LOOK_MINUTES)
    assert len(coordinator.states("surviving")) == 6
    assert coordinator.status("surviving") == {"deleted": ("topic_deleted", Status.LATER)}
    # Though the group has members: they cannot want what is not there.
    coordinator.pass_time(LOOK_MINUTES)
    assert len(coordinator.states("surviving")) == 3
    assert coordinator.counted("topic_deleted") >= 3
    member.close()


def test_state_of_a_group_that_kafka_does_not_have_goes_after_the_grace_time(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    topic_id = parse_topic_id(rig.client.create_topic("orphaned"))
    keys = {SharePartitionKey("left-behind", topic_id, partition) for partition in range(4)}

    async def leave_behind() -> None:
        async with ShareCoordinatorClient(f"127.0.0.1:{coordinator.port}") as client:
            for key in keys:
                await client.initialize(key, 1, 0)

    coordinator.run(leave_behind())
    coordinator.round()
    coordinator.pass_time(GRACE_MINUTES - LOOK_MINUTES)
    assert coordinator.states("left-behind") == keys
    coordinator.pass_time(LOOK_MINUTES)
    assert coordinator.states("left-behind") == set()
    assert coordinator.counted("group_deleted") >= 4


def test_nothing_expires_while_no_broker_can_be_asked(rig: ExpiringRig, coordinator: Coordinator) -> None:
    rig.client.create_topic("unasked")
    rig.visit("unheard", "unasked")
    coordinator.round()
    (nobody,) = free_ports(1)
    coordinator.stop()
    coordinator.start(bootstrap_servers=f"127.0.0.1:{nobody}")
    coordinator.clock.move(3 * RETENTION_MINUTES)
    with pytest.raises(LogUnavailable):
        coordinator.round()
    assert len(coordinator.states("unheard")) == 1
    coordinator.restart()
    # Kafka knows what happened meanwhile: nothing.
    expires(coordinator, "unheard")


def test_a_forecast_goes_by_the_retention_time_that_is_asked_for(
    rig: ExpiringRig, coordinator: Coordinator
) -> None:
    rig.client.create_topic("forecast")
    rig.visit("forecast", "forecast")
    coordinator.round()
    coordinator.clock.move(LOOK_MINUTES)
    for retention_minutes, status in ((LOOK_MINUTES, Status.DUE), (LOOK_MINUTES * 2, Status.LATER)):
        items = coordinator.forecast(retention_minutes).items
        (item,) = (each for each in items if each.group_id == "forecast")
        assert item.status is status
        assert item.expires_ms == item.since_ms + retention_minutes * 60_000
    assert len(coordinator.states("forecast")) == 1
