"""The fixture of a listener with SASL."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.serve.server import ServerLimits
from tests.unit import clock_skipping
from tests.unit.server.sasl_clients import Run, password_security
from tests.unit.server.wire import ServedCoordinator, serve_coordinator


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a scenario against a listener with SASL."""

    def run_scenario(
        scenario: Callable[[ServedCoordinator], Awaitable[Any]],
        limits: ServerLimits | None = None,
        **more: Any,
    ) -> None:
        async def serve_and_run() -> None:
            async with serve_coordinator(limits, password_security(tmp_path, **more)) as one:
                await scenario(one)

        clock_skipping.run(serve_and_run())

    return run_scenario
