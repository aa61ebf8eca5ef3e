"""A seed's story is the same whether fast-path writes go the compiled way or the general one."""

import pytest

from coordinator import fastpath
from tests.simulation.run_seeds import KINDS

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="it was not built: is there a C compiler?"
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [3, 5, 8])
def test_both_ways_tell_the_same_story(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for module in (compiled, None):
        monkeypatch.setattr(fastpath, "compiled", module)
        outcome = KINDS[kind](seed, None)
        assert outcome.violation is None
        told.append(str(outcome.trace))
    assert told[0] == told[1]
