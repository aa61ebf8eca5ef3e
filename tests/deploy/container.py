"""Run the coordinator in a container, with the interface of `CoordinatorProcess`."""

import json
from pathlib import Path
from typing import Any

from tests.deploy.engine import CONFINED, DockerEngine, repeat_option
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.processes import ChildProcess


class CoordinatorContainer(CoordinatorProcess):
    """A container of the image in the host network.

    The journal is on a volume that outlives the container.
    """

    NAME = "coordinator"
    VOLUME = "coordinator-data"

    def __init__(
        self, engine: DockerEngine, image: str, directory: Path, *, port: int, http_port: int
    ) -> None:
        """Prepare a coordinator that serves brokers at `port` and HTTP at `http_port`; do not start it."""
        super().__init__(directory, port=port, http_port=http_port)
        self._engine = engine
        # Append the container's output to the log file of the base class.
        self.process = ChildProcess(
            "share-coordinator",
            engine.client("logs", "--follow", self.NAME),
            directory / "coordinator.log",
            environment=engine.environment,
        )
        settings = {
            "SHARE_COORDINATOR_LISTEN": f"127.0.0.1:{port}",
            "SHARE_COORDINATOR_HTTP": f"127.0.0.1:{http_port}",
        }
        self._command = [
            *("run", "--detach", "--name", self.NAME, "--network", "host", *CONFINED),
            *("--volume", f"{self.VOLUME}:/data", *repeat_option("--env", settings)),
            *("--health-interval", "1s", image),
        ]

    def start(self) -> None:
        """Start a new container and wait until it is ready."""
        self._engine.docker(*self._command)
        self.process.start()
        self.process.wait_ready(lambda: self.get("/readyz")[0] == 200, seconds=120)

    def kill(self) -> None:
        """Kill the container (`docker kill`), as in a power failure, and remove it, but not its volume."""
        self._engine.docker("kill", self.NAME)
        self.discard()

    def stop(self) -> None:
        """Stop the container (`docker stop`), and remove it, but not its volume."""
        self._engine.docker("stop", "--time", "40", self.NAME)
        code = self.inspect()["State"]["ExitCode"]
        assert code == 0, f"exit code {code}\n{self.process.log_tail()}"
        self.discard()

    def discard(self) -> None:
        """Remove the container in any state, but not its volume."""
        self._engine.docker("rm", "--force", self.NAME)
        self.process.kill()

    def inspect(self) -> dict[str, Any]:
        """Return the engine's description of the container."""
        (known,) = json.loads(self._engine.docker("inspect", self.NAME))
        facts: dict[str, Any] = known
        return facts
