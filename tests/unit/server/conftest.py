"""The fixture of a listener with SASL."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from coordinator.serve.server import ServerLimits
from tests.unit.server.sasl_clients import ServeWithSasl, password_security
from tests.unit.server.wire import ServedCoordinator, serve_coordinator


@pytest.fixture
def serve_with_sasl(tmp_path: Path) -> ServeWithSasl:
    """Return a function that serves on a listener with SASL until the end of an `async with` block."""

    def serve(
        limits: ServerLimits | None = None, **security: Any
    ) -> AbstractAsyncContextManager[ServedCoordinator]:
        return serve_coordinator(limits, password_security(tmp_path, **security))

    return serve
