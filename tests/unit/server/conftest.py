"""The fixture of a listener with SASL."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.server import ServerLimits
from tests.unit import clock_skipping
from tests.unit.server.sasl_clients import Run, password_security
from tests.unit.server.wire import Served, served


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a scenario against a listener with SASL."""

    def one(
        scenario: Callable[[Served], Awaitable[Any]], limits: ServerLimits | None = None, **more: Any
    ) -> None:
        async def whole() -> None:
            async with served(limits, password_security(tmp_path, **more)) as one:
                await scenario(one)

        clock_skipping.run(whole())

    return one
