"""The keys of `top` on a real terminal: q and Ctrl-C quit, s changes the sort order."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from select import select

import pytest

from coordinator.process.clock import seconds_since_boot
from tests.unit.admin.admin_server import serve_admin

TIMEOUT_S = 120


class TopTerminal:
    """A process `share-coordinator top` in a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self._terminal, other_end = pty.openpty()
        command = [sys.executable, "-m", "coordinator", "top", "--url", url, "--interval", "0.2"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        # A process that a script starts in the background ignores SIGINT, and so do its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=other_end,
                stdout=other_end,
                stderr=other_end,
                env=environment,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        os.close(other_end)
        self.shown = b""

    def wait_for_text(self, text: bytes) -> None:
        deadline_s = seconds_since_boot() + TIMEOUT_S
        while text not in self.shown:
            assert seconds_since_boot() < deadline_s, self.shown
            if select([self._terminal], [], [], 1.0)[0]:
                self.shown += os.read(self._terminal, 65536)

    def press_key(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def wait_for_exit(self) -> int:
        """Return the exit code. Read the terminal until then, so that the process does not block on a
        write."""
        deadline_s = seconds_since_boot() + TIMEOUT_S
        while self.process.poll() is None:
            assert seconds_since_boot() < deadline_s, self.shown
            if select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._terminal, 65536)
                except OSError:
                    # On Linux, a read fails with EIO after the process has closed its end.
                    return self.process.wait(TIMEOUT_S)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._terminal)


@pytest.fixture
def interruptible_children() -> Iterator[None]:
    """Let child processes receive SIGINT. A shell ignores it for the processes that it starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def top_terminal(interruptible_children: None) -> Iterator[TopTerminal]:
    with serve_admin() as coordinator:
        it = TopTerminal(coordinator.url)
        try:
            it.wait_for_text(b"IN-FLIGHT v")
            yield it
        finally:
            it.close()


def test_s_changes_the_sort_order_and_q_quits(top_terminal: TopTerminal) -> None:
    top_terminal.press_key(b"s")
    top_terminal.wait_for_text(b"DELIVERIES v")
    top_terminal.press_key(b"q")
    assert top_terminal.wait_for_exit() == 0
    assert b"Aborted" not in top_terminal.shown


def test_sigint_ends_top_with_exit_code_0(top_terminal: TopTerminal) -> None:
    os.kill(top_terminal.process.pid, signal.SIGINT)
    assert top_terminal.wait_for_exit() == 0
