"""`serve`, `observe`, `relay`, `demo` and `version`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from coordinator.config import Config

KAFKA_STATE_TOPIC = "__share_group_state"

OBSERVE_FLAGS = """
\b
Settings that are often given:
  --bootstrap-servers HOST:PORT,...   the cluster to observe (required)
  --http HOST:PORT                    page, API and metrics            [127.0.0.1:9096]
  --state-topic-name NAME             the topic to follow              [__share_group_state]

It needs the ACLs Describe and Read on the state topic. With Describe on user topics and on groups it also
shows topic names, lag and members. It changes nothing in the cluster.
"""

RELAY_FLAGS = """
\b
Settings that are often given:
  --relay-listen HOST:PORT        where brokers connect to this broker [0.0.0.0:9094]
  --relay-broker HOST:PORT        the broker's own listener            [127.0.0.1:19094]
  --relay-coordinator HOST:PORT   the share coordinator                [127.0.0.1:9095]
  --relay-security-protocol SASL_PLAINTEXT|SASL_SSL|SSL|PLAINTEXT      [SASL_PLAINTEXT]
  --relay-allowed-principals "User:a;User:b"   principals of brokers     [none]
"""


def serve(ctx: typer.Context, config: flags.ConfigFile = None, settings: flags.Set = None) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; a second signal stops it at once."""
    loaded = _load_settings_of_process(ctx, config, settings)
    from coordinator import fastpath
    from coordinator.app import serve as serve_until_stopped
    from coordinator.compiled_sources import PURE_PYTHON_ENV, is_pure_python

    if fastpath.compiled is None:
        logging.getLogger("coordinator.fastpath").warning(
            "The compiled module is not in use (%s). A request takes about 20 times as long. "
            "Install a C compiler and reinstall the coordinator.",
            f"{PURE_PYTHON_ENV} is set" if is_pure_python() else "it was not built",
        )
    raise typer.Exit(serve_until_stopped(loaded))


def observe(ctx: typer.Context, config: flags.ConfigFile = None, settings: flags.Set = None) -> None:
    """Show the share groups of a cluster that uses Kafka's own share coordinator. Read-only."""
    defaults = {"log": "kafka", "share.coordinator.state.topic.name": KAFKA_STATE_TOPIC}
    loaded = _load_settings_of_process(ctx, config, settings, defaults)
    from coordinator.observer import serve_observer

    raise typer.Exit(serve_observer(loaded))


def relay(ctx: typer.Context, config: flags.ConfigFile = None, settings: flags.Set = None) -> None:
    """Forward a broker's share-state requests to a coordinator.

    The relay takes the place of the broker's inter-broker listener. All other requests go to the broker.
    """
    loaded = _load_settings_of_process(ctx, config, settings)
    from coordinator.serve.relay import serve_relay

    raise typer.Exit(serve_relay(loaded))


def _load_settings_of_process(
    ctx: typer.Context,
    file: Path | None,
    settings: list[str] | None,
    defaults: Mapping[str, str] | None = None,
) -> "Config":
    """Return the settings of a long-running process, after logging is set up. Raises ConfigError."""
    from coordinator.process.logging_setup import set_up_logging

    loaded = flags.load_settings(ctx.args, file, settings, defaults)
    set_up_logging(loaded.config.log_level, loaded.config.log_format)
    return loaded.config


def demo(
    bootstrap: Annotated[
        str,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="The address of a running coordinator."),
    ] = "127.0.0.1:9095",
    client_config: Annotated[
        Path | None,
        typer.Option(
            "--coordinator-config",
            metavar="FILE",
            help=f"{flags.HOW_TO_CONNECT} Default: plaintext without login.",
        ),
    ] = None,
) -> None:
    """Act as a share-partition leader of a running coordinator and print each step."""
    from coordinator.cli.demo import run_demo
    from coordinator.config import Config

    run_demo(bootstrap, flags.load_security(client_config, Config()))


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the version and whether the compiled module is in use."""
    import platform
    from importlib.metadata import version as release_of

    from coordinator import fastpath

    release, python = release_of("share-coordinator"), platform.python_version()
    fast_path = "pure Python" if fastpath.compiled is None else "compiled"
    if output is Output.JSON:
        print_json({"version": release, "python": python, "fast_path": fast_path})
    else:
        typer.echo(f"share-coordinator {release} (Python {python}, fast path: {fast_path})")
