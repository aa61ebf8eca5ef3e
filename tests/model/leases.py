"""Model claims, leases, hand-overs and pruning of one state partition.

Processes claim at any time, because the model assumes nothing about group membership. A partitioned process
can reach only a broker that is partitioned with it, so its appends are never committed. Requests and
responses may be lost, and one lost request may arrive later. Time advances in ticks for all processes.

The coordinator's own `FencingFilter` decides which claim is accepted, and how long an earlier lease may last.
The coordinator's `Ownership` decides how long the claimant waits. A claimant that was the previous owner
waits less.

The checked property is: a process that may answer a read knows every write that was acknowledged to a client.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from coordinator.cluster.kafka.broker_results import ProducerId
from coordinator.log.claims import (
    AcceptedClaim,
    FencingFilter,
    encode_claim,
    encode_release,
    encode_renewal,
    owner_epoch_headers,
)
from coordinator.log.kafka import ownership as ownership_rules
from coordinator.log.kafka.ownership import Ownership
from protocol.record_batch import LogRecord

CLAIM, WRITE, RENEWAL, RELEASE = "claim", "write", "renewal", "release"
IDLE, CLAIMING, CLAIMED, WAITING, SERVING, RELEASING = range(6)
_NO_PRODUCER = ProducerId(0, -1, -1)


class LeaseRules(NamedTuple):
    """The rules of a process. The defaults are those of the coordinator; each other value is a defect."""

    # False: instead of checking its lease, a process compares the end offset that the broker returns with the
    # end offset that it expects.
    lease_from_log: bool = True
    # False: the lease of an append begins when its response arrives, not when it is sent.
    lease_from_sending: bool = True
    # False: a claimant does not wait for earlier leases.
    waits: bool = True
    # False: a claimant does not wait for an earlier lease of unknown length.
    unknown_lease_is_longest: bool = True
    # False: a process does not wait if the previous claim is its own, although it has not read that claim.
    waits_after_own_claim: bool = True
    # False: an append is acknowledged whatever its base offset is.
    success_only_at_expected_offset: bool = True


class CheckBounds(NamedTuple):
    """The numbers of processes and records in a check, the longest lease, and the length of a tick."""

    processes: int = 2
    lease_ticks: int = 2
    claims: int = 3
    writes: int = 2
    renewals: int = 1
    releases: int = 1
    tick_ms: float = 1_000


class Record(NamedTuple):
    """A record of the log. `value` is the state after a write."""

    kind: str
    owner_epoch: int
    value: int = 0


class SentRequest(NamedTuple):
    """A request in flight, with its age in ticks and its log offset (-1 before the append)."""

    record: Record
    age: int = 0
    offset: int = -1


class EarlierOwnership(NamedTuple):
    """The previous ownership of a process, if it ended without a crash.

    If the process had read its claim (`verified`), `wait` is the remaining wait for earlier leases. Otherwise
    `claimed` is the time since the response to the claim. Times are in ticks.
    """

    owner_epoch: int
    verified: bool
    claim_offset: int = -1
    wait: int = 0
    claimed: int = 0


class Process(NamedTuple):
    """A coordinator. Times are in ticks.

    `age` is the time since it sent its last acknowledged append. `claimed` is the time since the response to
    its claim, until it has read the claim.
    """

    phase: int = IDLE
    owner_epoch: int = 0
    value: int = 0
    next_offset: int = -1
    claim_offset: int = -1
    age: int = 0
    claimed: int = 0
    wait: int = 0
    sent: SentRequest | None = None
    before: EarlierOwnership | None = None
    # The end offset at the time when the process and its broker were partitioned; -1 while connected.
    cut_at: int = -1


class State(NamedTuple):
    """The state of all processes and of the log. `late` is a lost request that may still arrive."""

    processes: tuple[Process, ...]
    log: tuple[Record, ...] = ()
    start: int = 0
    acknowledged: int = 0
    late: Record | None = None

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.log)


class LogReading(NamedTuple):
    """The result of reading the log from its start."""

    claim: AcceptedClaim | None
    value: int
    write_offset: int


def read_log(log: tuple[Record, ...], start: int, lease_ms: int) -> LogReading:
    """Read a log, with the coordinator's own rules for valid records."""
    fencing_filter, value, write_offset = FencingFilter(), 0, -1
    for offset, record in enumerate(log, start):
        if fencing_filter.accepts(_encode_record(record, offset, lease_ms)) and record.kind == WRITE:
            value, write_offset = record.value, offset
    return LogReading(fencing_filter.claim, value, write_offset)


_read_log_cached = cache(read_log)


def _encode_record(record: Record, offset: int, lease_ms: int) -> LogRecord:
    key, value = {
        CLAIM: lambda: encode_claim(0, "", lease_ms),
        RENEWAL: lambda: encode_renewal(0, lease_ms),
        RELEASE: lambda: encode_release(0),
        WRITE: lambda: (b"key", b"value"),
    }[record.kind]()
    return LogRecord(offset, 0, key, value, owner_epoch_headers(record.owner_epoch))


class LeaseModel:
    """The possible steps in each state of the model."""

    def __init__(self, rules: LeaseRules, bounds: CheckBounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.lease_ms = round(bounds.lease_ticks * bounds.tick_ms)
        self.first = State((Process(),) * bounds.processes)

    def may_answer(self, state: State, process: Process) -> bool:
        """Return whether a process may answer a read from its memory."""
        if process.phase != SERVING:
            return False
        if self.rules.lease_from_log:
            return process.age < self.bounds.lease_ticks
        seen_end = state.end_offset if process.cut_at < 0 else process.cut_at
        return seen_end == process.next_offset

    def is_safe(self, state: State) -> bool:
        """Return whether each process that may answer a read knows every acknowledged write."""
        return all(
            process.value >= state.acknowledged or not self.may_answer(state, process)
            for process in state.processes
        )

    def advance_time(self, state: State, ticks: int = 1) -> State:
        return state._replace(
            processes=tuple(self.advance_age(process, ticks) for process in state.processes)
        )

    def advance_age(self, process: Process, ticks: int) -> Process:
        lease_ticks, sent, before = self.bounds.lease_ticks, process.sent, process.before
        return process._replace(
            age=min(process.age + ticks, lease_ticks),
            claimed=min(process.claimed + ticks, lease_ticks) if process.phase == CLAIMED else 0,
            wait=max(process.wait - ticks, 0),
            sent=sent and sent._replace(age=min(sent.age + ticks, lease_ticks)),
            before=before
            and before._replace(
                wait=max(before.wait - ticks, 0),
                claimed=0 if before.verified else min(before.claimed + ticks, lease_ticks),
            ),
        )

    def steps(self, state: State, process: Process) -> Iterator[tuple[str, Process, dict[str, object]]]:
        """Yield the name of each possible next step of a process, the process after it, and other changes.

        The steps do not depend on other processes.
        """
        is_cut = process.cut_at >= 0
        if is_cut:
            yield "is connected again", process._replace(cut_at=-1), {}
        elif not self.rules.lease_from_log:
            # With a lease from the log, a partitioned process behaves like a slow process.
            yield "is partitioned", process._replace(cut_at=state.end_offset), {}
        if process.phase != IDLE or process.before is not None:
            yield "crashes", Process(cut_at=process.cut_at), self._keep_lost_request(state, process.sent)
        if process.phase == SERVING and process.sent is not None:
            # The outcome of the request is unknown until the process claims again.
            yield "ends its ownership", end_ownership(process), self._keep_lost_request(state, process.sent)
        if process.sent is not None:
            if not is_cut:
                yield from self.move_request(state, process, process.sent)
            return
        yield from self._send_append_steps(state, process)
        if process.phase == CLAIMED and not is_cut:
            yield "reads the log", self.verify_claim(state, process), {}
        elif process.phase == WAITING and not process.wait:
            yield "serves", process._replace(phase=SERVING), {}
        elif process.phase == SERVING and not is_cut:
            yield from self._prune_steps(state, process)

    @staticmethod
    def _keep_lost_request(state: State, sent: SentRequest | None) -> dict[str, object]:
        if sent is None or sent.offset >= 0 or state.late is not None:
            return {}
        return {"late": sent.record}

    def _send_append_steps(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        bounds, epoch = self.bounds, process.owner_epoch
        counts = {kind: sum(record.kind == kind for record in state.log) for kind in (RENEWAL, RELEASE)}
        last_epoch = max((record.owner_epoch for record in state.log), default=0)
        if last_epoch < bounds.claims and process.cut_at < 0:
            claim = SentRequest(Record(CLAIM, last_epoch + 1))
            yield (
                "claims",
                end_ownership(process)._replace(phase=CLAIMING, owner_epoch=last_epoch + 1, sent=claim),
                {},
            )
        if process.phase == SERVING:
            if process.value < bounds.writes:
                sent = SentRequest(Record(WRITE, epoch, process.value + 1))
                yield "writes", process._replace(sent=sent), {}
            if counts[RENEWAL] < bounds.renewals:
                yield "renews", process._replace(sent=SentRequest(Record(RENEWAL, epoch))), {}
        if process.phase == SERVING and counts[RELEASE] < bounds.releases:
            sent = SentRequest(Record(RELEASE, epoch))
            yield "releases", process._replace(phase=RELEASING, sent=sent), {}

    def move_request(
        self, state: State, process: Process, sent: SentRequest
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        """Yield the next step of a request: it is appended to the log, or its response arrives."""
        if sent.offset < 0:
            appended = sent._replace(offset=state.end_offset)
            log = (*state.log, sent.record)
            yield f"appends its {sent.record.kind}", process._replace(sent=appended), {"log": log}
            return
        age = sent.age if self.rules.lease_from_sending else 0
        if sent.record.kind == CLAIM:
            claimed = process._replace(phase=CLAIMED, claim_offset=sent.offset, age=age, sent=None)
            yield "receives the response to its claim", claimed, {}
        elif process.phase == RELEASING or (
            self.rules.success_only_at_expected_offset and sent.offset != process.next_offset
        ):
            yield "ends", end_ownership(process), {}
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

    def verify_claim(self, state: State, process: Process) -> Process:
        """Return the process after it has read the log: it waits, or it is not the owner."""
        found = _read_log_cached(state.log, state.start, self.lease_ms)
        claim = found.claim
        if claim is None or claim.log_offset != process.claim_offset:
            return end_ownership(process)
        return process._replace(
            phase=WAITING,
            value=found.value,
            claim_offset=-1,
            claimed=0,
            next_offset=state.end_offset,
            wait=self._wait_ticks(claim, process),
            before=None,
        )

    def _wait_ticks(self, claim: AcceptedClaim, process: Process) -> int:
        """Return the wait by the coordinator's rule in ticks, without its margin for clock drift."""
        rules, tick_s = self.rules, self.bounds.tick_ms / 1_000
        wait_ms = max(claim.previous_lease_ms, claim.older_lease_ms)
        if not rules.waits or (not rules.unknown_lease_is_longest and wait_ms > self.lease_ms):
            return 0
        ownership, before = Ownership(0, claim.owner_epoch, _NO_PRODUCER), None
        ownership.claimed_s = -process.claimed * tick_s
        if process.before is not None:
            before = Ownership(0, process.before.owner_epoch, _NO_PRODUCER)
            before.verified, before.claim_offset = process.before.verified, process.before.claim_offset
            before.serve_from_s = process.before.wait * tick_s
            before.claimed_s = -process.before.claimed * tick_s
            if not rules.waits_after_own_claim and before.claim_offset == claim.previous_offset:
                return 0
        previous_ms, older_ms = (
            min(lease_ms, self.lease_ms) / (1 + ownership_rules.CLOCK_DRIFT_MAX)  # type: ignore[type-var]
            for lease_ms in (claim.previous_lease_ms, claim.older_lease_ms)
        )
        ownership.record_accepted_claim(
            claim._replace(previous_lease_ms=previous_ms, older_lease_ms=older_ms), before
        )
        return max(round(ownership.serve_from_s / tick_s), 0)

    def _prune_steps(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, Process, dict[str, object]]]:
        found = _read_log_cached(state.log, state.start, self.lease_ms)
        before = found.write_offset
        is_proven = process.age < self.bounds.lease_ticks and process.value == found.value
        if is_proven and before > state.start:
            yield "prunes", process, {"log": state.log[before - state.start :], "start": before}


def end_ownership(process: Process) -> Process:
    """Return the process after the end of its ownership, which the process remembers."""
    before = process.before
    if process.phase == CLAIMED:
        claim = process.claim_offset, 0, process.claimed
        before = EarlierOwnership(process.owner_epoch, False, *claim)
    elif process.phase in (WAITING, SERVING, RELEASING):
        before = EarlierOwnership(process.owner_epoch, verified=True, wait=process.wait)
    return Process(before=before, cut_at=process.cut_at)
