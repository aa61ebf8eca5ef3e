"""`recovery archive`: copy the records of a log before pruning removes them, with or without Spark."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_line

if TYPE_CHECKING:
    from coordinator.recovery.archive import ArchiveResult

To = Annotated[
    str,
    recovery.make_option("--to", "DIR", "The directory or URI of the archive; created if it does not exist."),
]
Checkpoint = Annotated[
    str,
    recovery.make_option("--checkpoint", "URI", "With Spark: the query's checkpoint; by default in --to."),
]
StateCheckpoint = Annotated[
    str,
    recovery.make_option(
        "--state-checkpoint",
        "TIME",
        "How often to store the states in the archive, which shortens later reads.",
    ),
]
Keep = Annotated[
    str,
    recovery.make_option("--keep", "TIME", "How long to keep records, for example 400d. Default: always."),
]


@recovery.recovery_app.command(context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def archive(
    ctx: typer.Context,
    source: recovery.From,
    to: To,
    every: recovery.Every = "",
    checkpoint: Checkpoint = "",
    state_checkpoint: StateCheckpoint = "1d",
    keep: Keep = "",
    metrics_listen: recovery.MetricsListen = "",
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
    from coordinator.recovery.archive import archive as copy_new_records
    from coordinator.recovery.archive import archive_lag
    from coordinator.recovery.continuous import ArchiveMetrics

    period = recovery.parse_repeat_options(every, metrics_listen)
    interval_ms = round(recovery.parse_duration_s(state_checkpoint, "--state-checkpoint") * 1000)
    keep_ms = round(recovery.parse_duration_s(keep, "--keep") * 1000) if keep else None
    worker: Any
    with closing(recovery.open_engine("spark" if master else engine, master, None)) as worker:

        def archive_new_records() -> "Sequence[ArchiveResult]":
            if worker.name == "spark":
                from coordinator.recovery.archive_stream import archive_stream

                done = archive_stream(worker.spark, opened, to, checkpoint=checkpoint)
            else:
                done = [copy_new_records(opened, to)]
            _maintain_archive(to, interval_ms, keep_ms)
            return done

        if period is not None:
            metrics = ArchiveMetrics(partial(archive_lag, opened, to))
            recovery.run_periodically("copy", archive_new_records, metrics, period, _summarize_archive_run)
            return
        done = archive_new_records()
    for each in done:
        _print_result(each, output)
    raise typer.Exit(0 if all(each.is_whole for each in done) else recovery.EXIT_DAMAGED)


def _maintain_archive(to: str, interval_ms: int, keep_ms: int | None) -> None:
    """Store the states if the last checkpoint is older than the interval; remove old records."""
    from coordinator.process.clock import SystemClock
    from coordinator.recovery.compaction import remove_old_records
    from coordinator.recovery.engines import LocalEngine
    from coordinator.recovery.state_checkpoints import checkpoint_states

    now_ms = SystemClock().now_ms()
    with closing(LocalEngine()) as worker:
        checkpoint_states(worker, to, interval_ms=interval_ms, now_ms=now_ms)
    if keep_ms is not None:
        remove_old_records(to, keep_ms=keep_ms, now_ms=now_ms)


def _summarize_archive_run(done: "Sequence[ArchiveResult]") -> str:
    """Describe a periodic run in one line."""
    lost = sum(each.lost_records for each in done)
    copied = f"copied {sum(each.records for each in done)} records"
    return f"{copied}; {lost} records were pruned before they were copied, or are damaged" if lost else copied


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
        recovery.print_warning(
            f"records {copied_to} to {goes_on - 1} of state partition {state_partition} were pruned before "
            "they were copied; archive more often"
        )
    for damage in run.damages:
        recovery.print_warning(
            f"log offsets {damage.first} to {damage.last} of state partition {damage.state_partition} could "
            f"not be copied: {damage.what}"
        )
