"""Test that `raw_log` and `coordinator.log.claims` accept the same records of a log."""

from random import Random

import pytest

from coordinator.log.claims import FencingFilter, encode_claim, owner_epoch_headers
from protocol.record_batch import decode_batches, encode_batch
from tests.simulation.history import Violation
from tests.simulation.kafka.raw_log import accepted_records, check_single_owner, read_records

CLAIM, RECORD = True, False
KEY = b"\x00\x01any key"


def make_batches(*written: tuple[bool, int | None, str], first: int = 0) -> list[tuple[str, bytes]]:
    """Return batches of one record each, from tuples of (is a claim, owner epoch, name of the writer)."""
    batches = []
    for log_offset, (is_claim, owner_epoch, writer) in enumerate(written, first):
        record = encode_claim(0, writer) if is_claim else (KEY, b"value")
        headers = () if owner_epoch is None else owner_epoch_headers(owner_epoch)
        batches.append((writer, encode_batch(log_offset, 1, [record], headers)))
    return batches


def accepted_offsets(*written: tuple[bool, int | None, str]) -> list[int]:
    return [one.record.offset for one in accepted_records(read_records(make_batches(*written)))]


def test_records_and_claims_with_an_old_owner_epoch_are_not_accepted() -> None:
    assert accepted_offsets(
        (CLAIM, 1, "a"),
        (RECORD, 1, "a"),
        (CLAIM, 2, "b"),
        (RECORD, 1, "a"),
        (CLAIM, 2, "a"),
        (RECORD, 2, "b"),
    ) == [0, 1, 2, 5]


def test_owner_epoch_of_the_first_record_counts_as_claimed_in_a_pruned_log() -> None:
    assert accepted_offsets((RECORD, 5, "a"), (CLAIM, 5, "b"), (RECORD, 4, "b"), (CLAIM, 6, "b")) == [0, 3]


def test_records_without_owner_epoch_are_accepted_until_the_first_claim() -> None:
    assert accepted_offsets((RECORD, None, ""), (RECORD, None, ""), (CLAIM, 1, "a"), (RECORD, None, "")) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("seed", range(200))
def test_both_implementations_accept_the_same_records(seed: int) -> None:
    rng = Random(seed)
    written = [
        (rng.random() < 0.3, rng.choice((None, 1, 2, 3, 4)), rng.choice("abc"))
        for _ in range(rng.randrange(1, 12))
    ]
    if written[0][0] and written[0][1] is None:
        written[0] = (CLAIM, 1, "a")
    fencing_filter = FencingFilter()
    expected = [
        record.offset
        for _, data in make_batches(*written)
        for batch in decode_batches(data)
        for record in batch.records
        if fencing_filter.accepts(record)
    ]
    assert accepted_offsets(*written) == expected


def test_accepted_record_of_a_process_that_is_not_the_owner_is_a_violation() -> None:
    written_by_owners = read_records(
        make_batches((CLAIM, 1, "a"), (RECORD, 1, "a"), (CLAIM, 2, "b"), (RECORD, 2, "b"))
    )
    check_single_owner(accepted_records(written_by_owners), 0)
    claimed_twice = read_records(make_batches((CLAIM, 1, "a"), (CLAIM, 1, "b"), (RECORD, 1, "b")))
    with pytest.raises(Violation):
        check_single_owner(accepted_records(claimed_twice), 0)
