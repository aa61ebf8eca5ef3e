"""Test the expiry of abandoned state of a real broker's share groups, with a clock that the test advances."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.operate.expiry import ExpiryStatus
from tests.e2e.expiry_rig import (
    CHECK_INTERVAL_MINUTES,
    GRACE_MINUTES,
    RETENTION_MINUTES,
    ExpiringRig,
    ThreadedCoordinator,
    expiring_rig,
    run_before_call,
)
from tests.kafka import RELEASES, KafkaJars, fetch_jars

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EMPTY_LATER = ("group_empty", ExpiryStatus.LATER)


@pytest.fixture(scope="module")
def rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpiringRig]:
    with expiring_rig(newest_jars, tmp_path_factory.mktemp("expiring")) as rig:
        yield rig


@pytest.fixture
def coordinator(rig: ExpiringRig) -> ThreadedCoordinator:
    return rig.coordinator


def check_expiry_of_empty_group(rig: ExpiringRig) -> None:
    coordinator = rig.coordinator
    rig.client.create_topic("empty", partitions=2)
    before = coordinator.count_expired_share_partitions("group_empty")
    rig.consume_and_leave("leaving", "empty")
    coordinator.run_round()
    coordinator.advance_with_rounds(RETENTION_MINUTES - CHECK_INTERVAL_MINUTES)
    assert len(coordinator.list_share_partitions("leaving")) == 2
    assert coordinator.expiry_statuses("leaving") == {"empty": EMPTY_LATER}
    coordinator.advance_with_rounds(CHECK_INTERVAL_MINUTES)
    assert coordinator.list_share_partitions("leaving") == set()
    assert coordinator.count_expired_share_partitions("group_empty") == before + 2
    assert "leaving" not in rig.tool.list(), "Kafka deletes the group when all its state is deleted"


def test_group_that_is_empty_for_retention_time_expires(rig: ExpiringRig) -> None:
    check_expiry_of_empty_group(rig)
    # Kafka has deleted the group, so a new group starts according to share.auto.offset.reset.
    rig.consume_and_leave("leaving", "empty")
    assert len(rig.coordinator.list_share_partitions("leaving")) == 2


def test_state_expires_with_oldest_broker_release(tmp_path: Path) -> None:
    with expiring_rig(fetch_jars(RELEASES[0]), tmp_path) as rig:
        check_expiry_of_empty_group(rig)


def test_unsubscribed_topic_expires_by_its_own_retention_time(
    rig: ExpiringRig, coordinator: ThreadedCoordinator
) -> None:
    for topic in ("kept", "left"):
        rig.client.create_topic(topic)
    member = rig.join("half", "kept")
    rig.consume_and_leave("half", "left")
    coordinator.run_round()
    assert coordinator.expiry_statuses("half") == {"left": ("topic_unsubscribed", ExpiryStatus.LATER)}
    coordinator.advance_with_rounds(RETENTION_MINUTES)
    # Kafka does not delete offsets of a group with members, regardless of their subscriptions.
    assert coordinator.expiry_statuses("half") == {
        "left": ("topic_unsubscribed", ExpiryStatus.WAITS_FOR_EMPTY_GROUP)
    }
    assert len(coordinator.list_share_partitions("half")) == 2
    member.close()
    coordinator.run_round()
    assert coordinator.expiry_statuses("half") == {"kept": EMPTY_LATER}
    assert len(coordinator.list_share_partitions("half")) == 1
    assert "half" in rig.tool.list()
    coordinator.advance_with_rounds(RETENTION_MINUTES)
    assert coordinator.list_share_partitions("half") == set()


def test_short_membership_restarts_retention_time(rig: ExpiringRig, coordinator: ThreadedCoordinator) -> None:
    rig.client.create_topic("visited")
    rig.consume_and_leave("visiting", "visited")
    coordinator.run_round()
    coordinator.advance_with_rounds(RETENTION_MINUTES - CHECK_INTERVAL_MINUTES)
    # The group is empty at both checks, but its group epoch has changed.
    rig.consume_and_leave("visiting", "visited")
    coordinator.advance_with_rounds(RETENTION_MINUTES)
    assert len(coordinator.list_share_partitions("visiting")) == 1
    coordinator.advance_with_rounds(CHECK_INTERVAL_MINUTES)
    assert coordinator.list_share_partitions("visiting") == set()


def test_join_between_check_and_deletion_keeps_state(
    rig: ExpiringRig, coordinator: ThreadedCoordinator
) -> None:
    rig.client.create_topic("raced")
    rig.consume_and_leave("racing", "raced")
    coordinator.run_round()
    coordinator.clock.advance(RETENTION_MINUTES)
    members = []
    restore = run_before_call(
        coordinator.expiry._remover._groups,
        "delete_offsets",
        lambda: members.append(rig.join("racing", "raced")),
    )
    try:
        (removal,) = coordinator.run_round().removals
    finally:
        restore()
    assert removal.refused
    assert not removal.failed
    assert len(coordinator.list_share_partitions("racing")) == 1
    members[0].close()


def test_state_of_deleted_topic_expires_after_grace_time(
    rig: ExpiringRig, coordinator: ThreadedCoordinator
) -> None:
    for topic in ("there", "deleted"):
        rig.client.create_topic(topic, partitions=3)
    member = rig.join("surviving", "there")
    rig.consume_and_leave("surviving", "deleted")
    assert len(coordinator.list_share_partitions("surviving")) == 6
    coordinator.run_round()
    rig.delete_topic("deleted")
    coordinator.run_round()
    coordinator.advance_with_rounds(GRACE_MINUTES - CHECK_INTERVAL_MINUTES)
    assert len(coordinator.list_share_partitions("surviving")) == 6
    assert coordinator.expiry_statuses("surviving") == {"deleted": ("topic_deleted", ExpiryStatus.LATER)}
    # The group has members, but they cannot use the state of a deleted topic.
    coordinator.advance_with_rounds(CHECK_INTERVAL_MINUTES)
    assert len(coordinator.list_share_partitions("surviving")) == 3
    assert coordinator.count_expired_share_partitions("topic_deleted") >= 3
    member.close()
