"""Test which histories `log_truncation` accepts after a loss of acknowledged records."""

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
    """A replacement of Random, so that an election loses exactly the given number of newest batches."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def choice(self, options: list[Any]) -> Any:
        return options[-self._batches]


class ScriptedLog:
    """A log of one state partition, and the operations of its owner and its clients."""

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
    """A log with two acknowledged initializations, of which an unclean election has lost the second."""
    loop = SimLoop()
    script = ScriptedLog(loop)
    loop.close()
    script.claim(1)
    for state_epoch in (1, 2):
        script.snapshot(state_epoch, 1)
        script.initialize(state_epoch)
    script.read(2)
    script.lose_newest_batches()
    return script


def test_read_without_lost_operation_is_accepted_after_the_next_claim(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(1)
    scripted_log.check_eras()


def test_read_without_remaining_operation_is_refused(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(0)
    with pytest.raises(Violation):
        scripted_log.check_eras()


def test_read_of_lost_state_before_the_next_claim_is_refused(scripted_log: ScriptedLog) -> None:
    scripted_log.read(2)
    with pytest.raises(Violation, match="no owner detected it"):
        scripted_log.check_eras()


def test_read_of_lost_batch_is_accepted_if_it_was_sent_again(scripted_log: ScriptedLog) -> None:
    scripted_log.snapshot(2, 1)
    scripted_log.read(2)
    scripted_log.check_eras()


def test_owner_continues_if_only_the_claim_of_a_later_owner_is_lost(scripted_log: ScriptedLog) -> None:
    scripted_log.claim(2)
    scripted_log.read(1)
    scripted_log.claim(3)
    scripted_log.lose_newest_batches()
    scripted_log.snapshot(3, 2)
    scripted_log.initialize(3)
    scripted_log.read(3)
    scripted_log.check_eras()


def test_read_of_lost_state_of_a_later_owner_is_refused(scripted_log: ScriptedLog) -> None:
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
