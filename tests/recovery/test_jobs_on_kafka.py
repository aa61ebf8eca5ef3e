"""Compare the recovery jobs with Kafka's own coordinator after a share consumer has run.

The same tests for this project's coordinator are in test_jobs_on_coordinators.py.
"""

import asyncio
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest

from coordinator.client import ClientSecurity, RetryPolicy, ShareCoordinatorClient
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.explain import explain
from coordinator.recovery.external_checks import ClusterCheck, LiveCheck, topic_id_of
from coordinator.recovery.live_comparison import diff
from coordinator.recovery.live_coordinator import read_states
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.sources.segments import SegmentSource
from coordinator.recovery.sources.topic import TopicSource
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey, parse_topic_id
from tests.kafka import BuiltInRig, Delivery, ShareConsumer, wait_until
from tests.recovery.logs_on_disk import TOPIC
from tests.unit.cli.command_line import CommandLine

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LOCAL = LocalEngine(1)
GROUP, TOPIC_NAME = "recovery-workers", "recovery-orders"
# The acknowledgement of each record, by its offset modulo 4. A released record is delivered again.
OUTCOMES = ("RELEASE", "ACCEPT", "REJECT", "ACCEPT")
# The record lock is long, so that no record is delivered again after a slow acknowledgement.
SETTINGS = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "60000"}


class ConsumedTopic(NamedTuple):
    """A broker whose share group has consumed some records."""

    rig: BuiltInRig
    key: SharePartitionKey
    # The delivery count of the record that stays in flight.
    deliveries: int

    @property
    def bootstrap(self) -> str:
        return self.rig.broker.bootstrap

    @property
    def source(self) -> TopicSource:
        return TopicSource(TOPIC, self.bootstrap)

    @property
    def disk(self) -> Path:
        return self.rig.broker.directory / "data"


@pytest.fixture(scope="module")
def consumed_topic(built_in: BuiltInRig) -> ConsumedTopic:
    topic_id = built_in.client.create_topic(TOPIC_NAME)
    built_in.client.set_group_config(GROUP, SETTINGS)
    built_in.client.produce(TOPIC_NAME, 12)
    consumer = built_in.client.share_consumer(GROUP, TOPIC_NAME)

    def outcome_of_record(delivery: Delivery) -> str:
        return "ACCEPT" if delivery.delivery_count > 1 else OUTCOMES[delivery.offset % len(OUTCOMES)]

    consume_records(consumer, range(12), outcome_of_record)
    # Leave one record without acknowledgement (in flight).
    built_in.client.produce(TOPIC_NAME, 4, first=12)
    committed = consume_records(
        consumer, range(13, 16), lambda delivery: "RELEASE" if delivery.offset == 12 else "ACCEPT"
    )
    # The delivery count of the record in flight depends on how often it is released before the other records
    # arrive.
    in_flight = max(each.delivery_count for each in committed if each.offset == 12)
    consumer.close()
    return ConsumedTopic(built_in, SharePartitionKey(GROUP, parse_topic_id(topic_id), 0), in_flight)


def consume_records(
    consumer: ShareConsumer, offsets: range, choose_type: Callable[[Delivery], str]
) -> list[Delivery]:
    """Poll until all records at these offsets are finished; return deliveries with a stored acknowledgement.

    If the broker cannot store an acknowledgement, it discards the acknowledgement and delivers the record
    again. So a record has its final outcome only if the commit of its acknowledgement has succeeded.
    """
    committed: list[Delivery] = []
    finished: set[int] = set()

    def is_finished() -> bool:
        deliveries = consumer.poll()
        types = list(map(choose_type, deliveries))
        results = consumer.acknowledge(types)
        if deliveries and set(results.values()) == {None}:
            committed.extend(deliveries)
            finished.update(
                each.offset for each, kind in zip(deliveries, types, strict=True) if kind != "RELEASE"
            )
        return finished.issuperset(offsets)

    wait_until(is_finished, seconds=120, what=f"the records {offsets} are consumed")
    return committed


def test_rebuilt_state_equals_answer_of_kafkas_coordinator(consumed_topic: ConsumedTopic) -> None:
    found = diff(LOCAL, consumed_topic.source, consumed_topic.bootstrap, groups=[GROUP])
    assert (found.compared, found.equal, found.different, found.unknown) == (1, 1, [], {})
    assert found.batches_unknown == 0
    (state,) = (
        row for row in rebuild(LOCAL, consumed_topic.source).states.to_pylist() if row["group_id"] == GROUP
    )
    assert state["start_offset"] == 12
    assert state["state_batches"][0]["first_offset"] == 12


def test_diff_does_not_write_to_the_state_topic(consumed_topic: ConsumedTopic) -> None:
    before = consumed_topic.source.plan(LogCut()).ends
    diff(LOCAL, consumed_topic.source, consumed_topic.bootstrap)
    assert consumed_topic.source.plan(LogCut()).ends == before


def test_diff_reports_no_difference_for_concurrent_writes(
    consumed_topic: ConsumedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes follow the read of the log, and the coordinator is read after these writes."""
    key = SharePartitionKey("recovery-busy", consumed_topic.key.topic_id, 0)

    async def write_offsets(begin: int, end: int) -> None:
        retry = RetryPolicy(attempts_max=8, first_s=0.2)
        async with ShareCoordinatorClient(consumed_topic.bootstrap, retry=retry) as client:
            if not begin:
                await client.initialize(key, 1, 0)
            for offset in range(begin, end):
                batch = StateBatch(offset, offset, 2, 1)
                await client.write(
                    *(key,),
                    state_epoch=1,
                    leader_epoch=0,
                    start_offset=0,
                    delivery_complete_count=offset + 1,
                    batches=[batch],
                )

    waiting = [(4, 9)]

    async def read_after_writes(live: Any, leader_epochs: Any) -> Any:
        """Write offsets, because the log has been read by now; then read from the coordinator."""
        while waiting and key in leader_epochs:
            await write_offsets(*waiting.pop())
        return await read_states(live, leader_epochs)

    asyncio.run(write_offsets(0, 4))
    monkeypatch.setattr("coordinator.recovery.live_comparison.read_states", read_after_writes)
    found = diff(LOCAL, consumed_topic.source, consumed_topic.bootstrap)
    assert (found.different, found.unknown, found.equal_later) == ([], {}, 1)


def test_audit_of_topic_finds_only_single_replica(consumed_topic: ConsumedTopic, tmp_path: Path) -> None:
    source = consumed_topic.source
    cluster = ClusterCheck(
        consumed_topic.bootstrap, security=ClientSecurity(), topic=TOPIC, state_partitions=50, limits=Limits()
    )
    external = [cluster, LiveCheck(source, consumed_topic.bootstrap)]
    found = audit(LOCAL, source, AuditOptions(external=external, to=tmp_path / "first"))
    rows = [row for row in found.findings.to_pylist() if row["group_id"] in (None, GROUP)]
    assert [(row["check"], row["severity"]) for row in rows] == [("P5", "warning")], rows
    assert "min.insync.replicas is 1" in rows[0]["evidence"]
    assert set(found.not_checked) == {"X3", "X4"}
    again = audit(LOCAL, source, AuditOptions(baseline=Baseline.read(tmp_path / "first")))
    assert "X3" not in set(again.findings.column("check").to_pylist())


def test_broker_disk_has_states_of_topic_and_audit_finds_loss_in_its_copy(
    consumed_topic: ConsumedTopic, tmp_path: Path
) -> None:
    # Other tests on the same broker cause more writes, so topic and disk are read up to the same offsets.
    cut = LogCut(consumed_topic.source.plan(LogCut()).ends)
    states = rebuild(LOCAL, consumed_topic.source, cut=cut).states
    copied = tmp_path / "copied"
    for folder in consumed_topic.disk.glob(f"{TOPIC}-*"):
        # Do not copy the indexes, which have 20 MB each.
        ignored = shutil.ignore_patterns("*index")
        shutil.copytree(folder, copied / folder.name, ignore=ignored)
    source = SegmentSource(str(copied))
    again = rebuild(LOCAL, source, cut=cut).states
    # The files may still contain pruned records, which affect these two columns.
    history = ["records", "leader_epoch_max"]
    assert again.drop_columns(history).equals(states.drop_columns(history))
    assert state_of_test_group(again) == state_of_test_group(states)
    state = state_of_test_group(states)
    whole = audit(LOCAL, source, AuditOptions(to=tmp_path / "whole"))
    assert checks_of_test_group(whole) == []
    # Remove the snapshot, as if the log was pruned too far, so that only updates remain.
    (segment,) = (copied / f"{TOPIC}-{state['state_partition']}").glob("*.log")
    updates = read_batches_after(segment, state["needed_from"])
    segment.unlink()
    (segment.parent / f"{state['needed_from'] + 1:020}.log").write_bytes(updates)
    found = audit(LOCAL, source, AuditOptions(baseline=Baseline.read(tmp_path / "whole")))
    # If no write follows for five minutes, Kafka writes a snapshot. In that case, no update follows the
    # snapshot.
    assert ("K1" if updates else "X3") in checks_of_test_group(found)
    assert found.exit_code == 2
    # Remove all records: only the baseline of the earlier audit contains the state.
    shutil.rmtree(segment.parent)
    gone = audit(LOCAL, source, AuditOptions(baseline=Baseline.read(tmp_path / "whole"), state_partitions=50))
    assert checks_of_test_group(gone) == ["X3"]


def state_of_test_group(states: pyarrow.Table) -> dict[str, Any]:
    """Return the state of the test's share-partition."""
    (state,) = (row for row in states.to_pylist() if row["group_id"] == GROUP)
    return state


def checks_of_test_group(found: object) -> list[str]:
    """Return the ids of the checks that have findings about the test's share-partition."""
    return [row["check"] for row in found.findings.to_pylist() if row["group_id"] == GROUP]  # type: ignore[attr-defined]


def read_batches_after(segment: Path, log_offset: int) -> bytes:
    """Return the record batches of a segment after a log offset; empty if there are none."""
    data = segment.read_bytes()
    at = 0
    while at < len(data):
        base_offset, length = struct.unpack_from(">qi", data, at)
        if base_offset > log_offset:
            break
        at += 12 + length
    return data[at:]


def test_explain_shows_history_of_record(consumed_topic: ConsumedTopic) -> None:
    found = explain(consumed_topic.source, consumed_topic.key, 4)
    descriptions = [event.what for event in found.events]
    assert any("released, to be delivered again (AVAILABLE) at delivery 1" in each for each in descriptions)
    assert descriptions[-1].startswith(("accepted (ACKNOWLEDGED) at delivery 2", "done: the start offset is"))
    assert found.events[-1].step.record.key == consumed_topic.key
    everything = explain(consumed_topic.source, consumed_topic.key)
    assert everything.events[0].what.startswith("snapshot 0 initialised: state epoch")
    assert everything.steps == len(everything.events)


def test_explain_accepts_name_of_user_topic(
    consumed_topic: ConsumedTopic, share_coordinator: CommandLine
) -> None:
    access = {
        "bootstrap_servers": consumed_topic.bootstrap,
        "security": ClientSecurity(),
        "request_timeout_s": 10.0,
    }
    assert topic_id_of(TOPIC_NAME, **access) == consumed_topic.key.topic_id  # type: ignore[arg-type]
    assert topic_id_of("no-such-topic", **access) is None  # type: ignore[arg-type]
    options = ("--from", f"kafka:{TOPIC}", "--bootstrap-servers", consumed_topic.bootstrap)
    result = share_coordinator("recovery", "explain", GROUP, TOPIC_NAME, "0", "12", *options)
    assert result.exit_code == 0, result.err
    now = (
        f"now: record 12: released, to be delivered again (AVAILABLE) at delivery {consumed_topic.deliveries}"
    )
    assert now in result.out
    result = share_coordinator("recovery", "explain", GROUP, "no-such-topic", "0", *options)
    assert result.exit_code == 2
    assert (
        f"TOPIC=no-such-topic cannot be used: it must be a topic of {consumed_topic.bootstrap}" in result.err
    )
    result = share_coordinator("recovery", "diff", "--group", GROUP, *options)
    assert (result.exit_code, result.out) == (
        0,
        "1 share-partitions: 1 equal, 0 equal at a later offset, 0 different, 0 not known\n",
    )
