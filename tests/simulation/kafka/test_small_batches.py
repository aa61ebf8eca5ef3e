"""Simulate a topic that accepts small batches only, so that most appends are split into several batches.

Each batch of an append may fail or be fenced.
"""

import pytest

from coordinator.errors import LogError
from coordinator.log.kafka import topic
from coordinator.log.kafka.appends import Appender, AppendInFlight
from tests.simulation.run_seeds import check_seed

# A batch has room for one record of most kinds, but not for two records.
BATCH_BYTES_MAX = 150
# The faults of the first seed suffice now. The test tries the other seeds if a change of the plan changes
# these faults.
SEEDS = (31_121, *range(31_100, 31_140))


def test_split_append_loses_nothing_if_one_of_its_batches_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    later_batches = {"succeeded": 0, "failed": 0}
    record_result, end = Appender._record_result, Appender._fail_append

    def count_succeeded(self: Appender, append: AppendInFlight, base_offset: int) -> None:
        later_batches["succeeded"] += append.begun
        record_result(self, append, base_offset)

    def count_failed(self: Appender, append: AppendInFlight, error: LogError) -> None:
        later_batches["failed"] += append.begun
        end(self, append, error)

    monkeypatch.setattr(Appender, "_record_result", count_succeeded)
    monkeypatch.setattr(Appender, "_fail_append", count_failed)
    monkeypatch.setattr(topic, "BROKERS_BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    for seed in SEEDS:
        assert check_seed("kafka", None, seed) is None
        if all(later_batches.values()):
            return
    pytest.fail(f"with no seed, a second or later batch of an append failed: {later_batches}")
