"""The number of appends that one commit takes."""

import pytest

from coordinator.log.journal.pending import COMMIT_BYTES_MAX, Append, new_append, take_frame_entries


def make_append(size_bytes: int) -> Append:
    """Return an append whose entry has `size_bytes` bytes."""

    def on_append_done(base_offset: int, error: Exception | None) -> None:
        raise AssertionError("this append is never written")

    entry_bytes = len(new_append(3, 5, 7, [(b"k", bytes(size_bytes))], on_append_done).entry)
    # Subtract the overhead of the entry from the size of the value.
    return new_append(3, 5, 7, [(b"k", bytes(2 * size_bytes - entry_bytes))], on_append_done)


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([300, 1000], 2, id="small"),
        pytest.param([COMMIT_BYTES_MAX // 2] * 3, 2, id="filled to the last byte"),
        pytest.param([COMMIT_BYTES_MAX // 2, COMMIT_BYTES_MAX // 2 + 1], 1, id="one byte too many"),
        pytest.param([COMMIT_BYTES_MAX + 1, 300], 1, id="a larger one alone"),
    ],
)
def test_commit_takes_the_first_appends_up_to_its_limit(sizes: list[int], taken: int) -> None:
    pending = [make_append(size_bytes) for size_bytes in sizes]
    entries, frame_bytes = take_frame_entries(pending)
    assert entries == [append.entry for append in pending[:taken]]
    assert list(map(len, entries)) == sizes[:taken]
    assert frame_bytes > sum(sizes[:taken])
