"""The command line, called in this process."""

import sys
from typing import NamedTuple

import pytest

from coordinator.cli import main


class Outcome(NamedTuple):
    exit_code: object
    out: str
    err: str


class CommandLine:
    """Runs `share-coordinator` with arguments, and gives its exit code and what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *args: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["share-coordinator", *args])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = self._capsys.readouterr()
        return Outcome(caught.value.code, out, err)
