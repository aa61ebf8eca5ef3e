"""Fixtures of the command-line tests."""

import os

import pytest

from tests.unit.cli.command_line import CommandLine


@pytest.fixture
def share_coordinator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    for name in os.environ:
        if name.startswith("SHARE_COORDINATOR_"):
            monkeypatch.delenv(name)
    return CommandLine(monkeypatch, capsys)
