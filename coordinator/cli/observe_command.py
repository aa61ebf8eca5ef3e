"""`observe`: run an observer of Kafka's own share coordinator."""

import logging

import typer

from coordinator.cli import settings_flags as flags

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


def observe(
    ctx: typer.Context,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
) -> None:
    """Show the share groups of a cluster that uses Kafka's own share coordinator. Read-only."""
    defaults = {"log": "kafka", "share.coordinator.state.topic.name": KAFKA_STATE_TOPIC}
    loaded = flags.load_settings(ctx.args, config, settings, defaults)
    from coordinator.observer import serve_observer as observe_until_stopped
    from coordinator.process.logging_setup import set_up_logging

    set_up_logging(loaded.config.log_level, loaded.config.log_format)
    for note in loaded.notes:
        logging.getLogger("coordinator.config").warning("%s", note)
    raise typer.Exit(observe_until_stopped(loaded.config))
