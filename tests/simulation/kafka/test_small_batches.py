"""Simulate a topic with a small max.message.bytes, so that most appends are split into several batches."""

import pytest

from coordinator.errors import LogError
from coordinator.log.kafka import topic
from coordinator.log.kafka.appends import Appender, AppendInFlight
from tests.simulation.run_seeds import check_seed

# Most single records fit into a batch of this size, but two records do not.
BATCH_BYTES_MAX = 150
# In the simulation with the first seed, a later batch of a split append fails. If a change of the simulation
# removes these faults from the first seed, the other seeds are tried.
SEEDS = (31_121, *range(31_100, 31_140))


def test_history_has_no_violation_if_a_later_batch_of_a_split_append_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later_batches = {"succeeded": 0, "failed": 0}
    record_result, fail_append = Appender._record_result, Appender._fail_append

    def count_succeeded(self: Appender, append: AppendInFlight, base_offset: int) -> None:
        later_batches["succeeded"] += append.is_partly_stored
        record_result(self, append, base_offset)

    def count_failed(self: Appender, append: AppendInFlight, error: LogError) -> None:
        later_batches["failed"] += append.is_partly_stored
        fail_append(self, append, error)

    monkeypatch.setattr(Appender, "_record_result", count_succeeded)
    monkeypatch.setattr(Appender, "_fail_append", count_failed)
    monkeypatch.setattr(topic, "BROKERS_BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    for seed in SEEDS:
        assert check_seed("kafka", None, seed) is None
        if all(later_batches.values()):
            return
    pytest.fail(f"no seed has a later batch that succeeds and one that fails: {later_batches}")
