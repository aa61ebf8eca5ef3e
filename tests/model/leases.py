"""Model claims, leases, hand-overs and pruning of one state partition, and check all states of the model.

Processes claim at any time, because the model assumes nothing about the group.  A partitioned process reaches
only a broker that is partitioned with it, so its appends are never committed.  Requests and responses may be
lost, and one abandoned request may arrive later.  Time advances in ticks for all processes.

The coordinator's own `FencingFilter` decides which claim is accepted, and how long an earlier lease may last.
If a process claims again after its own ownership, it does not wait, because that ownership has waited
already.

The checked property: a process that may answer a read knows every write that was acknowledged to a client.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from coordinator.log.claims import (
    AcceptedClaim,
    FencingFilter,
    encode_claim,
    encode_release,
    encode_renewal,
    owner_epoch_headers,
)
from protocol.record_batch import LogRecord

CLAIM, WRITE, RENEWAL, RELEASE = "claim", "write", "renewal", "release"
IDLE, CLAIMING, CLAIMED, WAITING, SERVING, RELEASING = range(6)
TICK_MS = 1_000


class LeaseRules(NamedTuple):
    """The rules of each process. The defaults are the coordinator's rules; each other value is a mistake."""

    # True: reads need a lease from the log. False: reads compare the broker's end offset with the expected
    # end offset.
    lease_from_log: bool = True
    lease_from_sending: bool = True
    waits: bool = True
    unknown_lease_is_longest: bool = True
    success_only_at_expected_offset: bool = True


class CheckBounds(NamedTuple):
    """The bounds of a check."""

    processes: int = 2
    lease_ticks: int = 2
    claims: int = 3
    writes: int = 2
    renewals: int = 1
    releases: int = 1


class Record(NamedTuple):
    """A record of the log. `value` is the state that a write results in."""

    kind: str
    owner_epoch: int
    value: int = 0


class SentRequest(NamedTuple):
    """A request in flight: its age in ticks, and its log offset (-1 before the append)."""

    record: Record
    age: int = 0
    offset: int = -1


class Process(NamedTuple):
    """A coordinator; `age` is the time in ticks since it sent its last committed append."""

    phase: int = IDLE
    owner_epoch: int = 0
    value: int = 0
    next_offset: int = -1
    claim_offset: int = -1
    age: int = 0
    wait: int = 0
    sent: SentRequest | None = None
    # The owner epoch of the previous ownership if it was a verified ownership of this process, else -1.
    before_epoch: int = -1
    # The end offset that the broker of this process returns since both were partitioned; -1 while connected.
    cut_at: int = -1


class State(NamedTuple):
    """The state of all processes and of the log."""

    processes: tuple[Process, ...]
    log: tuple[Record, ...] = ()
    start: int = 0
    acknowledged: int = 0
    late: Record | None = None

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.log)


class LogReading(NamedTuple):
    """The result of reading the log from its start."""

    claim: AcceptedClaim | None
    value: int
    write_offset: int


@cache
def read_log(log: tuple[Record, ...], start: int, lease_ticks: int) -> LogReading:
    """Read a log with the coordinator's own filter."""
    validity, value, write_offset = FencingFilter(), 0, -1
    for offset, record in enumerate(log, start):
        if validity.accepts(_encode_record(record, offset, lease_ticks)) and record.kind == WRITE:
            value, write_offset = record.value, offset
    return LogReading(validity.claim, value, write_offset)


def _encode_record(record: Record, offset: int, lease_ticks: int) -> LogRecord:
    lease_ms = lease_ticks * TICK_MS
    key, value = {
        CLAIM: encode_claim(0, "", lease_ms),
        RENEWAL: encode_renewal(0, lease_ms),
        RELEASE: encode_release(0),
        WRITE: (b"key", b"value"),
    }[record.kind]
    return LogRecord(offset, 0, key, value, owner_epoch_headers(record.owner_epoch))


class LeaseModel:
    """The possible steps in each state."""

    def __init__(self, rules: LeaseRules, scope: CheckBounds) -> None:
        self.rules = rules
        self.scope = scope
        self.first = State((Process(),) * scope.processes)

    def may_answer(self, state: State, process: Process) -> bool:
        """Return whether a process answers a read from its memory."""
        if process.phase != SERVING:
            return False
        if self.rules.lease_from_log:
            return process.age < self.scope.lease_ticks
        seen_end = state.end if process.cut_at < 0 else process.cut_at
        return seen_end == process.next_offset

    def is_safe(self, state: State) -> bool:
        """Return whether every answer contains every acknowledged write."""
        return all(
            process.value >= state.acknowledged or not self.may_answer(state, process)
            for process in state.processes
        )

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each possible next step: its name, and the state after it."""
        yield "time passes", self._advance_time(state)
        if state.late is not None:
            yield f"late {state.late.kind} arrives", state._replace(log=(*state.log, state.late), late=None)
        for number, process in enumerate(state.processes):
            for name, following, changes in self._process_steps(state, process):
                processes = list(state.processes)
                processes[number] = following
                yield f"process {number} {name}", state._replace(processes=tuple(processes), **changes)

    def _advance_time(self, state: State) -> State:
        most = self.scope.lease_ticks
        return state._replace(
            processes=tuple(
                process._replace(
                    age=min(process.age + 1, most),
                    wait=max(process.wait - 1, 0),
                    sent=process.sent and process.sent._replace(age=min(process.sent.age + 1, most)),
                )
                for process in state.processes
            )
        )

    def _process_steps(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        is_cut = process.cut_at >= 0
        if is_cut:
            yield "is healed", process._replace(cut_at=-1), {}
        elif not self.rules.lease_from_log:
            # With a lease from the log, a partitioned process behaves like a slow process.
            yield "is cut off", process._replace(cut_at=state.end), {}
        if process.phase != IDLE or process.before_epoch >= 0:
            yield "crashes", Process(cut_at=process.cut_at), self._may_be_late(state, process.sent)
        if process.phase == SERVING and process.sent is not None:
            # The outcome is unknown until a new claim decides it.
            given_up = Process(before_epoch=process.owner_epoch, cut_at=process.cut_at)
            yield "gives up", given_up, self._may_be_late(state, process.sent)
        if process.sent is not None:
            if not is_cut:
                yield from self._move_request(state, process, process.sent)
            return
        yield from self._send_append_steps(state, process)
        if process.phase == CLAIMED and not is_cut:
            yield "reads the log", self._verify_claim(state, process), {}
        elif process.phase == WAITING and not process.wait:
            yield "serves", process._replace(phase=SERVING), {}
        elif process.phase == SERVING and not is_cut:
            yield from self._prune_steps(state, process)

    @staticmethod
    def _may_be_late(state: State, sent: SentRequest | None) -> dict[str, object]:
        if sent is None or sent.offset >= 0 or state.late is not None:
            return {}
        return {"late": sent.record}

    def _send_append_steps(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        scope, epoch = self.scope, process.owner_epoch
        counts = {kind: sum(record.kind == kind for record in state.log) for kind in (RENEWAL, RELEASE)}
        heard = max((record.owner_epoch for record in state.log), default=0)
        if process.phase in (IDLE, SERVING) and heard < scope.claims and process.cut_at < 0:
            claim = SentRequest(Record(CLAIM, heard + 1))
            before_epoch = epoch if process.phase == SERVING else process.before_epoch
            yield "claims", Process(CLAIMING, heard + 1, sent=claim, before_epoch=before_epoch), {}
        if process.phase == SERVING:
            if process.value < scope.writes:
                sent = SentRequest(Record(WRITE, epoch, process.value + 1))
                yield "writes", process._replace(sent=sent), {}
            if counts[RENEWAL] < scope.renewals:
                yield "renews", process._replace(sent=SentRequest(Record(RENEWAL, epoch))), {}
        if process.phase == SERVING and counts[RELEASE] < scope.releases:
            sent = SentRequest(Record(RELEASE, epoch))
            yield "releases", process._replace(phase=RELEASING, sent=sent), {}

    def _move_request(
        self, state: State, process: Process, sent: SentRequest
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        if sent.offset < 0:
            landed = sent._replace(offset=state.end)
            log = (*state.log, sent.record)
            yield f"lands its {sent.record.kind}", process._replace(sent=landed), {"log": log}
            return
        age = sent.age if self.rules.lease_from_sending else 0
        if sent.record.kind == CLAIM:
            claimed = process._replace(phase=CLAIMED, claim_offset=sent.offset, age=age, sent=None)
            yield "hears of its claim", claimed, {}
        elif process.phase == RELEASING or (
            self.rules.success_only_at_expected_offset and sent.offset != process.next_offset
        ):
            yield "ends", Process(cut_at=process.cut_at), {}
        else:
            following = process._replace(next_offset=sent.offset + 1, age=age, sent=None)
            if sent.record.kind == RENEWAL:
                yield "is renewed", following, {}
            else:
                acknowledged = max(state.acknowledged, sent.record.value)
                yield (
                    "acknowledges",
                    following._replace(value=sent.record.value),
                    {"acknowledged": acknowledged},
                )

    def _verify_claim(self, state: State, process: Process) -> Process:
        found = read_log(state.log, state.start, self.scope.lease_ticks)
        claim = found.claim
        if claim is None or claim.log_offset != process.claim_offset:
            return Process(cut_at=process.cut_at)
        wait_ms = max(claim.previous_lease_ms, claim.older_lease_ms)
        if not self.rules.unknown_lease_is_longest and wait_ms > self.scope.lease_ticks * TICK_MS:
            wait_ms = 0
        # No lease is longer than the lease of this scope.
        if not self.rules.waits or claim.previous_epoch == process.before_epoch:
            wait_ms = 0
        return process._replace(
            phase=WAITING,
            value=found.value,
            claim_offset=-1,
            next_offset=state.end,
            wait=min(wait_ms // TICK_MS, self.scope.lease_ticks),
            before_epoch=-1,
        )

    def _prune_steps(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        found = read_log(state.log, state.start, self.scope.lease_ticks)
        before = found.write_offset
        is_proven = process.age < self.scope.lease_ticks and process.value == found.value
        if is_proven and before > state.start:
            yield "prunes", process, {"log": state.log[before - state.start :], "start": before}


class CoordinatorResult(NamedTuple):
    """The number of visited states, and the steps to the first unsafe state."""

    states: int
    trace: list[str] | None


def check_model(rules: LeaseRules, scope: CheckBounds) -> CoordinatorResult:
    """Visit all states in breadth-first order; stop at the first unsafe state."""
    model = LeaseModel(rules, scope)
    came_from: dict[State, tuple[State, str] | None] = {model.first: None}
    waiting = [model.first]
    for state in waiting:
        for name, following in model.steps(state):
            # The identity of a process is irrelevant, so permutations count as one state.
            following = following._replace(processes=tuple(sorted(following.processes, key=hash)))
            if following in came_from:
                continue
            came_from[following] = (state, name)
            if not model.is_safe(following):
                return CoordinatorResult(len(came_from), _format_trace(came_from, following))
            waiting.append(following)
    return CoordinatorResult(len(came_from), None)


def _format_trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps = []
    while (step := came_from[state]) is not None:
        state, name = step
        steps.append(name)
    return steps[::-1]
