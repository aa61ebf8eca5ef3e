"""Check that the lease model allows the events of real coordinators.

The model must allow each event at its time, and each state after it must be safe. The events are the batches
that the brokers commit, and those of each coordinator: its claim is acknowledged, it has read the log, an
append is acknowledged, or it may answer a read. A batch may be committed at any time.
"""

from bisect import bisect_left
from typing import NamedTuple

from tests.model.leases import (
    CLAIM,
    CLAIMED,
    CLAIMING,
    RELEASING,
    SERVING,
    WAITING,
    WRITE,
    CheckBounds,
    LeaseModel,
    LeaseRules,
    Process,
    Record,
    SentRequest,
    State,
    end_ownership,
    read_log,
)

TICKS_PER_S = 1_000_000
# Times are rounded to ticks, and the leases in the log to milliseconds.
TOLERANCE_TICKS = 2_000
_LAST_CLAIM = Record(CLAIM, (1 << 31) - 1)


class NotInModel(AssertionError):
    """An event that the model does not allow."""


class EarlierOwners(NamedTuple):
    """The values that a later claimant reads: the previous owner epoch and the longest earlier lease."""

    previous_epoch: int | None
    lease_ms: int


class LeaseTrace:
    """The events of one state partition. Times are in seconds; names identify coordinators."""

    def __init__(self, lease_s: float, now_s: float) -> None:
        lease_ticks = round(lease_s * TICKS_PER_S) + TOLERANCE_TICKS
        bounds = CheckBounds(processes=0, lease_ticks=lease_ticks, tick_ms=1_000 / TICKS_PER_S)
        self._model = LeaseModel(LeaseRules(), bounds)
        self._lease_ms = round(lease_s * 1_000)
        self._state = State(())
        self._names: list[str] = []
        # The log offset of each record of the model, which is a batch.
        self._log_offsets: list[int] = []
        # The times until which coordinators may answer reads, by name. An event of a coordinator removes the
        # coordinator's time.
        self._leased_until_s: dict[str, float] = {}
        self._now_s = now_s

    # Events of the log.

    def add_commit(self, now_s: float, kind: str, owner_epoch: int, log_offset: int) -> None:
        """Record that the brokers have committed a batch."""
        self._advance(now_s)
        value = len(self._log_offsets) if kind == WRITE else 0
        self._log_offsets.append(log_offset)
        self._state = self._state._replace(log=(*self._state.log, Record(kind, owner_epoch, value)))

    def check_prune(self, log_offset: int) -> None:
        """Check that pruning does not change the previous owner epoch, nor shorten the earlier leases.

        The model itself keeps all records.
        """
        start = self._count_below(log_offset)
        full_log, remaining = self._read_earlier_owners(0), self._read_earlier_owners(start)
        if remaining.previous_epoch != full_log.previous_epoch or remaining.lease_ms < full_log.lease_ms:
            raise NotInModel(f"the log was pruned to {log_offset}, which changes {full_log} to {remaining}")

    def _read_earlier_owners(self, start: int) -> EarlierOwners:
        claim = read_log((*self._state.log[start:], _LAST_CLAIM), start, self._lease_ms).claim
        assert claim is not None
        return EarlierOwners(claim.previous_epoch, max(claim.previous_lease_ms, claim.older_lease_ms))

    # Events of coordinators.

    def add_claim(self, now_s: float, name: str, owner_epoch: int, log_offset: int, sent_s: float) -> None:
        """Record that a coordinator received the response to its claim."""
        self._advance(now_s)
        sent = SentRequest(
            Record(CLAIM, owner_epoch), self._to_ticks(now_s - sent_s), self._find_record_index(log_offset)
        )
        claiming = end_ownership(self._find_process(name))._replace(phase=CLAIMING, owner_epoch=owner_epoch)
        ((_, process, _),) = self._model.move_request(self._state, claiming, sent)
        self._set_process(name, process)

    def check_ownership(self, now_s: float, name: str, end_offset: int) -> None:
        """Check that a coordinator that has read the log up to an offset is the owner."""
        self._advance(now_s)
        process = self._find_process(name)
        log = self._state.log[: self._count_below(end_offset)]
        following = self._model.verify_claim(self._state._replace(log=log), process)
        if process.phase != CLAIMED or following.phase != WAITING:
            raise NotInModel(
                f"{name} considers itself the owner, but is not in the model: {process}, {following}"
            )
        self._set_process(name, following)

    def owner_epoch(self, name: str) -> int | None:
        """Return the owner epoch that a coordinator has verified, or None."""
        process = self._find_process(name)
        return process.owner_epoch if process.phase in (WAITING, SERVING) else None

    def remaining_wait_ticks(self, now_s: float, name: str) -> int:
        """Return the remaining wait of a coordinator for earlier leases, in ticks."""
        self._advance(now_s)
        return self._find_process(name).wait

    def check_acknowledgement(
        self,
        now_s: float,
        name: str,
        kind: str,
        log_offset: int,
        next_offset: int,
        sent_s: tuple[float, float],
        wait: int,
    ) -> None:
        """Check that a coordinator may acknowledge an append of one or several batches.

        `sent_s` has the times at which it sent the first and the last batch. `wait` is the remaining wait for
        earlier leases when it sent the first batch, in ticks.
        """
        self._advance(now_s)
        first, end = self._find_record_index(log_offset), self._count_below(next_offset)
        process = self._serve(name, wait)
        record = self._state.log[end - 1]
        sent = SentRequest(record, self._to_ticks(now_s - sent_s[end - first > 1]), first)
        ((step, process, changes),) = self._model.move_request(self._state, process, sent)
        if step == "ends" or record.kind != kind or record.owner_epoch != process.owner_epoch:
            raise NotInModel(
                f"{name} acknowledges the append of {record} at {log_offset}, but it failed: {step}"
            )
        self._state = self._state._replace(**changes)  # type: ignore[arg-type]
        self._set_process(name, process._replace(next_offset=end))

    def check_read(self, now_s: float, name: str, next_offset: int) -> None:
        """Check that a coordinator may answer reads from memory.

        If its next offset differs from the model, it has received a response whose event follows.
        """
        if now_s < self._leased_until_s.get(name, 0.0):
            return
        self._advance(now_s)
        if self._count_below(next_offset) != self._find_process(name).next_offset:
            return
        process = self._serve(name, self._find_process(name).wait)
        if not self._model.may_answer(self._state, process):
            raise NotInModel(f"{name} answers a read without a lease: {process}")
        self._set_process(name, process)
        left_ticks = self._model.bounds.lease_ticks - process.age
        self._leased_until_s[name] = now_s + left_ticks / TICKS_PER_S

    def add_resignation(self, now_s: float, name: str) -> None:
        """Record that a coordinator has resigned the shard."""
        self._advance(now_s)
        process = self._find_process(name)
        if process.phase in (WAITING, SERVING):
            self._set_process(name, process._replace(phase=RELEASING))

    # The state.

    def _serve(self, name: str, wait: int) -> Process:
        process = self._find_process(name)
        if process.phase not in (WAITING, SERVING) or wait > TOLERANCE_TICKS:
            raise NotInModel(f"{name} serves the shard, but must wait for {wait} ticks: {process}")
        return process._replace(phase=SERVING, wait=0)

    def _advance(self, now_s: float) -> None:
        ticks, self._now_s = self._to_ticks(now_s - self._now_s), now_s
        self._state = self._model.advance_time(self._state, ticks)

    def _find_process(self, name: str) -> Process:
        if name not in self._names:
            return Process()
        return self._state.processes[self._names.index(name)]

    def _set_process(self, name: str, process: Process) -> None:
        self._leased_until_s.pop(name, None)
        if name not in self._names:
            self._names.append(name)
            self._state = self._state._replace(processes=(*self._state.processes, process))
        processes = list(self._state.processes)
        processes[self._names.index(name)] = process
        self._state = self._state._replace(processes=tuple(processes))
        if not self._model.is_safe(self._state):
            raise NotInModel(
                f"an owner may answer a read without an acknowledged write: {self._state.processes}"
            )

    def _count_below(self, log_offset: int) -> int:
        return bisect_left(self._log_offsets, log_offset)

    def _find_record_index(self, log_offset: int) -> int:
        index = self._count_below(log_offset)
        if self._log_offsets[index : index + 1] != [log_offset]:
            raise NotInModel(f"no committed batch begins at {log_offset}")
        return index

    @staticmethod
    def _to_ticks(seconds: float) -> int:
        return round(seconds * TICKS_PER_S)
