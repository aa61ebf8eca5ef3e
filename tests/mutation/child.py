"""Run tests against one mutant, in a forked process that has already imported the libraries."""

import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutation.executed_lines import PROFILE

# Libraries that the tests import. They are imported once, before the first fork; each process imports
# the product and the tests.
_LIBRARIES = (
    *("aiokafka", "cryptography.x509", "fastapi", "httpx", "hypothesis.stateful", "jwt", "numpy"),
    *("prometheus_client", "pyarrow.compute", "pytest_timeout", "rich.console", "scramp", "typer"),
    *("uvicorn", "uvloop", "yaml"),
)
_MEMORY_MAX = 4 << 30


def import_libraries() -> None:
    for name in _LIBRARIES:
        import_module(name)


class Child:
    """A process that runs tests against a mutant. `result` is None while it runs."""

    def __init__(self, path: Path, code: CodeType, tests: list[str], folder: Path, cpu_s: float) -> None:
        """Start it. It may use `cpu_s` of CPU time, and ten times as much time on a busy machine."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ends_s = time.monotonic() + 10 * cpu_s
        self.pid = os.fork()
        if not self.pid:
            _run_tests(path, code, tests, folder, round(cpu_s))
        self.log = folder / "output.txt"

    def failed_test(self) -> str:
        """Return the name of the test that failed; empty if the process ended without a test's failure."""
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith(("FAILED tests/", "ERROR tests/")):
                return line.split()[1]
        return ""

    def poll(self) -> str | None:
        """Return "survived", "killed" or "timeout" if the process has ended, else None."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self._kill_group()
            # 5 means that pytest found no test.
            code = os.waitstatus_to_exitcode(status)
            return "survived" if code in (0, 5) else "timeout" if code < 0 else "killed"
        if time.monotonic() < self._ends_s:
            return None
        self.stop()
        return "timeout"

    def stop(self) -> None:
        """End the process."""
        self._kill_group()
        os.waitpid(self.pid, 0)

    def _kill_group(self) -> None:
        """End the processes that the tests have started, too."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _run_tests(path: Path, code: CodeType, tests: list[str], folder: Path, cpu_s: int) -> None:
    code_of_file = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        return code if Path(self.path) == path else code_of_file(self, fullname)

    status: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        (folder / "tests.txt").write_text("\n".join(tests))
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
        status = pytest.main(
            [
                *("-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "tests.mutation.executed_lines"),
                *("--timeout", "120", "--hypothesis-profile", PROFILE, "--basetemp", str(folder / "tmp")),
                # The libraries with plugins are already imported.
                *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
                f"@{folder / 'tests.txt'}",
            ]
        )
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
