"""Test `offsets reset` and `offsets delete` on real share groups, by comparison with Kafka's own tool."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from coordinator.cluster.kafka.share_groups import ShareGroups
from tests.e2e.ledger import FOR_LONG, Ledger, accept_all, mixed_acknowledgements, new_topic, produce_records
from tests.kafka import BuiltInRig, StandaloneRig, wait_until
from tests.kafka.fixtures import BUILT_IN, STANDALONE
from tests.kafka.ports import free_ports
from tests.kafka.processes import PROGRAM
from tests.kafka.share_group_tool import DescribedOffset

# Brokers before 4.3 cannot alter offsets of share groups.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("rig", [STANDALONE[-1], BUILT_IN], indirect=True),
]

RECORDS = 20
FIGURES = ("start_offset", "new_offset", "in_flight_records", "redelivered", "skipped")


def run_offsets(rig: BuiltInRig, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of `run_offsets` as a user runs it."""
    port = rig.coordinator.http_port if isinstance(rig, StandaloneRig) else free_ports(1)[0]
    return subprocess.run(
        [
            *(PROGRAM, "offsets", *arguments),
            *("--bootstrap-servers", rig.broker.bootstrap),
            *("--url", f"http://127.0.0.1:{port}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def plan_offsets(rig: BuiltInRig, *arguments: str) -> dict[str, Any]:
    """Run a command that must succeed for one partition; return its JSON row for the partition."""
    done = run_offsets(rig, *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["executed"], "dry run: nothing was changed" in done.stderr) in ((True, False), (False, True))
    return {name: row.get(name) for name in FIGURES}


def expected_row(rig: BuiltInRig, *known: int | None) -> dict[str, Any]:
    """Return the expected JSON row. With Kafka's own coordinator, the in-flight records are unknown."""
    start, new, *effect = known
    shown = effect if isinstance(rig, StandaloneRig) else [None] * 3
    return dict(zip(FIGURES, (start, new, *shown), strict=True))


def consume_and_leave(rig: BuiltInRig, name: str) -> tuple[str, str, str]:
    """Acknowledge all records of a group and leave; return the topic, the group and the topic's id."""
    topic, group, topic_id = new_topic(rig.client, name, settings=FOR_LONG)
    produce_records(rig.client, topic, 1, first=0, count=RECORDS)
    consumer = rig.client.share_consumer(group, topic)
    # Some records are rejected, and some are delivered twice.
    Ledger().consume_until_acknowledged(consumer, mixed_acknowledgements, RECORDS, seconds=120)
    consumer.close()
    wait_until(lambda: is_empty(rig, group), seconds=120, what="an empty group")
    return topic, group, topic_id


def is_empty(rig: BuiltInRig, group: str) -> bool:
    """Return whether Kafka reports a group without members. If a leave was lost, that needs a session
    timeout.
    """

    async def query_group() -> bool:
        groups = ShareGroups(rig.broker.bootstrap)
        try:
            return (await groups.describe_groups([group]))[group].is_empty
        finally:
            await groups.close()

    return asyncio.run(query_group())


def describe_with_kafkas_tool(rig: BuiltInRig, group: str) -> list[DescribedOffset]:
    return rig.share_groups.describe_offsets(group)


def test_reset_offsets_match_kafkas_tool(rig: BuiltInRig) -> None:
    topic, group, _ = consume_and_leave(rig, "reset-by-us")
    (before,) = describe_with_kafkas_tool(rig, group)
    where = ("reset", "--group", group, "--topic", topic)
    plan = plan_offsets(rig, *where, "--to-earliest")
    assert (plan["start_offset"], plan["new_offset"]) == (before.start_offset, 0)
    if isinstance(rig, StandaloneRig):
        assert (plan["redelivered"], plan["skipped"]) == (RECORDS, 0)
    assert describe_with_kafkas_tool(rig, group) == [before]

    assert plan_offsets(rig, *where, "--to-earliest", "--execute") == plan
    (after,) = describe_with_kafkas_tool(rig, group)
    assert (after.start_offset, after.lag) == (0, RECORDS)
    # No state of the earlier deliveries is left.
    assert plan_offsets(rig, *where, "--to-offset", "7", "--execute") == expected_row(rig, 0, 7, 0, 0, 7)
    assert describe_with_kafkas_tool(rig, group)[0].start_offset == 7
    assert plan_offsets(rig, *where[:-1], f"{topic}:0", "--to-latest") == expected_row(
        rig, 7, RECORDS, 0, 0, 13
    )
    long_ago = plan_offsets(rig, *where, "--to-datetime", "2001-01-01T00:00:00.000")
    assert long_ago == expected_row(rig, 7, 0, 0, 7, 0)
    to_come = plan_offsets(rig, *where, "--to-datetime", "2101-01-01T00:00:00.000")
    assert to_come == expected_row(rig, 7, RECORDS, 0, 0, 13)

    ledger = Ledger()
    consumer = rig.client.share_consumer(group, topic)
    ledger.consume_until_acknowledged(consumer, accept_all, RECORDS - 7, seconds=120)
    consumer.close()
    assert ledger.delivery_counts == {(0, offset): [1] for offset in range(7, RECORDS)}


def test_reset_to_missing_offset_uses_nearest(rig: BuiltInRig) -> None:
    topic, group, _ = consume_and_leave(rig, "reset-beyond")
    done = run_offsets(rig, "reset", "--group", group, "--topic", topic, "--to-offset", "1000")
    assert done.returncode == 0
    assert f"{topic}-0 has no offset 1000; {RECORDS} is the nearest" in done.stderr
    head, row = (line.split() for line in done.stdout.splitlines())
    assert head == [
        *("GROUP", "TOPIC", "PARTITION", "START-OFFSET"),
        *("NEW-OFFSET", "IN-FLIGHT", "REDELIVERED", "SKIPPED"),
    ]
    assert row[:3] == [group, topic, "0"]
    assert row[4] == str(RECORDS)


def test_deleted_offsets_match_kafkas_tool(rig: BuiltInRig) -> None:
    topic, group, topic_id = consume_and_leave(rig, "deleted-by-us")
    before = describe_with_kafkas_tool(rig, group)
    where = ("delete", "--group", group, "--topic", topic)
    plan_offsets(rig, *where)
    assert describe_with_kafkas_tool(rig, group) == before
    plan_offsets(rig, "delete", "--group", group, "--all-topics", "--execute")
    assert describe_with_kafkas_tool(rig, group) == []
    if isinstance(rig, StandaloneRig):
        assert rig.coordinator.share_partition(group, topic_id, 0) is None
    again = run_offsets(rig, *where)
    assert (again.returncode, again.stdout) == (1, "")
    assert f"group '{group}' has no state of topic {topic}" in again.stderr


def test_group_with_members_is_not_changed(rig: BuiltInRig) -> None:
    topic, group, _ = new_topic(rig.client, "busy")
    produce_records(rig.client, topic, 1, first=0, count=RECORDS)
    consumer = rig.client.share_consumer(group, topic)
    ledger = Ledger()
    ledger.consume_until_acknowledged(consumer, accept_all, RECORDS, seconds=120)
    for command in (("reset", "--to-earliest"), ("delete",)):
        done = run_offsets(rig, *command, "--group", group, "--topic", topic, "--execute")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"group '{group}' is Stable with 1 members" in done.stderr
        assert "Stop them, wait until" in done.stderr
        assert "Traceback" not in done.stderr
    consumer.close()


def test_unknown_group_topic_or_partition_is_refused(rig: BuiltInRig) -> None:
    topic, _, _ = new_topic(rig.client, "unknown-group")
    done = run_offsets(rig, "delete", "--group", "nobody", "--topic", topic, "--execute")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Kafka has no share group 'nobody'" in done.stderr
    for arguments, said in (
        (("--topic", "no-such-topic", "--to-earliest"), "topic no-such-topic does not exist"),
        (("--topic", f"{topic}:9", "--to-earliest"), f"topic {topic} has no partition 9"),
    ):
        done = run_offsets(rig, "reset", "--group", "nobody", *arguments)
        assert done.returncode == 1
        assert said in done.stderr


def test_reset_sets_start_offset_of_group_without_state(rig: BuiltInRig) -> None:
    topic, group, _ = new_topic(rig.client, "to-come")
    produce_records(rig.client, topic, 1, first=0, count=RECORDS)
    where = ("reset", "--group", group, "--topic", topic, "--to-offset", "5")
    assert plan_offsets(rig, *where, "--execute") == expected_row(rig, None, 5, 0, 0, 0)
    assert describe_with_kafkas_tool(rig, group)[0].start_offset == 5
