"""Test that `LeaseTrace` refuses events that the model does not allow, and accepts others."""

from collections.abc import Callable

import pytest

from tests.model.lease_trace import LeaseTrace, NotInModel
from tests.model.leases import CLAIM, RELEASE, RENEWAL, WRITE

LEASE_S = 3.0


def make_trace() -> LeaseTrace:
    """Return the trace of an owner that claimed an empty log at 0 s and wrote at 1 s."""
    trace = LeaseTrace(LEASE_S, 0.0)
    trace.add_commit(0.0, CLAIM, 1, 0)
    trace.add_claim(0.0, "first", 1, 0, 0.0)
    trace.check_ownership(0.0, "first", 1)
    trace.add_commit(1.1, WRITE, 1, 1)
    trace.check_acknowledgement(1.2, "first", WRITE, 1, 4, (1.0, 1.0), 0)
    return trace


def add_second_owner(trace: LeaseTrace) -> None:
    """Let another coordinator claim at 2 s."""
    trace.add_commit(2.0, CLAIM, 2, 4)
    trace.add_claim(2.0, "second", 2, 4, 2.0)
    trace.check_ownership(2.5, "second", 5)


def write_as_second(trace: LeaseTrace, now_s: float) -> None:
    wait = trace.remaining_wait_ticks(now_s, "second")
    trace.add_commit(now_s, WRITE, 2, 5)
    trace.check_acknowledgement(now_s, "second", WRITE, 5, 6, (now_s, now_s), wait)


def test_takeover_after_the_lease_is_accepted() -> None:
    trace = make_trace()
    trace.check_read(3.9, "first", 4)
    add_second_owner(trace)
    write_as_second(trace, 5.1)
    trace.check_read(5.2, "second", 6)
    trace.check_prune(4)


def test_takeover_without_waiting_is_accepted_after_a_release() -> None:
    trace = make_trace()
    trace.add_resignation(1.5, "first")
    trace.add_commit(1.6, RELEASE, 1, 4)
    trace.add_commit(2.0, CLAIM, 2, 5)
    trace.add_claim(2.0, "second", 2, 5, 2.0)
    trace.check_ownership(2.0, "second", 6)
    trace.check_read(2.1, "second", 6)


def _answer_after_the_lease(trace: LeaseTrace) -> None:
    trace.check_read(4.1, "first", 4)


def _serve_during_an_earlier_lease(trace: LeaseTrace) -> None:
    add_second_owner(trace)
    write_as_second(trace, 4.5)


def _verify_a_replaced_claim(trace: LeaseTrace) -> None:
    trace.add_commit(2.0, CLAIM, 2, 4)
    trace.add_claim(2.0, "second", 2, 4, 2.0)
    trace.add_commit(2.1, CLAIM, 3, 5)
    trace.check_ownership(2.5, "second", 6)


def _acknowledge_at_an_unexpected_offset(trace: LeaseTrace) -> None:
    trace.add_commit(2.0, RENEWAL, 9, 4)
    trace.add_commit(2.0, WRITE, 1, 5)
    trace.check_acknowledgement(2.0, "first", WRITE, 5, 6, (2.0, 2.0), 0)


def _acknowledge_an_uncommitted_append(trace: LeaseTrace) -> None:
    trace.check_acknowledgement(2.0, "first", WRITE, 4, 5, (2.0, 2.0), 0)


def _prune_the_owner_epoch(trace: LeaseTrace) -> None:
    trace.add_commit(2.0, WRITE, 1, 4)
    trace.add_commit(2.0, WRITE, 7, 5)
    trace.check_prune(5)


@pytest.mark.parametrize(
    "add_wrong_event",
    [
        _answer_after_the_lease,
        _serve_during_an_earlier_lease,
        _verify_a_replaced_claim,
        _acknowledge_at_an_unexpected_offset,
        _acknowledge_an_uncommitted_append,
        _prune_the_owner_epoch,
    ],
)
def test_event_that_the_model_does_not_allow_is_refused(
    add_wrong_event: Callable[[LeaseTrace], None],
) -> None:
    with pytest.raises(NotInModel):
        add_wrong_event(make_trace())
