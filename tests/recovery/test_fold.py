"""The vectorised fold against the shard core: any log, any cuts, any grouping."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recovery.logs import (
    Entry,
    comparable,
    core_rows,
    core_states,
    folded,
    kafkas_logs,
    our_logs,
    settled_states,
    stored,
    vector_states,
)

any_logs = kafkas_logs | our_logs


def cuts(data: st.DataObject, batches: list[bytes]) -> list[list[bytes]]:
    """Cut a log into stretches, some of them empty."""
    places = data.draw(st.lists(st.integers(0, len(batches)), max_size=4).map(sorted))
    return [batches[begin:end] for begin, end in pairwise([0, *places, len(batches)])]


@given(any_logs)
@settings(deadline=None)
def test_a_log_folds_to_what_the_shard_core_holds(log: list[Entry]) -> None:
    batches = stored(log)
    assert comparable(vector_states([[batches]])) == core_rows(core_states(batches))


@given(any_logs, st.data())
@settings(max_examples=300, deadline=None)
def test_ranges_and_chunks_do_not_matter(log: list[Entry], data: st.DataObject) -> None:
    batches = stored(log, base_offset=data.draw(st.sampled_from([0, 5])))
    ranges = [cuts(data, stretch) for stretch in cuts(data, batches)]
    found = folded(ranges)
    data.draw(st.randoms(use_true_random=False)).shuffle(found)
    assert comparable(settled_states(found)) == core_rows(core_states(batches))
