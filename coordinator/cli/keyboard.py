"""Read single keys from the terminal while a command refreshes its screen."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Event
from typing import Protocol


class KeySource(Protocol):
    """A source of keys."""

    def wait(self, timeout_s: float) -> str:
        """Return the next key, or "" after a timeout."""
        ...


class _TerminalKeySource:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self, timeout_s: float) -> str:
        import os
        import select

        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        return os.read(self._descriptor, 1).decode("ascii", "replace") if ready else ""


class _EmptyKeySource:
    def wait(self, timeout_s: float) -> str:
        Event().wait(timeout_s)
        return ""


@contextmanager
def open_keyboard() -> Iterator[KeySource]:
    """Provide the keys of standard input; none if it is not a terminal or the system is not POSIX."""
    descriptor = _terminal_descriptor()
    if descriptor is None:
        yield _EmptyKeySource()
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        # Keys are read without Enter and not echoed; Ctrl-C still interrupts.
        tty.setcbreak(descriptor)
        yield _TerminalKeySource(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _terminal_descriptor() -> int | None:
    try:
        if find_spec("termios") is not None and sys.stdin.isatty():
            return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        # Standard input is closed or not a file, so no keys can be read.
        pass
    return None
