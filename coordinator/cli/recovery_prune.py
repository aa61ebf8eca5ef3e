"""`recovery plan-prune | replay-cost`: show what can be pruned, and how long loading takes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_line, print_table


@recovery.recovery_app.command("plan-prune", context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def plan_prune(
    ctx: typer.Context,
    source: recovery.From,
    top: Annotated[
        int,
        typer.Option("--top", metavar="N", help="Share-partitions listed for each state partition.", min=1),
    ] = 1,
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    work: recovery.Work = "",
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show up to which offset each state partition can be pruned, and which share-partitions prevent more.

    Nothing is pruned, because coordinators prune their logs periodically.
    """
    # One state more, because the next snapshot shows how many log offsets a pin prevents from pruning.
    run, _ = _rebuild_source(ctx, source, engine, master, processes, work, config, settings, top + 1)
    from coordinator.recovery.manifest import iso_time
    from coordinator.recovery.prune_plan import prune_plan

    plans = prune_plan(run, top)
    if output is Output.JSON:
        print_json(
            [
                {
                    **each.facts._asdict(),
                    "prunable": each.facts.prunable,
                    "held": each.facts.held,
                    "pins": [pin._asdict() for pin in each.pins],
                }
                for each in plans
            ]
        )
        return
    rows: list[tuple[Any, ...]] = []
    for each in plans:
        facts = each.facts
        if not facts.records:
            continue
        first = (facts.state_partition, facts.start, facts.needed_from, facts.end, facts.prunable, facts.held)
        for place, pin in enumerate(each.pins):
            progress_display = first if not place else ("",) * len(first)
            rows.append((*progress_display, pin.share_partition, iso_time(pin.since_ms), pin.frees))
        if not each.pins:
            rows.append((*first, "-", "-", "-"))
    heads = ("PARTITION", "START", "PRUNE-TO", "END", "PRUNABLE", "HELD", "HELD-BY", "SINCE", "WOULD-FREE")
    print_table(heads, rows)
    print_line(
        f"{sum(each.facts.prunable for each in plans)} log offsets can be pruned, "
        f"{sum(each.facts.held for each in plans)} are held"
    )


@recovery.recovery_app.command("replay-cost", context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS)
def replay_cost(
    ctx: typer.Context,
    source: recovery.From,
    records_per_second: Annotated[
        float | None,
        typer.Option(
            "--records-per-second",
            metavar="N",
            help="The load speed of a coordinator. Default: measured on this machine.",
            min=1.0,
        ),
    ] = None,
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    work: recovery.Work = "",
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Estimate how long a coordinator takes to load each state partition of a log."""
    run, opened = _rebuild_source(ctx, source, engine, master, processes, work, config, settings, 1)
    from coordinator.recovery.prune_plan import replay_cost as cost_of

    cost = cost_of(opened, run, records_per_second)
    if output is Output.JSON:
        print_json(
            {
                "records_per_s": round(cost.records_per_s),
                "measured": cost.is_measured,
                "total_s": round(cost.total_s, 3),
                "partitions": [
                    {
                        "state_partition": each.state_partition,
                        "records": each.records,
                        "bytes": each.bytes,
                        "seconds": round(cost.seconds(each), 3),
                        "prunable": each.prunable,
                    }
                    for each in cost.partitions
                ],
            }
        )
        return
    rows = [
        (
            *(each.state_partition, each.records, each.bytes, each.share_partitions, each.prunable),
            f"{cost.seconds(each):.3f}",
        )
        for each in sorted(cost.partitions, key=lambda each: -each.records)
        if each.records
    ]
    print_table(("PARTITION", "RECORDS", "BYTES", "SHARE-PARTITIONS", "PRUNABLE", "SECONDS"), rows)
    how = "measured on this machine" if cost.is_measured else "as given"
    print_line(
        f"{cost.total_s:.2f} s in total in one process, at {cost.records_per_s:,.0f} records/s ({how}); "
        f"without the time to read the log"
    )


def _rebuild_source(
    ctx: typer.Context,
    source: str,
    engine: str,
    master: str,
    processes: int | None,
    work: str,
    config: Path | None,
    settings: list[str] | None,
    oldest: int,
) -> tuple[Any, Any]:
    opened = recovery.open_source(source, ctx.args, config, settings)
    from coordinator.recovery.progress import progress_display
    from coordinator.recovery.rebuild import oldest_states, rebuild

    worker = recovery.open_engine(engine, master, processes, work)
    try:
        with progress_display() as phases:
            return rebuild(worker, opened, select=oldest_states(oldest), phases=phases), opened
    finally:
        worker.close()
