"""`relay`: run a relay in front of a broker."""

import logging

import typer

from coordinator.cli import settings_flags as flags

RELAY_FLAGS = """
\b
Settings that are often given:
  --relay-listen HOST:PORT        where brokers connect to this broker [0.0.0.0:9094]
  --relay-broker HOST:PORT        the broker's own listener            [127.0.0.1:19094]
  --relay-coordinator HOST:PORT   the share coordinator                [127.0.0.1:9095]
  --relay-security-protocol SASL_PLAINTEXT|SASL_SSL|SSL|PLAINTEXT      [SASL_PLAINTEXT]
  --relay-allowed-principals "User:a;User:b"   principals of brokers     [none]
"""


def relay(
    ctx: typer.Context,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
) -> None:
    """Forward a broker's share-state requests to a coordinator.

    The relay takes the place of the broker's inter-broker listener. All other requests go to the broker.
    """
    loaded = flags.load_settings(ctx.args, config, settings)
    from coordinator.process.logging_setup import set_up_logging
    from coordinator.serve.relay import serve_relay as relay_until_stopped

    set_up_logging(loaded.config.log_level, loaded.config.log_format)
    for note in loaded.notes:
        logging.getLogger("coordinator.config").warning("%s", note)
    raise typer.Exit(relay_until_stopped(loaded.config))
