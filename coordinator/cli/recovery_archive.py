"""`recovery archive`: copy the records of a log before pruning removes them, with or without Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_line

if TYPE_CHECKING:
    from coordinator.recovery.archive import ArchiveResult


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def archive(
    ctx: typer.Context,
    source: recovery.From,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="DIR", help="The directory or URI of the archive; created if it does not exist."
        ),
    ],
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="With Spark: copy periodically: 30s, 5m, 1h.")
    ] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="URI", help="With Spark: the query's checkpoint; by default in --to."
        ),
    ] = "",
    state_checkpoint: Annotated[
        str,
        typer.Option(
            "--state-checkpoint",
            metavar="TIME",
            help="How often to store the states in the archive, which shortens later reads.",
        ),
    ] = "1d",
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TIME", help="How long to keep records, for example 400d. Default: always."
        ),
    ] = "",
    engine: recovery.EngineName = "local",
    master: recovery.Master = "",
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy new records of a log to an archive, which other commands read as archive:DIR.

    Run this command more often than the log is pruned. Archived records stay when the log is pruned. Exit
    codes: 0 success, 1 records were pruned before they could be copied, or could not be read.
    """
    opened = recovery.open_source(source, ctx.args, config, settings)
    from coordinator.recovery.archive import archive as copy_new

    if engine == "spark" or master:
        done = _archive_with_spark(
            ctx, opened, to, every, checkpoint, state_checkpoint, keep, master, config, settings, output
        )
    else:
        done = [copy_new(opened, to)]
        _print_result(done[0], output)
        _maintain(to, state_checkpoint, keep)
    raise typer.Exit(0 if all(each.is_whole for each in done) else recovery.EXIT_DAMAGED)


def _archive_with_spark(
    ctx: typer.Context,
    opened: Any,
    to: str,
    every: str,
    checkpoint: str,
    state_checkpoint: str,
    keep: str,
    master: str,
    config: Path | None,
    settings: list[str] | None,
    output: Output,
) -> "list[ArchiveResult]":
    """Run a streaming query; print each micro-batch, and store the states periodically."""
    from coordinator.cli.recovery_audit import parse_duration_s
    from coordinator.recovery.archive_stream import archive_stream
    from coordinator.recovery.engines.spark_session import get_or_start_session
    from coordinator.recovery.sources.topic_access import stream_options

    def print_result(each: "ArchiveResult") -> None:
        _print_result(each, output)
        _maintain(to, state_checkpoint, keep)

    spark = get_or_start_session(master)
    try:
        return archive_stream(
            spark,
            opened,
            to,
            options=stream_options(flags.load_settings(ctx.args, config, settings).config),
            checkpoint=checkpoint,
            every_s=parse_duration_s(every) if every else None,
            told=print_result,
        )
    finally:
        spark.stop()


def _maintain(to: str, interval: str, keep: str) -> None:
    """Store the states if the last checkpoint is older than the interval; remove old records."""
    from coordinator.cli.recovery_audit import parse_duration_s
    from coordinator.process.clock import SystemClock
    from coordinator.recovery.compaction import remove_old_audits
    from coordinator.recovery.state_checkpoints import checkpoint_states

    now_ms = SystemClock().now_ms()
    worker = recovery.open_engine("local", "", None)
    try:
        interval_ms = round(parse_duration_s(interval, "--state-checkpoint") * 1000)
        checkpoint_states(worker, to, interval_ms=interval_ms, now_ms=now_ms)
    finally:
        worker.close()
    if keep:
        remove_old_audits(to, keep_ms=round(parse_duration_s(keep, "--keep") * 1000), now_ms=now_ms)


def _print_result(run: "ArchiveResult", output: Output) -> None:
    if output is Output.JSON:
        print_json(
            {
                **{"commit": run.commit, "records": run.records, "ends": dict(run.ends)},
                **{"gaps": dict(run.gaps), "damages": [each._asdict() for each in run.damages]},
            }
        )
        return
    print_line(f"copied {run.records} records of {len(run.ends)} state partitions, commit {run.commit}")
    for state_partition, (copied_to, goes_on) in sorted(run.gaps.items()):
        print_line(
            f"share-coordinator: records {copied_to} to {goes_on - 1} of state partition {state_partition} "
            "were pruned before they were copied; archive more often",
            err=True,
        )
    for damage in run.damages:
        print_line(
            f"share-coordinator: log offsets {damage.first} to {damage.last} of state partition "
            f"{damage.state_partition} could not be copied: {damage.what}",
            err=True,
        )
