"""`demo`: act as a share-partition leader against a coordinator, and explain each step.

`--own` starts a coordinator in memory for the duration of the demo.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli import settings_flags as flags

ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-config",
        metavar="FILE",
        help=f"{flags.HOW_TO_CONNECT} Default: plaintext without login.",
    ),
]

_SERVING = "share coordinator on "
_STOP_TIMEOUT_S = 30


def demo(
    bootstrap: Annotated[
        str,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="The address of a running coordinator."),
    ] = "127.0.0.1:9095",
    own: Annotated[bool, typer.Option("--own", help="Start a coordinator in memory for the demo.")] = False,
    client_config: ClientConfig = None,
) -> None:
    """Act as a share-partition leader of a running coordinator and print each step."""
    from coordinator.cli.demo import run
    from coordinator.config import Config

    security = flags.client_security(client_config, Config())
    if own:
        with run_own_coordinator() as bootstrap:
            raise typer.Exit(run(bootstrap))
    raise typer.Exit(run(bootstrap, security=security))


@contextmanager
def run_own_coordinator() -> Iterator[str]:
    """Run a coordinator in memory in another process; yield its address.

    If the coordinator does not start, raises CoordinatorError with the last line of the coordinator's output.
    """
    address = f"127.0.0.1:{_free_port()}"
    # The settings are passed as flags, because environment variables may be meant for another coordinator.
    settings = {
        "--log": "memory",
        "--listen": address,
        "--advertise": address,
        "--http": "127.0.0.1:0",
        "--logging-format": "text",
        "--logging-level": "info",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator", "serve", *(part for pair in settings.items() for part in pair)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until_it_serves(process)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_TIMEOUT_S)


def _wait_until_it_serves(process: "subprocess.Popen[str]") -> None:
    from coordinator.errors import CoordinatorError

    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said = line.strip() or said
        if _SERVING in line:
            return
    raise CoordinatorError(f"the coordinator did not start: {said}")


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
