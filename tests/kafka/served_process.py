"""A process of ours that serves people over HTTP, started as a user starts it."""

import http.client
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kafka.processes import PROGRAM, ChildProcess

# Not how long it takes, but how long a machine with other work to do may take.
_READY_S = 120
_STOP_S = 90
_ANSWER_S = 60


class Build(NamedTuple):
    """The program to start: its command, and the environment that the command needs."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


INSTALLED = Build((PROGRAM,), {})


class ServedProcess:
    """A long-running command of `share-coordinator`. It keeps its ports over kills and starts."""

    def __init__(
        self,
        name: str,
        arguments: Iterable[str],
        settings: Mapping[str, str],
        log: Path,
        http_port: int,
        build: Build = INSTALLED,
    ) -> None:
        """Prepare to serve HTTP at `http_port`; nothing is started."""
        self.http_port = http_port
        given = (f"--set={setting}={value}" for setting, value in settings.items())
        command = [*build.command, *arguments, *given]
        self.process = ChildProcess(name, command, log, environment=build.environment)

    def start(self) -> None:
        """Start and wait until it says that it is ready."""
        self.process.start()
        self.process.wait_ready(lambda: self.get("/readyz")[0] == 200, seconds=_READY_S)

    def kill(self) -> None:
        """End it as a power cut would (kill -9)."""
        self.process.kill()

    def stop(self) -> None:
        """End it in good order (SIGTERM), which must not take for ever."""
        self.process.stop(seconds=_STOP_S)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of its answer over HTTP; (0, b"") while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
