"""Simulate a topic that accepts small batches only, so that most appends are split into several batches.

Each batch of an append may fail or be fenced.
"""

import pytest

from coordinator.errors import LogError
from coordinator.log.kafka import topic
from coordinator.log.kafka.batches import BatchedAppend
from tests.simulation.run_seeds import check_seed

# A batch has room for one record of most kinds, but not for two records.
BATCH_BYTES_MAX = 150
# The first seed suffices now. The other seeds are tried if a change of the plan changes its faults.
SEEDS = (31_017, *range(31_100, 31_140))


def test_split_append_loses_nothing_if_one_of_its_batches_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"landed": 0, "failed": 0}
    settle = BatchedAppend._settle

    def count_outcome(self: BatchedAppend, base_offset: int, error: LogError | None) -> None:
        if self._begun:
            later["landed" if error is None else "failed"] += 1
        settle(self, base_offset, error)

    monkeypatch.setattr(BatchedAppend, "_settle", count_outcome)
    monkeypatch.setattr(topic, "BROKERS_BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    for seed in SEEDS:
        assert check_seed("kafka", None, seed) is None
        if all(later.values()):
            return
    pytest.fail(f"with no seed, a second or later batch of an append failed: {later}")
