"""Test that a seed has the same trace with the compiled fast path and with the Python implementation."""

import pytest

from coordinator import fastpath
from tests.simulation.run_seeds import KINDS

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="it was not built: is there a C compiler?"
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [3, 5, 8])
def test_compiled_fast_path_and_python_have_the_same_trace(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = []
    for module in (compiled, None):
        monkeypatch.setattr(fastpath, "compiled", module)
        outcome = KINDS[kind](seed, None)
        assert outcome.violation is None
        traces.append(str(outcome.trace))
    assert traces[0] == traces[1]
