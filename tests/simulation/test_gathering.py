"""Rounds that gather, and rounds that do not, in turn and soon: whatever they do, the promises hold."""

from dataclasses import replace

import pytest

from coordinator.runtime import gathering
from tests.simulation.plan import draw
from tests.simulation.simulator import Simulator


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_keep_the_promises(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    began = gathering.Gathering.began
    commits = {False: 0, True: 0}

    def counted(self: gathering.Gathering, operations: int, *, behind: bool) -> None:
        commits[self.gathers] += 1
        began(self, operations, behind=behind)

    monkeypatch.setattr(gathering, "STAY_COMMITS", 5)
    monkeypatch.setattr(gathering, "BLOCK_COMMITS", 5)
    monkeypatch.setattr(gathering.Gathering, "began", counted)
    plan = replace(draw(seed), log="journal", journal_sync="always")
    assert Simulator(plan).run().violation is None
    assert min(commits.values()) > 0
