"""Fixtures of the command-line tests."""

import logging
import os
from collections.abc import Iterator

import pytest

from tests.unit.cli.command_line import CommandLine


@pytest.fixture
def share_coordinator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    for name in os.environ:
        if name.startswith("SHARE_COORDINATOR_"):
            monkeypatch.delenv(name)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _restore_root_logger_of_serve() -> Iterator[None]:
    """Restore the root logger, which `serve` configures for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
