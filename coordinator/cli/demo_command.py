"""`demo`: the story of a share-partition leader, played against a coordinator.

With `--own` the coordinator is one of our own, in memory, that lives as long as the demo: nothing has to be
running.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption

ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-config",
        metavar="FILE",
        help=f"{flags.HOW_TO_CONNECT} By default without TLS and without a login.",
    ),
]

_SERVING = "share coordinator on "
_STOP_TIMEOUT_S = 30


def demo(
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="A running coordinator.")
    ] = "127.0.0.1:9095",
    own: Annotated[
        bool, typer.Option("--own", help="Start a coordinator in memory, and stop it at the end.")
    ] = False,
    client_config: ClientConfig = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Play a share-partition leader against a running coordinator and print what happens."""
    from coordinator.config import Config
    from coordinator.demo import run

    security = flags.client_security(client_config, Config())
    if own:
        with run_own_coordinator() as bootstrap:
            raise typer.Exit(run(bootstrap, json_lines=output is Output.JSON))
    raise typer.Exit(run(bootstrap, json_lines=output is Output.JSON, security=security))


@contextmanager
def run_own_coordinator() -> Iterator[str]:
    """Run a coordinator in memory as a process of its own; gives its address.

    Raises CoordinatorError, with the last thing that it said, if it does not come up.
    """
    address = f"127.0.0.1:{_free_port()}"
    # All that matters here is said by flags: the environment may hold the settings of another coordinator.
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
    raise CoordinatorError(f"no coordinator could be started: {said}")


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
