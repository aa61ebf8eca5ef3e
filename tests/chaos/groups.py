"""Run share groups: a producer, and consumers that accept, release and reject, each in its own thread."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic

from tests.e2e.ledger import (
    FEW_AT_A_TIME,
    Ledger,
    Rule,
    accept_after_up_to_3_deliveries,
    consume_rest,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import KafkaClient, wait_until

PARTITIONS = 6
RULES: tuple[Rule, ...] = (mixed_acknowledgements, accept_after_up_to_3_deliveries)
# The producer waits while a group has a greater lag than this number of records.
BEHIND_MAX = 150
RECORDS_AT_A_TIME = 5


class Group:
    """A share group with one consumer, and the ledger of its deliveries and acknowledgements."""

    def __init__(self, client: KafkaClient, name: str, topic: str, rule: Rule) -> None:
        client.set_group_config(name, {"share.auto.offset.reset": "earliest"})
        self.name = name
        self.ledger = Ledger()
        self._consumer = client.share_consumer(name, topic, FEW_AT_A_TIME)
        self._rule = rule
        self._last_success_s = monotonic()
        self._longest_s = 0.0

    def restart_measurement(self) -> None:
        """Restart the measurement of the time without a successful commit."""
        self._last_success_s, self._longest_s = monotonic(), 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest time since `restart_measurement` without an accepted or rejected record."""
        return max(self._longest_s, monotonic() - self._last_success_s)

    @property
    def acknowledged_count(self) -> int:
        """The number of records that are acknowledged, including those in doubt."""
        return len(self.ledger.settled) + len(self.ledger.in_doubt)

    def consume(self) -> None:
        """Poll and acknowledge once."""
        before = len(self.ledger.settled)
        self.ledger.consume(self._consumer, self._rule)
        if len(self.ledger.settled) > before:
            self._longest_s = self.longest_gap_s
            self._last_success_s = monotonic()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


class Groups:
    """A topic, its producer, and a group for each rule. Consumption can be paused."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self.topic, _, self.topic_id = new_topic(client, "orders", partitions=PARTITIONS)
        self.groups = [
            Group(client, f"{self.topic}-{number}", self.topic, rule) for number, rule in enumerate(RULES)
        ]
        self._produced = 0
        self._over = threading.Event()
        self._producing = threading.Event()
        # A lock that is held while records are appended and counted.
        self._appending = threading.Lock()
        self._awake = threading.Event()
        self._failed = threading.Event()

    @property
    def names(self) -> Sequence[str]:
        return [group.name for group in self.groups]

    @property
    def records(self) -> int:
        """The number of records for each group."""
        return self._produced * PARTITIONS

    @property
    def settled(self) -> int:
        """The number of acknowledged records, over all groups."""
        return sum(len(group.ledger.settled) for group in self.groups)

    @contextmanager
    def run_while_active(self) -> Iterator[None]:
        """Produce and consume while the block runs.

        Exceptions of the threads are raised at the end of the block.
        """
        self.resume_consumption()
        self._producing.set()
        with ThreadPoolExecutor(1 + len(self.groups), "share group") as pool:
            working = [
                pool.submit(self._produce_records),
                *(pool.submit(self._consume_group, one) for one in self.groups),
            ]
            try:
                yield
            finally:
                self._over.set()
                self.resume_consumption()
            for one in working:
                one.result()

    def pause_consumption(self) -> None:
        """Pause acknowledgements until `resume_consumption`.

        The broker releases acquired records after their lock timeout.
        """
        self._awake.clear()

    def resume_consumption(self) -> None:
        """Continue consumption."""
        self._awake.set()

    def finish(self, *, seconds: float) -> None:
        """Stop the producer, and wait until every record is acknowledged or in doubt."""
        self._producing.clear()
        with self._appending:
            pass  # Wait until the append in progress is counted.
        wait_until(
            lambda: (
                self._failed.is_set() or all(one.acknowledged_count >= self.records for one in self.groups)
            ),
            seconds=seconds,
            what=f"all {self.records} records are acknowledged or in doubt",
        )

    def check(self) -> None:
        """Check that no guarantee was violated and no acknowledged record is delivered again.

        Call this method after the block of `run_while_active`.
        """
        for number, group in enumerate(self.groups):
            group.close()
            left = consume_rest(self._client, group.name, self.topic, PARTITIONS, end=self._produced + number)
            # Ignore the records that `consume_rest` appended for an earlier group.
            left = [record for record in left if record[1] < self._produced]
            assert set(left) <= group.ledger.in_doubt.keys()
            assert group.ledger.broken_promises == []

    def _produce_records(self) -> None:
        with self._record_failure():
            while not self._over.is_set():
                self._producing.wait(0.2)
                behind = self.records - min(group.acknowledged_count for group in self.groups)
                with self._appending:
                    if self._producing.is_set() and behind < BEHIND_MAX:
                        first = self._produced
                        produce_records(
                            self._client, self.topic, PARTITIONS, first=first, count=RECORDS_AT_A_TIME
                        )
                        self._produced += RECORDS_AT_A_TIME
                self._over.wait(0.2)

    def _consume_group(self, group: Group) -> None:
        with self._record_failure():
            while not self._over.is_set():
                self._awake.wait()
                group.consume()

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed.set()
            raise
