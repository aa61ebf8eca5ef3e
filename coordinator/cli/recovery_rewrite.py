"""`recovery rewrite`: write the states of a log to a new journal or topic."""

from contextlib import closing
from typing import Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.admin_options import ExecuteOption
from coordinator.cli.output import Output, OutputOption, print_json, print_line, print_table

EXIT_FAILED = 1
DIFFERENCES_SHOWN_MAX = 10


Target = Annotated[
    str,
    recovery.make_option("--to", "TARGET", "journal:DIR or kafka:TOPIC, new or empty.", show_default=False),
]
StatePartitions = Annotated[
    int | None,
    recovery.make_option(
        "--state-partitions", "N", "State partitions of the target. Default: as in the source.", min=1
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace or delete state in the target that differs.")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Fence the owner of the target. Use it if that owner is dead.")
]
Incomplete = Annotated[
    bool,
    typer.Option(
        "--incomplete", help="Write the remaining states although the beginning of the log was pruned."
    ),
]

Work = Annotated[
    str | None,
    recovery.make_option(
        "--work",
        "FOLDER",
        "New folder or URI for the states, deleted afterwards. With Spark, all executors must see it.",
        show_default=False,
    ),
]


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def rewrite(
    ctx: typer.Context,
    source: recovery.From,
    target: Target,
    state_partitions: StatePartitions = None,
    execute: ExecuteOption = False,
    replace: Replace = False,
    take_over: TakeOver = False,
    incomplete: Incomplete = False,
    work: Work = None,
    as_of_offset: recovery.AsOfOffset = None,
    as_of_time: recovery.AsOfTime = None,
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the states of a log to a new journal or topic: re-shard it, or restore a backup.

    A dry run unless --execute is given. A target that has an owner is refused. After the copy, the states of
    source and target are compared in two ways. Exit codes: 0 success, or a dry run without obstacles; 1
    refused or failed.
    """
    opened = recovery.open_source(source, ctx.args, config, settings)
    cut = recovery.parse_cut(as_of_offset, as_of_time)
    needs_cluster = target.startswith("kafka:")
    loaded = flags.load_settings(
        ctx.args, config, [*(settings or ()), *(["log=kafka"] if needs_cluster else [])]
    )
    from coordinator.operate.migration import MigrationOptions
    from coordinator.process.logging_setup import set_up_logging
    from coordinator.recovery.rewrite import default_partitions
    from coordinator.recovery.rewrite import rewrite as rewrite_log

    set_up_logging("WARNING", loaded.config.log_format)
    with closing(recovery.open_engine(engine, master, processes)) as worker:
        done = rewrite_log(
            worker,
            opened,
            target,
            loaded.config,
            state_partitions=state_partitions or default_partitions(opened, loaded.config),
            cut=cut,
            options=MigrationOptions(execute, replace, take_over),
            incomplete=incomplete,
            work=work,
        )
    if output is Output.JSON:
        print_json(_make_json_values(done, source))
    else:
        _print_result(done, source)
    if not done.is_successful:
        raise typer.Exit(EXIT_FAILED)


def _print_result(done: Any, source: str) -> None:
    print_table(
        ("GROUP", "SHARE-PARTITIONS", "BATCHES"), [(name, *counts) for name, counts in done.groups.items()]
    )
    steps = ", ".join(f"{count} {action}" for action, count in done.actions.items()) or "nothing to do"
    print_line(f"{source} -> {done.target}, {done.state_partitions} state partitions: {steps}")
    for note in done.notes:
        print_line(f"note: {note}")
    if not done.executed:
        print_line("Dry run: nothing was written. Repeat with --execute.")
    elif done.is_successful:
        print_line(f"Source and target have the same state of {done.share_partitions} share-partitions.")
        print_line(f"Serve it with share.coordinator.state.topic.num.partitions={done.state_partitions}.")
    for difference in done.different[:DIFFERENCES_SHOWN_MAX]:
        print_line(f"X4 {difference}", err=True)


def _make_json_values(done: Any, source: str) -> dict[str, Any]:
    return {
        "from": source,
        "to": str(done.target),
        "state_partitions": done.state_partitions,
        "executed": done.executed,
        "share_partitions": done.share_partitions,
        "counts": done.actions,
        "notes": done.notes,
        "verified": done.executed and done.is_successful,
        "differences": done.different,
    }
