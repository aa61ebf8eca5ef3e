"""Test which histories with lost records `log_truncation` accepts, and which it refuses."""

from random import Random
from typing import Any

import pytest

from coordinator.log.claims import encode_claim, owner_epoch_headers
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.record_batch import encode_batch
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from tests.simulation.history import INITIALIZE, READ, History, Violation
from tests.simulation.kafka.brokers import BrokerFaults, SimBrokers
from tests.simulation.kafka.log_truncation import LogTruncations
from tests.simulation.loop import SimLoop
from tests.simulation.rpc_parts import InitializePart, InitializeResult, ReadPart, ReadResult

KEY = SharePartitionKey("g", bytes(16), 0)


class NewestBatchesChooser:
    """A random generator that always chooses one of the last options: the newest batches are lost."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def choice(self, options: list[Any]) -> Any:
        return options[-self._batches]


class ScriptedLog:
    """A log of one state partition, and the actions of its owner and its clients."""

    def __init__(self, loop: SimLoop) -> None:
        self.history = History()
        self.brokers = SimBrokers(loop, Random(1), BrokerFaults(), nodes=2, partitions=1)
        self.truncations = LogTruncations(self.history, self.brokers, 1)
        self._clients = 0

    def write(self, record: tuple[bytes, bytes | None], owner_epoch: int) -> None:
        headers = owner_epoch_headers(owner_epoch)
        partition = self.brokers.partitions[0]
        partition.write("a", encode_batch(0, 1, [record], headers), 0.0)
        partition.commit(partition.end)

    def claim(self, owner_epoch: int) -> None:
        self.write(encode_claim(0, "a"), owner_epoch)

    def snapshot(self, state_epoch: int, owner_epoch: int) -> None:
        value = ShareSnapshotValue(state_epoch, state_epoch, 0, 0, 1, 1, b"", 0)
        self.write(encode_record(StateRecord(KEY, value)), owner_epoch)

    def lose_newest_batches(self, batches: int = 1) -> None:
        self.truncations.lose_newest_records(0, NewestBatchesChooser(batches))  # type: ignore[arg-type]

    def initialize(self, state_epoch: int) -> None:
        op = self._invoke_operation(INITIALIZE, InitializePart(0, state_epoch, 0))
        self.history.record_response(SimLoop.BEGAN_S, op, InitializeResult(0))

    def read(self, state_epoch: int) -> None:
        op = self._invoke_operation(READ, ReadPart(0, 0))
        self.history.record_response(
            SimLoop.BEGAN_S, op, ReadResult(0, state_epoch=state_epoch, start_offset=0)
        )

    def _invoke_operation(self, kind: str, part: Any) -> Any:
        self._clients += 1
        return self.history.record_request(SimLoop.BEGAN_S, f"client {self._clients}", kind, KEY, [part])

    def check_eras(self) -> None:
        self.truncations.check_eras(lambda key: True)


@pytest.fixture
def scripted_log() -> ScriptedLog:
    """Return a story with two acknowledged initializations. The second initialization is lost."""
    loop = SimLoop()
    story = ScriptedLog(loop)
    loop.close()
    story.claim(1)
    for state_epoch in (1, 2):
        story.snapshot(state_epoch, 1)
        story.initialize(state_epoch)
    story.read(2)
    story.lose_newest_batches()
    return story


def test_lost_operation_may_be_missing_after_the_next_claim(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(1)
    scripted_log.check_eras()


def test_read_must_return_operations_that_were_not_truncated(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(0)
    with pytest.raises(Violation):
        scripted_log.check_eras()


def test_answer_from_memory_after_a_loss_is_a_violation(scripted_log: ScriptedLog) -> None:
    scripted_log.read(2)
    with pytest.raises(Violation, match="no owner noticed"):
        scripted_log.check_eras()


def test_lost_batch_that_is_sent_again_at_once_does_not_count_as_lost(scripted_log: ScriptedLog) -> None:
    scripted_log.snapshot(2, 1)
    scripted_log.read(2)
    scripted_log.check_eras()


def test_owner_that_wrote_none_of_the_lost_records_continues(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(1)
    scripted_log.claim(3)
    # Only the claim of a later owner is lost.
    scripted_log.lose_newest_batches()
    scripted_log.snapshot(3, 2)
    scripted_log.initialize(3)
    scripted_log.read(3)
    scripted_log.check_eras()


def test_states_of_a_later_owner_may_be_missing_after_their_loss(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.claim(3)
    scripted_log.snapshot(4, 3)
    scripted_log.initialize(4)
    scripted_log.lose_newest_batches(2)
    scripted_log.read(1)
    scripted_log.check_eras()
    scripted_log.read(4)
    with pytest.raises(Violation):
        scripted_log.check_eras()
