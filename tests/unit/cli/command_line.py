"""Run the command line in the test process."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from coordinator.cli import main


class CommandResult(NamedTuple):
    exit_code: object
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of stdout."""
        return [line.split() for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Runs `share-coordinator` with arguments; returns its exit code, stdout and stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *args: str) -> CommandResult:
        self._monkeypatch.setattr(sys, "argv", ["share-coordinator", *args])
        with _restore_logging(), pytest.raises(SystemExit) as caught:
            main()
        out, err = self._capsys.readouterr()
        return CommandResult(caught.value.code, out, err)


@contextmanager
def _restore_logging() -> Iterator[None]:
    """Restore the logging configuration, which a command changes for the whole process."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, levels = root.handlers[:], (root.level, uvicorn.level)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        uvicorn.setLevel(levels[1])
