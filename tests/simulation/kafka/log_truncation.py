"""Check histories of a cluster that lost acknowledged records by unclean elections.

A history consists of eras. A loss of records ends an era: all operations that were acknowledged before the
loss may be lost. The owner detects the loss and must claim the log again. The next era begins with this
claim: from then on, operations must fit the states that were in the log at the time of the claim.

All checkers are applied to each era. A request between the loss and the claim must not be answered before the
claim; otherwise the owner has not detected the loss. If an election loses only records of later owners,
including their claims, the owner before them continues, and the next era begins at once.

An owner detects the loss with its next append. Before that append, the owner answers reads from memory during
its lease. So an operation that begins within a lease after the loss is checked as if its outcome were
unknown.
"""

from dataclasses import replace
from random import Random
from typing import NamedTuple

from coordinator.shard import ShareState
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey
from tests.simulation.checkers import check_history
from tests.simulation.history import NEVER, History, Operation, Violation
from tests.simulation.kafka.brokers import SimBrokers
from tests.simulation.kafka.partition import SimPartition
from tests.simulation.kafka.raw_log import RawRecord, accepted_records, read_records, replay_states
from tests.simulation.linearize import TopicKnown
from tests.simulation.model import State, offset_progress

Point = tuple[float, int]
_BEGINNING: Point = (float("-inf"), 0)

# The maximum number of batches that an unclean election loses.
BATCHES_LOST_MAX = 6


class Truncation(NamedTuple):
    """The interval between two eras of a state partition, and the states at the claim that ends it."""

    lost: Point
    owned: Point
    states: dict[SharePartitionKey, ShareState]


class LogTruncations:
    """The unclean elections of a simulation."""

    def __init__(
        self, history: History, brokers: SimBrokers, state_partitions: int, lease_s: float = 0.0
    ) -> None:
        self._lease_s = lease_s
        self.losses: dict[int, list[Truncation]] = {number: [] for number in range(state_partitions)}
        self._history = history
        self._brokers = brokers
        self._unnoticed: dict[int, Point] = {}
        self._lost: dict[int, list[bytes]] = {}
        for number, partition in enumerate(brokers.partitions):
            partition.on_write = lambda number=number: self._on_record_written(number)  # type: ignore[misc]

    def lose_newest_records(self, number: int, rng: Random) -> None:
        """Elect a leader that lacks the newest records of a state partition, and record the loss."""
        partition = self._brokers.partitions[number]
        offsets = [int.from_bytes(batch[:8]) for batch in partition.batches]
        offsets = [offset for offset in offsets if offset >= partition.start][-BATCHES_LOST_MAX:]
        if not offsets:
            return
        before = _read_accepted_records(partition)
        lost = partition.lose_records_from(rng.choice(offsets))
        # Another broker leads now. Requests in flight to the previous leader get NOT_LEADER_OR_FOLLOWER.
        self._brokers.elect_another_leader(number)
        if number in self._unnoticed or not self._owner_continues(number, before):
            self._lost[number] = [*lost, *self._lost.get(number, ())]
            self._unnoticed.setdefault(number, self._history.next_time(self._brokers.loop.time()))

    def _owner_continues(self, number: int, before: list[RawRecord]) -> bool:
        """Return whether the owner need not claim again, because it wrote none of the lost states.

        `before` has the accepted records before the loss. If states of later owners are lost, the next era
        begins now.
        """
        remaining = _read_accepted_records(self._brokers.partitions[number])
        lost = [record for record in before[len(remaining) :] if not record.is_ownership_record]
        if lost and (
            not remaining or any(record.owner_epoch == remaining[-1].owner_epoch for record in lost)
        ):
            return False
        if lost:
            now_s = self._brokers.loop.time()
            at, owned = self._history.next_time(now_s), self._history.next_time(now_s)
            self.losses[number].append(Truncation(at, owned, replay_states(remaining, number)))
        return True

    def _on_record_written(self, number: int) -> None:
        """Begin the next era if the newest record is an accepted claim.

        If a producer sends all lost batches again, because it got no response, no records are lost.
        """
        if number not in self._unnoticed:
            return
        partition, lost = self._brokers.partitions[number], self._lost[number]
        if lost and lost[0] == partition.batches[-1]:
            lost.pop(0)
            if not lost:
                del self._unnoticed[number]
            return
        lost.clear()
        kept = _read_accepted_records(partition)
        if kept and kept[-1].record.offset == partition.end - 1 and kept[-1].is_claim:
            owned = self._history.next_time(self._brokers.loop.time())
            loss = Truncation(self._unnoticed.pop(number), owned, replay_states(kept, number))
            self.losses[number].append(loss)

    def check_eras(self, topic_known: TopicKnown) -> int:
        """Check each era; return for how many share-partitions the linearizability checker gave up."""
        given_up = 0
        untouched = History()
        for key, ops in self._history.operations_by_key():
            number = state_partition(key, len(self.losses))
            losses = list(self.losses[number])
            if number in self._unnoticed:
                losses.append(Truncation(self._unnoticed[number], NEVER, {}))
            if not losses:
                untouched.ops.extend(ops)
                continue
            ops = [self._forget_outcome_within_lease(op, losses) for op in ops]
            _check_losses_are_detected(ops, losses)
            begins: list[tuple[Point, dict[SharePartitionKey, ShareState]]] = [(_BEGINNING, {})]
            begins += [(loss.owned, loss.states) for loss in losses]
            ends = [*(loss.lost for loss in losses), NEVER]
            for (begin, states), end in zip(begins, ends, strict=True):
                if begin < end:
                    state = _make_model_state(states.get(key))
                    given_up += check_history(
                        _history_between(ops, begin, end), topic_known, lambda _, state=state: state
                    )  # type: ignore[misc]
        untouched.ops.sort(key=lambda op: op.number)
        return given_up + check_history(untouched, topic_known)

    def _forget_outcome_within_lease(self, op: Operation, losses: list[Truncation]) -> Operation:
        """Return the operation, with an unknown outcome if it began within a lease after a loss."""
        is_within_lease = any(
            lost <= op.invoked <= (lost[0] + self._lease_s, NEVER[1]) for lost, *_ in losses
        )
        if not is_within_lease or not op.known:
            return op
        return replace(op, answered=None, answer=None, deadline=op.answered)


def _read_accepted_records(partition: SimPartition) -> list[RawRecord]:
    return accepted_records(read_records([("", batch) for batch in partition.batches], partition.start))


def _check_losses_are_detected(ops: list[Operation], losses: list[Truncation]) -> None:
    for op in ops:
        for lost, owned, _ in losses:
            if op.known and op.answered is not None and lost < op.invoked and op.answered < owned:
                raise Violation(f"the log was truncated at {lost[0]:.6f}, and no owner detected it: {op}")


def _history_between(ops: list[Operation], begin: Point, end: Point) -> History:
    """Return the operations between two times; operations in progress then get an unknown outcome."""
    era = History()
    for op in ops:
        end_point = op.answered if op.known else op.deadline
        if op.invoked >= end or (end_point or NEVER) < begin:
            continue
        if op.invoked >= begin and (op.known and (op.answered or NEVER) < end):
            era.ops.append(op)
            continue
        invoked, deadline = max(op.invoked, begin), min(end_point or NEVER, end)
        era.ops.append(replace(op, invoked=invoked, answered=None, answer=None, deadline=deadline))
    return era


def _make_model_state(state: ShareState | None) -> State | None:
    if state is None:
        return None
    return State(
        state.state_epoch,
        state.leader_epoch,
        state.leader_epoch_max,
        state.start_offset,
        state.delivery_complete_count,
        offset_progress(state.batches),
    )
