"""A topic that takes small batches only: most appends go in several, and any may fail or be overtaken."""

import pytest

from coordinator.errors import LogError
from coordinator.log.kafka import topic
from coordinator.log.kafka.batches import BatchedAppend
from tests.simulation.run_seeds import verdict

# One record of most kinds, and not two.
BATCH_BYTES_MAX = 150
# The first one shows it; what a seed does changes with the plan that is drawn from it.
SEEDS = (31_017, *range(31_100, 31_140))


def test_nothing_is_lost_between_the_batches_of_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"landed": 0, "failed": 0}
    settle = BatchedAppend._settle

    def count(self: BatchedAppend, base_offset: int, error: LogError | None) -> None:
        if self._begun:
            later["landed" if error is None else "failed"] += 1
        settle(self, base_offset, error)

    monkeypatch.setattr(BatchedAppend, "_settle", count)
    monkeypatch.setattr(topic, "BROKERS_BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    for seed in SEEDS:
        assert verdict("kafka", None, seed) is None
        if all(later.values()):
            return
    pytest.fail(f"no seed made a later batch of an append fail: {later}")
