"""Test the fencing filter of a log by comparison with a model."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.claims import (
    AcceptedClaim,
    FencingFilter,
    encode_claim,
    is_claim,
    owner_epoch_headers,
    read_owner_epoch,
)
from protocol.record_batch import LogRecord

# (is a claim, owner epoch). The owner epoch is None for records of Kafka's own coordinator.
Entry = tuple[bool, int | None]
owner_epochs = st.none() | st.integers(0, 5)
logs = st.lists(st.tuples(st.booleans(), owner_epochs), max_size=30)


def make_record(log_offset: int, entry: Entry) -> LogRecord:
    claims, owner_epoch = entry
    key, value = encode_claim(7, f"owner {log_offset}") if claims else (b"\0\0key", b"value")
    headers = () if owner_epoch is None else owner_epoch_headers(owner_epoch)
    return LogRecord(log_offset, 1, key, value, headers)


def accepted_offsets(entries: list[Entry], start: int = 0) -> list[int]:
    """Return the log offsets that the filter accepts for a reader that begins at `start`."""
    fencing_filter = FencingFilter()
    return [
        log_offset
        for log_offset, entry in enumerate(entries)
        if log_offset >= start and fencing_filter.accepts(make_record(log_offset, entry))
    ]


def epoch_rank(owner_epoch: int | None) -> int:
    return -1 if owner_epoch is None else owner_epoch


def accepted_claims(entries: list[Entry]) -> list[int]:
    """Return the offsets of claims whose owner epoch exceeds the owner epochs of all previous accepted claims
    and of the first record."""
    highest = epoch_rank(entries[0][1]) if entries and not entries[0][0] else -1
    accepted = []
    for log_offset, (claims, owner_epoch) in enumerate(entries):
        if claims and epoch_rank(owner_epoch) > highest:
            accepted.append(log_offset)
            highest = epoch_rank(owner_epoch)
    return accepted


@given(logs)
def test_record_is_accepted_if_its_owner_epoch_is_that_of_the_last_claim(entries: list[Entry]) -> None:
    accepted = accepted_claims(entries)
    expected = []
    for log_offset, (claims, owner_epoch) in enumerate(entries):
        before = [claim for claim in accepted if claim < log_offset]
        if claims:
            if log_offset in accepted:
                expected.append(log_offset)
        elif before:
            if entries[before[-1]][1] == owner_epoch:
                expected.append(log_offset)
        elif (entries[0][1] if not entries[0][0] else None) == owner_epoch:
            expected.append(log_offset)
    assert accepted_offsets(entries) == expected


@given(st.lists(st.tuples(st.just(False), st.none()), max_size=30))
def test_log_without_claims_is_accepted_completely(entries: list[Entry]) -> None:
    assert accepted_offsets(entries) == list(range(len(entries)))


@given(logs, st.data())
def test_pruning_up_to_an_accepted_record_does_not_change_the_rest(
    entries: list[Entry], data: st.DataObject
) -> None:
    accepted = accepted_offsets(entries)
    if accepted:
        start = data.draw(st.sampled_from(accepted))
        assert accepted_offsets(entries, start) == [
            log_offset for log_offset in accepted if log_offset >= start
        ]


@given(logs, logs)
def test_records_of_a_fenced_owner_do_not_change_the_result(entries: list[Entry], more: list[Entry]) -> None:
    """Insert records and claims with lower owner epochs after a claim."""
    claim: Entry = (True, 6)
    own: Entry = (False, 6)
    fenced_entries = [entry for entry in more if entry[1] is not None]
    with_fenced = [*entries, claim, own, *fenced_entries, own]
    without = [*entries, claim, own, own]
    assert [with_fenced[i] for i in accepted_offsets(with_fenced)] == [
        without[i] for i in accepted_offsets(without)
    ]


@given(logs)
def test_accepted_owner_epochs_increase(entries: list[Entry]) -> None:
    fencing_filter = FencingFilter()
    seen: list[AcceptedClaim] = []
    for log_offset, entry in enumerate(entries):
        fencing_filter.accepts(make_record(log_offset, entry))
        if fencing_filter.claim is not None and fencing_filter.claim not in seen:
            seen.append(fencing_filter.claim)
    assert all(one.owner_epoch < next_one.owner_epoch for one, next_one in pairwise(seen))
    assert [one.owner for one in seen] == [f"owner {one.log_offset}" for one in seen]


@given(st.integers(0, 2**31 - 1), st.text(max_size=20))
def test_claim_is_decoded(owner_epoch: int, owner: str) -> None:
    key, value = encode_claim(49, owner)
    one = LogRecord(3, 1, key, value, (("other", b"x"), *owner_epoch_headers(owner_epoch)))
    assert is_claim(one)
    assert read_owner_epoch(one) == owner_epoch
    fencing_filter = FencingFilter()
    assert fencing_filter.accepts(one)
    assert fencing_filter.claim is not None
    assert fencing_filter.claim.owner_epoch == owner_epoch


def test_malformed_owner_epoch_header_is_ignored() -> None:
    for headers in (
        (),
        (("owner-epoch", None),),
        (("owner-epoch", b"\0\1"),),
        (("Owner-Epoch", b"\0\0\0\1"),),
    ):
        assert read_owner_epoch(LogRecord(0, 0, b"k", b"v", headers)) is None
