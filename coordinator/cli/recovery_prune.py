"""`recovery plan-prune`: show what can be pruned, and how long loading takes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_line, print_table

if TYPE_CHECKING:
    from coordinator.recovery.prune_plan import PrunePlan


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

    LOAD-S is the estimated time in which a coordinator loads the state partition, without reading it.
    Nothing is pruned, because coordinators prune their logs periodically.
    """
    opened = recovery.open_source(source, ctx.args, config, settings)
    from coordinator.recovery.progress import progress_display
    from coordinator.recovery.prune_plan import prune_plan
    from coordinator.recovery.rebuild import oldest_states, rebuild

    worker = recovery.open_engine(engine, master, processes, work)
    try:
        with progress_display() as phases:
            # One state more, because the next snapshot shows how many log offsets a pin holds.
            run = rebuild(worker, opened, select=oldest_states(top + 1), phases=phases)
    finally:
        worker.close()
    plans = prune_plan(run, top)
    _print_plans(plans, output)


def _print_plans(plans: Sequence["PrunePlan"], output: Output) -> None:
    from coordinator.recovery.manifest import iso_time

    if output is Output.JSON:
        print_json(
            [
                {
                    **each.facts._asdict(),
                    "prunable": each.facts.prunable,
                    "held": each.facts.unprunable,
                    "load_s": round(each.facts.replay_s, 3),
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
        first = (
            *(
                facts.state_partition,
                facts.start,
                facts.needed_from,
                facts.end,
                facts.prunable,
                facts.unprunable,
            ),
            f"{facts.replay_s:.3f}",
        )
        for place, pin in enumerate(each.pins):
            shown = first if not place else ("",) * len(first)
            rows.append((*shown, pin.share_partition, iso_time(pin.since_ms), pin.frees))
        if not each.pins:
            rows.append((*first, "-", "-", "-"))
    heads = "PARTITION START PRUNE-TO END PRUNABLE HELD LOAD-S HELD-BY SINCE WOULD-FREE"
    print_table(heads.split(), rows)
    print_line(
        f"{sum(each.facts.prunable for each in plans)} log offsets can be pruned, "
        f"{sum(each.facts.unprunable for each in plans)} are held"
    )
