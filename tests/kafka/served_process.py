"""Run a process of the project that has an HTTP endpoint, with the installed command."""

import http.client
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.kafka.processes import PROGRAM, ChildProcess

# The maximum number of seconds until /readyz succeeds, on a busy machine.
_READY_S = 120
_STOP_S = 90
_ANSWER_S = 60


class ProgramBuild(NamedTuple):
    """The program to start: its command, and the environment variables that the command needs."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


INSTALLED = ProgramBuild((PROGRAM,), {})


class ServedProcess:
    """A long-running `share-coordinator` command, which keeps its ports over kills and restarts.

    The process runs in a `with` block, or from `start` to `kill` or `stop`.
    """

    def __init__(
        self,
        name: str,
        arguments: Iterable[str],
        settings: Mapping[str, str],
        log: Path,
        http_port: int,
        build: ProgramBuild = INSTALLED,
    ) -> None:
        """Prepare a process that serves HTTP at `http_port`, without starting it."""
        self.http_port = http_port
        given = (f"--set={setting}={value}" for setting, value in settings.items())
        command = [*build.command, *arguments, *given]
        self.process = ChildProcess(name, command, log, environment=build.environment)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process and wait until /readyz succeeds."""
        self.process.start()
        self.process.wait_ready(lambda: self.get("/readyz")[0] == 200, seconds=_READY_S)

    def kill(self) -> None:
        """Kill the process with SIGKILL, as in a power failure."""
        self.process.kill()

    def stop(self) -> None:
        """Stop the process with SIGTERM, which must succeed before a deadline."""
        self.process.stop(seconds=_STOP_S)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return the status code and the body of a GET request, or (0, b"") without a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
