"""`recovery diff | explain`: compare a log with a live coordinator; show the history of a share-partition."""

from contextlib import closing
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.admin_options import Ca, Cert, Key, TokenFile
from coordinator.cli.output import (
    Output,
    OutputOption,
    format_error,
    print_error,
    print_json,
    print_line,
    print_table,
)

EXIT_DIFFERENT = 1
EXIT_COULD_NOT_COMPARE = 3
DIFFERENT_SHOWN_MAX = 20
# The number of arguments after `--`, in the context of a command.
_LITERALS = "share_coordinator.literals"


Live = Annotated[
    str, recovery.make_option("--live", "HOST:PORT", "The live coordinator. Default: --bootstrap-servers.")
]
Url = Annotated[
    str,
    recovery.make_option(
        "--url", "URL", "The coordinator's HTTP address; also reports states that the log lacks."
    ),
]


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def diff(
    ctx: typer.Context,
    source: recovery.From,
    live: Live = "",
    live_config: flags.CoordinatorConfig = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only this share group; may be repeated.")
    ] = None,
    url: Url = "",
    token_file: TokenFile = "",
    ca: Ca = "",
    cert: Cert = "",
    key: Key = "",
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    limit: recovery.Limit = 1_000,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the states in a log with those of a live coordinator, this one or Kafka's own.

    Nothing is changed on either side, and concurrent writes are no difference. Exit codes: 0 equal, 1
    different, 3 some states could not be compared.
    """
    from coordinator.errors import ConfigError, CoordinatorError

    opened = recovery.open_source(source, ctx.args, config, settings)
    loaded = flags.load_settings(ctx.args, config, settings).config
    live = live or loaded.bootstrap_servers
    if not live:
        raise ConfigError("--live", "", "HOST:PORT of a coordinator, or of a broker that names it")
    coordinator = recovery.parse_live_coordinator(live, flags.load_security(live_config, loaded))
    from coordinator.recovery.live_comparison import diff as compare_states

    try:
        with closing(recovery.open_engine(engine, master, processes)) as worker:
            # List first, so that state which is initialised later is not reported as missing in the log.
            listed = [
                *_list_coordinator_keys(url, token_file=token_file, ca=ca, cert=cert, key=key),
                *_list_group_keys(loaded),
            ]
            found = compare_states(
                worker, opened, coordinator, groups=group or (), listed=listed, limit=limit
            )
    except ConfigError:
        raise
    except (CoordinatorError, OSError) as error:
        print_error(f"the comparison failed: {format_error(error)}")
        raise typer.Exit(EXIT_COULD_NOT_COMPARE) from None
    if output is Output.JSON:
        print_json(_make_json_values(found))
    else:
        _print_diff(found)
    if found.different:
        raise typer.Exit(EXIT_DIFFERENT)
    if found.unknown or found.unlisted:
        raise typer.Exit(EXIT_COULD_NOT_COMPARE)


def _list_coordinator_keys(url: str, **files: str) -> list[Any]:
    """Return the share-partitions that this project's coordinator lists over HTTP.

    Raises CoordinatorError.
    """
    if not url:
        return []
    from coordinator.cli.admin_client import AdminClient
    from protocol.state_records import SharePartitionKey, parse_topic_id

    items = AdminClient(url, **files).list_items("/api/v1/share-partitions")
    return [
        SharePartitionKey(item["group"], parse_topic_id(item["topic_id"]), item["partition"])
        for item in items
    ]


def _list_group_keys(config: Any) -> list[Any]:
    """Return the share-partitions of the cluster's groups, if the cluster returns them."""
    if not config.bootstrap_servers:
        return []
    from coordinator.errors import LogError
    from coordinator.recovery.external_checks import list_initialised_keys
    from coordinator.recovery.sources.topic_access import make_topic_options

    try:
        return list_initialised_keys(**make_topic_options(config))
    except LogError as error:
        recovery.print_warning(f"the groups of the cluster could not be listed: {format_error(error)}")
        return []


def _print_diff(found: Any) -> None:
    for note in found.manifest["notes"]:
        recovery.print_warning(note)
    recovery.print_lost_offsets(found.manifest["damages"])
    for each in found.different[:DIFFERENT_SHOWN_MAX]:
        print_line(f"{each.key} (state partition {each.state_partition}): {each.what}")
    if len(found.different) > DIFFERENT_SHOWN_MAX:
        print_line(f"... and {len(found.different) - DIFFERENT_SHOWN_MAX} more")
    for key, reason in list(found.unknown.items())[:DIFFERENT_SHOWN_MAX]:
        recovery.print_warning(f"{key} is not known: {reason}")
    print_line(
        f"{found.compared} share-partitions: {found.equal} equal, "
        f"{found.equal_later} equal at a later offset, {len(found.different)} different, "
        f"{len(found.unknown) + found.unlisted} not known"
    )
    if found.unlisted:
        recovery.print_warning(f"{found.unlisted} were not examined (--limit)")
    if found.batches_unknown:
        recovery.print_warning(
            f"the state batches of {found.batches_unknown} could not be read without raising their leader "
            "epoch"
        )


def _make_json_values(found: Any) -> dict[str, Any]:
    return {
        "compared": found.compared,
        "equal": found.equal,
        "equal_later": found.equal_later,
        "different": [
            {
                "share_partition": str(each.key),
                "state_partition": each.state_partition,
                "what": each.what,
            }
            for each in found.different
        ],
        "unknown": {str(key): reason for key, reason in found.unknown.items()},
        "batches_unknown": found.batches_unknown,
        "unlisted": found.unlisted,
        "manifest": found.manifest,
    }


class _ExplainCommand(TyperCommand):
    """Counts the arguments after `--`, because a group name may begin with `--`, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        ctx.meta[_LITERALS] = len(args) - args.index("--") - 1 if "--" in args else 0
        return super().parse_args(ctx, args)


@recovery.recovery_app.command(
    cls=_ExplainCommand, context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS
)
def explain(
    ctx: typer.Context,
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="GROUP TOPIC PARTITION [OFFSET]",
            help="A share-partition, and a record. The topic is an id, or a name with --bootstrap-servers. "
            "Put -- before a group that begins with --.",
        ),
    ],
    *,
    source: recovery.From,
    as_of_offset: recovery.AsOfOffset = None,
    as_of_time: recovery.AsOfTime = None,
    state_partitions: recovery.StatePartitions = None,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the history of a share-partition or of one record: time, leader, and the state after each step.

    Deliveries are not in the log, only their results; the delivery count shows them.
    """
    (group, topic, partition, offset), extra = _split_arguments([*arguments, *ctx.args], ctx.meta[_LITERALS])
    opened = recovery.open_source(source, extra, config, settings)
    from coordinator.recovery.explain import explain as explain_history
    from protocol.state_records import SharePartitionKey

    key = SharePartitionKey(group, _resolve_topic_id(topic, extra, config, settings), partition)
    found = explain_history(
        opened,
        key,
        offset,
        cut=recovery.parse_cut(as_of_offset, as_of_time),
        state_partitions=state_partitions,
    )
    if output is Output.JSON:
        print_json(found.to_json_values())
        return
    rows = []
    for row in found.to_json_values()["events"]:
        leader_epoch = "-" if row["leader_epoch"] is None else row["leader_epoch"]
        state = row["state"]
        after: tuple[object, object] = ("-", "-")
        if state is not None:
            after = (state["start_offset"], len(state["state_batches"]))
        rows.append((row["log_offset"], row["time"], row["record"], leader_epoch, *after, row["what"]))
    heads = ("LOG-OFFSET", "TIME", "RECORD", "LEADER-EPOCH", "START-OFFSET", "BATCHES", "WHAT")
    print_table(heads, rows)
    recovery.print_lost_offsets(found.damages)
    print_line(f"{key}, state partition {found.state_partition}, {found.steps} records; now: {found.summary}")


def _split_arguments(tokens: list[str], literals: int) -> tuple[tuple[str, str, int, int | None], list[str]]:
    """Separate the arguments of `explain` from setting flags and their values. Raises ConfigError.

    Typer has no definition of setting flags and would treat them as arguments.  The last `literals` tokens
    are arguments.
    """
    from coordinator.errors import ConfigError

    given: list[str] = []
    extra: list[str] = []
    at = 0
    tokens, last = tokens[: len(tokens) - literals], tokens[len(tokens) - literals :]
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if not token.startswith("--"):
            given.append(token)
            continue
        extra.append(token)
        if "=" not in token and at < len(tokens):
            extra.append(tokens[at])
            at += 1
    given += last
    wanted = "GROUP TOPIC PARTITION [OFFSET], the last two numbers"
    if len(given) not in (3, 4) or not all(number.isascii() and number.isdigit() for number in given[2:]):
        raise ConfigError("explain", " ".join(given), wanted)
    group, topic, partition, *offset = given
    return (group, topic, int(partition), int(offset[0]) if offset else None), extra


def _resolve_topic_id(text: str, extra: list[str], config: Any, settings: Any) -> bytes:
    """Return a topic id, from the text or from the cluster. Raises ConfigError and LogError."""
    from coordinator.errors import ConfigError
    from coordinator.recovery.sources.topic_access import make_topic_options
    from protocol.state_records import parse_topic_id

    try:
        return parse_topic_id(text)
    except ValueError:
        loaded = flags.load_settings(extra, config, settings).config
    if not loaded.bootstrap_servers:
        raise ConfigError("TOPIC", text, "a topic id, or a name with --bootstrap-servers")
    from coordinator.recovery.external_checks import topic_id_of

    found = topic_id_of(text, **make_topic_options(loaded))
    if found is None:
        raise ConfigError("TOPIC", text, f"a topic of {loaded.bootstrap_servers}")
    return found
