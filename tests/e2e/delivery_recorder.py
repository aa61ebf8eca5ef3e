"""Record the deliveries and acknowledgements of a share group, and detect violations of Kafka's guarantees.

If commitSync reports success for a partition, an accepted or rejected record must not be delivered again. A
released record must be delivered again with a higher delivery count. Without a reported success, the commit
is in doubt: the coordinator may have applied it or not.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.kafka import (
    ConditionTimeout,
    CoordinatorProcess,
    Delivery,
    KafkaClient,
    ShareConsumer,
    wait_until,
)
from tests.kafka.built_in import STATE_TOPIC

# Settings of a consumer with many small commits, so that a kill is likely to interrupt a commit.
SMALL_COMMITS = {"max.poll.records": "10"}

# Settings of a group whose records are delivered once unless they are released. The record lock is longer
# than any commit on a busy machine.
LONG_RECORD_LOCK = {"share.record.lock.duration.ms": "60000"}

# (partition, offset)
Record = tuple[int, int]
Rule = Callable[[Delivery], str]


def accept_all(delivery: Delivery) -> str:
    return "ACCEPT"


def mixed_acknowledgements(delivery: Delivery) -> str:
    """Reject one record in ten, release one in ten at its first delivery, and accept the others."""
    if delivery.offset % 10 == 7:
        return "REJECT"
    return "RELEASE" if delivery.offset % 10 == 5 and delivery.delivery_count == 1 else "ACCEPT"


def accept_after_up_to_3_deliveries(delivery: Delivery) -> str:
    """Accept one third of the records at each of the first, second and third delivery."""
    return "ACCEPT" if delivery.delivery_count == 1 + delivery.offset % 3 else "RELEASE"


class DeliveryRecorder:
    """A recorder of the deliveries and acknowledgements of one topic's records in one share group.

    Only one thread may consume; any thread may read.
    """

    def __init__(self) -> None:
        self.delivery_counts: dict[Record, list[int]] = defaultdict(list)
        self.settled: dict[Record, str] = {}
        # Records of failed commits (accepted or rejected) without a later successful acknowledgement.
        self.in_doubt: dict[Record, str] = {}
        self.violations: list[str] = []
        self.failed_commits = 0
        # The phase of the test, with which each violation is reported.
        self.phase = ""
        self._released_at: dict[Record, int] = {}
        self._settled_when: dict[Record, str] = {}

    def consume(self, consumer: ShareConsumer, rule: Rule, *, timeout_ms: int = 500) -> list[Delivery]:
        """Poll once, acknowledge the records by `rule`, and record the deliveries and acknowledgements."""
        deliveries = consumer.poll(timeout_ms)
        for delivery in deliveries:
            self._record_delivery(delivery)
        if deliveries:
            types = [rule(delivery) for delivery in deliveries]
            outcome = consumer.acknowledge(types)
            self.failed_commits += sum(failure is not None for failure in outcome.values())
            for delivery, said in zip(deliveries, types, strict=True):
                partition = (delivery.topic, delivery.partition)
                if partition in outcome and outcome[partition] is None:
                    self._record_completion(delivery, said)
                elif said != "RELEASE":
                    self.in_doubt[delivery.partition, delivery.offset] = said
        return deliveries

    def consume_until_acknowledged(
        self, consumer: ShareConsumer, rule: Rule, count: int, *, seconds: float
    ) -> None:
        """Consume until `count` records are acknowledged, and stop at once."""
        deadline = time.monotonic() + seconds
        while len(self.settled) < count:
            if time.monotonic() > deadline:
                raise ConditionTimeout(
                    f"{len(self.settled)} of {count} records are acknowledged after {seconds} s"
                )
            self.consume(consumer, rule)

    def wait_until_acknowledged(self, count: int, *, seconds: float) -> None:
        """Wait until `count` records are acknowledged by a concurrent consumer."""
        try:
            # Short pauses, because the caller interrupts the consumer at this moment.
            wait_until(
                lambda: len(self.settled) >= count,
                seconds=seconds,
                what=f"{count} are settled",
                pause_max_s=0.02,
            )
        except ConditionTimeout as error:
            raise ConditionTimeout(f"{error}, but {len(self.settled)}") from None

    def _record_delivery(self, delivery: Delivery) -> None:
        record = (delivery.partition, delivery.offset)
        counts = self.delivery_counts[record]
        counts.append(delivery.delivery_count)
        if record in self.settled:
            acknowledged = f"{self.settled[record]} {self._settled_when[record]}"
            self._record_violation(f"acknowledgement {acknowledged} was lost: {delivery}")
        if delivery.delivery_count <= self._released_at.get(record, 0):
            self._record_violation(f"the delivery count did not increase, {counts}: {delivery}")
        if delivery.value != str(delivery.offset):
            self._record_violation(f"the value is not the produced value: {delivery}")

    def _record_violation(self, violation: str) -> None:
        self.violations.append(f"{self._format_current_time()}: {violation}")

    def _format_current_time(self) -> str:
        return f"at {time.strftime('%H:%M:%S')} {self.phase}".rstrip()

    def _record_completion(self, delivery: Delivery, said: str) -> None:
        record = (delivery.partition, delivery.offset)
        if said == "RELEASE":
            self._released_at[record] = delivery.delivery_count
        else:
            self.settled[record] = said
            self._settled_when[record] = self._format_current_time()
            self.in_doubt.pop(record, None)


@contextmanager
def consume_in_thread(recorder: DeliveryRecorder, consumer: ShareConsumer, rule: Rule) -> Iterator[None]:
    """Consume by `rule` in a thread while the block runs. Exceptions propagate at the end of the block."""
    over = threading.Event()

    def consume_until_stopped() -> None:
        while not over.is_set():
            recorder.consume(consumer, rule)

    with ThreadPoolExecutor(1, "consume") as pool:
        done = pool.submit(consume_until_stopped)
        try:
            yield
        finally:
            over.set()
        done.result()


def consume_every_second(client: KafkaClient, recorder: DeliveryRecorder, topic: str, count: int) -> int:
    """Append 10 records after the first `count`, and wait until a concurrent consumer acknowledges them.

    Take at least a second, because a test that waits for time to pass need not use a whole processor.
    """
    began_s = time.monotonic()
    produce_records(client, topic, 1, first=count, count=10)
    recorder.wait_until_acknowledged(count + 10, seconds=120)
    wait_until(lambda: time.monotonic() > began_s + 1, seconds=2, what="a second is over")
    return count + 10


def new_topic(
    client: KafkaClient, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> tuple[str, str, str]:
    """Create a topic; return its name, a group that reads it from its start, and the topic's id.

    `settings` are additional settings of the group.
    """
    topic_id = client.create_topic(name, partitions=partitions)
    group = f"{name}-readers"
    client.set_group_config(group, {"share.auto.offset.reset": "earliest", **(settings or {})})
    return name, group, topic_id


def produce_records(client: KafkaClient, topic: str, partitions: int, *, first: int, count: int) -> None:
    """Append `count` records to each partition; the value of each is its offset, which begins at `first`."""
    for partition in range(partitions):
        offsets = client.produce(topic, count, first=first, partition=partition)
        assert offsets == list(range(first, first + count))


def consume_rest(client: KafkaClient, group: str, topic: str, partitions: int, *, end: int) -> list[Record]:
    """Return the records that a new consumer of `group` receives before offset `end` of each partition.

    The function appends a last record at `end` of each partition, and consumes until these records arrive.
    Records arrive in order, so all earlier records have arrived then. The group must be empty, so that the
    broker reads the state of the group again.
    """
    produce_records(client, topic, partitions, first=end, count=1)
    lasts = {(partition, end) for partition in range(partitions)}
    recorder = DeliveryRecorder()
    consumer = client.share_consumer(group, topic)
    wait_until(
        lambda: recorder.consume(consumer, accept_all) and lasts <= recorder.delivery_counts.keys(),
        seconds=120,
        what=f"{group} gets the last record of each partition",
    )
    consumer.close()
    return sorted(recorder.delivery_counts.keys() - lasts)


def consume_with_group(
    client: KafkaClient, coordinator: CoordinatorProcess, name: str, *, partitions: int = 1
) -> None:
    """Consume records with a share group, and check that none is lost or delivered twice.

    The coordinator must have the state, and the cluster no state topic of its own.
    """
    topic, group, topic_id = new_topic(client, name, partitions=partitions)
    produce_records(client, topic, partitions, first=0, count=50)
    recorder = DeliveryRecorder()
    consumer = client.share_consumer(group, topic, SMALL_COMMITS)
    recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, partitions * 50, seconds=120)
    consumer.close()
    assert consume_rest(client, group, topic, partitions, end=50) == []
    assert recorder.violations == []
    state = coordinator.share_partition(group, topic_id, 0)
    assert state is not None
    assert state["start_offset"] > 0
    assert STATE_TOPIC not in client.topics()
