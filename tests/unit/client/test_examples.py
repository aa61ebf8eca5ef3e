"""The client examples of the documentation run unchanged."""

import asyncio
import re
import textwrap
from pathlib import Path

import pytest

import coordinator.client
from tests.unit import clock_skipping
from tests.unit.client.our_coordinator import serve_real_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

GUIDE = Path(__file__).parents[3] / "docs" / "client.md"
ADDRESS = "127.0.0.1:9095"


def docstring_example() -> str:
    """Return the example in the docstring of `coordinator.client`."""
    lines = (coordinator.client.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if not line or line.startswith("    ")))


def guide_example() -> str:
    """Return the first example of docs/client.md."""
    found = re.search(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        (docstring_example(), r"StateSummary\(.*start_offset=0.*\)\nmy-share-group:.* \(INVALID_REQUEST\)\n"),
        (guide_example(), r"StateSummary\(.*start_offset=0.*\)\n"),
    ],
    ids=["docstring", "guide"],
)
async def test_documented_example_runs(
    capsys: pytest.CaptureFixture[str], example: str, printed: str
) -> None:
    assert ADDRESS in example
    async with serve_real_coordinator() as address:
        await asyncio.to_thread(exec, example.replace(ADDRESS, address), {})
    assert re.fullmatch(printed, capsys.readouterr().out)
