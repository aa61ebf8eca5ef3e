"""`recovery diff | explain`: the log beside a live coordinator, and the history of a share-partition."""

from typing import Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, format_error, print_json, print_line, print_table

EXIT_DIFFERENT = 1
EXIT_COULD_NOT_COMPARE = 3
DIFFERENT_SHOWN_MAX = 20


Live = Annotated[
    str,
    typer.Option(
        "--live",
        metavar="HOST:PORT",
        help="Where the coordinator is found; by default the --bootstrap-servers.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="The coordinator's HTTP address: also compare what it lists and the log has lost.",
    ),
]


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def diff(
    ctx: typer.Context,
    source: recovery.From,
    live: Live = "",
    live_config: flags.CoordinatorConfig = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only share groups of this name; may be repeated.")
    ] = None,
    url: Url = "",
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="A file with the token for --url.")
    ] = "",
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    work: recovery.Work = "",
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what a log holds with what a live coordinator answers, ours or Kafka's own.

    Nothing is changed on either side, and writes meanwhile are no difference. Exit codes: 0 the same,
    1 different, 3 not all could be compared.
    """
    from coordinator.errors import ConfigError, CoordinatorError

    opened = recovery.open_source(source, ctx.args, config, settings)
    loaded = flags.load(ctx.args, config, settings).config
    live = live or loaded.bootstrap_servers
    if not live:
        raise ConfigError("--live", "", "HOST:PORT of a coordinator, or of a broker that leads to it")
    asked = recovery.parse_live_coordinator(live, flags.client_security(live_config, loaded))
    from coordinator.recovery.diff import diff as compare
    from coordinator.recovery.progress import progress_display

    worker = recovery.open_engine(engine, master, processes, work=work)
    try:
        # Listed first: what is initialised later must not be missed in the log.
        listed = [*_listed_by_coordinator(url, token_file), *_listed_by_groups(loaded)]
        with progress_display() as phases:
            found = compare(worker, opened, asked, phases=phases, groups=group or (), listed=listed)
    except ConfigError:
        raise
    except (CoordinatorError, OSError) as error:
        print_line(f"share-coordinator: could not compare: {format_error(error)}", err=True)
        raise typer.Exit(EXIT_COULD_NOT_COMPARE) from None
    finally:
        worker.close()
    if output is Output.JSON:
        print_json(_as_json(found))
    else:
        _print_diff(found)
    if found.different:
        raise typer.Exit(EXIT_DIFFERENT)
    if found.unknown:
        raise typer.Exit(EXIT_COULD_NOT_COMPARE)


def _listed_by_coordinator(url: str, token_file: str) -> list[Any]:
    """Return the share-partitions that a coordinator of ours lists over HTTP. Raises CoordinatorError."""
    if not url:
        return []
    from coordinator.cli.admin_client import AdminClient
    from protocol.state_records import SharePartitionKey, parse_topic_id

    items = AdminClient(url, token_file=token_file).items("/api/v1/share-partitions")
    return [
        SharePartitionKey(item["group"], parse_topic_id(item["topic_id"]), item["partition"])
        for item in items
    ]


def _listed_by_groups(config: Any) -> list[Any]:
    """Return the share-partitions that groups of the cluster have initialised, if the cluster shows them."""
    if not config.bootstrap_servers:
        return []
    from coordinator.errors import LogError
    from coordinator.recovery.external_checks import initialised_by_groups
    from coordinator.recovery.sources.topic_access import make_topic_access

    try:
        return initialised_by_groups(**make_topic_access(config))
    except LogError as error:
        print_line(
            f"share-coordinator: the groups of the cluster could not be listed: {format_error(error)}",
            err=True,
        )
        return []


def _print_diff(found: Any) -> None:
    for each in found.different[:DIFFERENT_SHOWN_MAX]:
        print_line(f"{each.key} (state partition {each.state_partition}): {each.what}")
    if len(found.different) > DIFFERENT_SHOWN_MAX:
        print_line(f"... and {len(found.different) - DIFFERENT_SHOWN_MAX} more")
    for key, why in list(found.unknown.items())[:DIFFERENT_SHOWN_MAX]:
        print_line(f"share-coordinator: {key} is not known: {why}", err=True)
    print_line(
        f"{found.asked} share-partitions: {found.equal} equal, {found.moved} equal at a later offset, "
        f"{len(found.different)} different, {len(found.unknown)} not known"
    )
    if found.batches_unknown:
        print_line(
            f"share-coordinator: of {found.batches_unknown} the batches could not be asked for without "
            f"raising their leader epoch",
            err=True,
        )


def _as_json(found: Any) -> dict[str, Any]:
    return {
        "asked": found.asked,
        "equal": found.equal,
        "moved": found.moved,
        "different": [
            {
                "share_partition": str(each.key),
                "state_partition": each.state_partition,
                "what": each.what,
            }
            for each in found.different
        ],
        "unknown": {str(key): why for key, why in found.unknown.items()},
        "batches_unknown": found.batches_unknown,
        "manifest": found.manifest,
    }


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def explain(
    ctx: typer.Context,
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="GROUP TOPIC PARTITION [OFFSET]",
            help="A share-partition, the topic by its id, or by name with --bootstrap-servers; and a record.",
        ),
    ],
    *,
    source: recovery.From,
    as_of_offset: recovery.AsOfOffset = None,
    as_of_time: recovery.AsOfTime = None,
    state_partitions: Annotated[
        int | None,
        typer.Option("--state-partitions", metavar="N", help="By default as many as the log has.", min=1),
    ] = None,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell what happened to a share-partition, or to one record: when, by which leader, and the state after.

    That a record was handed out is not on the log, only what became of it; the delivery count tells it.
    """
    (group, topic, partition, offset), extra = _split_arguments([*arguments, *ctx.args])
    opened = recovery.open_source(source, extra, config, settings)
    from coordinator.recovery.explain import explain as tell
    from protocol.state_records import SharePartitionKey

    key = SharePartitionKey(group, _topic_id(topic, extra, config, settings), partition)
    found = tell(
        opened,
        key,
        offset,
        cut=recovery.parse_cut(as_of_offset, as_of_time),
        state_partitions=state_partitions,
    )
    if output is Output.JSON:
        print_json(found.as_row())
        return
    rows = []
    for event in found.events:
        row = event.as_row()
        leader_epoch = "-" if row["leader_epoch"] is None else row["leader_epoch"]
        state = row["state"]
        after: tuple[object, object] = ("-", "-")
        if state is not None:
            after = (state["start_offset"], len(state["state_batches"]))
        rows.append((row["log_offset"], row["time"], row["record"], leader_epoch, *after, row["what"]))
    heads = ("LOG-OFFSET", "TIME", "RECORD", "LEADER-EPOCH", "START-OFFSET", "BATCHES", "WHAT")
    print_table(heads, rows)
    print_line(f"{key}, state partition {found.state_partition}, {found.steps} records; now: {found.summary}")


def _split_arguments(tokens: list[str]) -> tuple[tuple[str, str, int, int | None], list[str]]:
    """Tell the arguments of `explain` from flags of settings and their values. Raises ConfigError.

    Typer does not know these flags, and would take them for arguments where one may be left out.
    """
    from coordinator.errors import ConfigError

    given: list[str] = []
    extra: list[str] = []
    at = 0
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
    wanted = "GROUP TOPIC PARTITION [OFFSET], the last two numbers"
    if len(given) not in (3, 4) or not all(number.isascii() and number.isdigit() for number in given[2:]):
        raise ConfigError("explain", " ".join(given), wanted)
    group, topic, partition, *offset = given
    return (group, topic, int(partition), int(offset[0]) if offset else None), extra


def _topic_id(text: str, extra: list[str], config: Any, settings: Any) -> bytes:
    """Return the id of a topic: it is given, or the cluster is asked. Raises ConfigError and LogError."""
    from coordinator.errors import ConfigError
    from coordinator.recovery.sources.topic_access import make_topic_access
    from protocol.state_records import parse_topic_id

    try:
        return parse_topic_id(text)
    except ValueError:
        loaded = flags.load(extra, config, settings).config
    if not loaded.bootstrap_servers:
        raise ConfigError("TOPIC", text, "a topic id, or a name with --bootstrap-servers")
    from coordinator.recovery.external_checks import topic_id_of

    found = topic_id_of(text, **make_topic_access(loaded))
    if found is None:
        raise ConfigError("TOPIC", text, f"a topic of {loaded.bootstrap_servers}")
    return found
