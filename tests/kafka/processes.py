"""Run child processes with a log file, and wait for conditions with a deadline.

Every child leads its own process group and is registered with the reaper (reaper.py) while it runs.
Therefore, no child survives the test process, even if the test process is killed.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")

# The `share-coordinator` command in the environment of this Python, as a user runs it.
PROGRAM = str(Path(sys.executable).with_name("share-coordinator"))

# The pause between two polls is a twentieth of the time so far. With a constant pause of 20 ms, a test that
# polls the metrics of three coordinators for two minutes used 70 % of a processor.
_POLL_MIN_S, _POLL_MAX_S = 0.02, 0.5
_LOG_TAIL_BYTES = 4_000


class ConditionTimeout(AssertionError):
    """Raised if a condition did not become true before its deadline; the message names the condition."""


def wait_until(
    condition: Callable[[], T | None], *, seconds: float, what: str, pause_max_s: float = _POLL_MAX_S
) -> T:
    """Poll `condition` for at most `seconds`, and return its first true value.

    Raises `ConditionTimeout` with the text `what` after that time. Exceptions of `condition` propagate.
    """
    began_s = time.monotonic()
    while not (value := condition()):
        elapsed_s = time.monotonic() - began_s
        if elapsed_s > seconds:
            raise ConditionTimeout(f"not within {seconds} s: {what}")
        time.sleep(min(max(elapsed_s / 20, _POLL_MIN_S), pause_max_s))
    return value


@cache
def _start_reaper() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__).with_name("reaper.py"))],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(process.communicate)
    return process


def _notify_reaper(change: str, pid: int) -> None:
    stdin = _start_reaper().stdin
    assert stdin is not None
    stdin.write(f"{change}{pid}\n")
    stdin.flush()


def raise_session_priority(pid: int) -> None:
    """Give the session of a process the priority of this process.

    Linux divides processor time among sessions first, and by process priority only within a session. If the
    sessions had equal priority, a low priority set with `nice` would have no effect on processes of other
    sessions.
    """
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    if priority:
        # If autogroup scheduling is off, the file is missing. For processes of other users, it is not
        # writable.
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(priority))


class ChildProcess:
    """A program that a test starts, kills and restarts. The program's output is appended to `log`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        """Prepare a process without starting it.

        With `piped`, standard input and output are pipes (`stdin`, `stdout`), and only standard error is
        written to the log.
        """
        self.name = name
        self.command = list(command)
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._piped = piped
        self._process: subprocess.Popen[str] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the program. `count_logged` counts only output after this start."""
        assert not self.running, f"{self.name} is running already"
        pipe = subprocess.PIPE if self._piped else None
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env=self._environment,
                text=True,
                start_new_session=True,
            )
        _notify_reaper("+", self._process.pid)
        raise_session_priority(self._process.pid)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def stdin(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    def count_logged(self, text: str) -> int:
        """Return the number of occurrences of `text` in the log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().count(text.encode())

    def log_tail(self) -> str:
        return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def wait_ready(self, ready: Callable[[], object], *, seconds: float) -> None:
        """Wait until `ready()` is true.

        Raises `ConditionTimeout`, with the end of the log, if the process ends or the deadline passes.
        """
        try:
            wait_until(
                lambda: bool(ready()) or not self.running, seconds=seconds, what=f"{self.name} is ready"
            )
        except ConditionTimeout as error:
            raise ConditionTimeout(f"{error}\n{self.log}:\n{self.log_tail()}") from None
        if not self.running:
            raise ConditionTimeout(f"{self.name} ended before it was ready\n{self.log}:\n{self.log_tail()}")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the process (SIGSTOP) while the block runs."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole process group (SIGKILL) and wait for it. Does nothing if the process has ended."""
        self._end(signal.SIGKILL, seconds=60)

    def stop(self, *, seconds: float = 90) -> None:
        """Stop the process with SIGTERM and wait; after `seconds`, kill it and raise `ConditionTimeout`."""
        try:
            self._end(signal.SIGTERM, seconds=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ConditionTimeout(f"{self.name} did not stop within {seconds} s") from None

    def _end(self, how: signal.Signals, *, seconds: float) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            # SIGKILL goes to the whole group. SIGTERM goes to the process only, which stops its own children.
            if how is signal.SIGKILL:
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
            process.wait(seconds)
        _notify_reaper("-", process.pid)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
