"""`migrate`: copy share-group state between Kafka's own coordinator, a topic and a journal.

By default, the command makes a dry run.  Exit codes: 0 success, or a dry run without obstacles; 1 refused, or
source and target differ afterwards; 2 invalid command line or setting.
"""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.admin_options import ExecuteOption
from coordinator.cli.output import Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.operate.migration import MigrationLocation, MigrationReport
    from coordinator.operate.migration.readers import Progress
    from protocol.state_records import SharePartitionKey

EXIT_FAILED = 1
DIFFERENT_SHOWN_MAX = 10

PLACES = """
\b
Places:
  kafka:TOPIC                 the state topic of share-coordinator serve --log kafka
  kafka:__share_group_state   Kafka's own coordinator
  journal:DIR                 a journal
  rpc:HOST:PORT               a share coordinator, through its RPCs (only --to)

\b
Settings are those of serve:
  --bootstrap-servers HOST:PORT,...   the cluster of kafka:TOPIC

Share groups must be idle during the migration. See docs/migration.md.
"""


_COLUMNS: Columns = {
    "GROUP": "group",
    "TOPIC-ID": "topic_id",
    "SHARE-PARTITIONS": lambda topic: len(topic["partitions"]),
    "BATCHES": "state_batches",
    "START-OFFSETS": lambda topic: _format_offset_span(
        [each["start_offset"] for each in topic["partitions"]]
    ),
    "STEP": lambda topic: ", ".join(
        f"{count} {step}" for step, count in Counter(each["step"] for each in topic["partitions"]).items()
    ),
}


def migrate(
    ctx: typer.Context,
    source_text: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="The source.", show_default=False)
    ],
    target_text: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="The target.", show_default=False)
    ],
    execute: ExecuteOption = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace or delete state in the target that differs from the source."),
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Fence the owner of the target. Use it if that owner is dead.")
    ] = False,
    leave_out_unknown_topics: Annotated[
        bool,
        typer.Option(
            "--leave-out-unknown-topics", help="Omit the state of topics that the cluster does not have."
        ),
    ] = False,
    target_config: flags.CoordinatorConfig = None,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy the state of share groups to another coordinator, topic or journal.

    A dry run unless --execute is given.
    """
    from coordinator.operate.migration import (
        MigrationOptions,
        make_source,
        make_target,
        migrate_states,
        parse_source,
        parse_target,
    )
    from coordinator.process.logging_setup import set_up_logging

    source_place = parse_source(source_text)
    target_place = parse_target(target_text, source_place)
    # The settings of a topic are checked only if source or target is a topic; the log setting is not used.
    needs_cluster = source_place.needs_cluster or target_place.needs_cluster
    loaded = flags.load_settings(
        ctx.args, config, [*(settings or ()), *(["log=kafka"] if needs_cluster else [])]
    )
    set_up_logging("WARNING", loaded.config.log_format)
    options = MigrationOptions(execute, replace, take_over, leave_out_unknown_topics)
    source = make_source(source_place, loaded.config)
    target = make_target(target_place, loaded.config, flags.load_security(target_config, loaded.config))
    with _progress_bar() as progress:
        report = asyncio.run(migrate_states(source, target, options, progress))
    if output is Output.JSON:
        print_json(_make_json_values(source_place, target_place, report))
    else:
        _print_report(source_place, target_place, report)
    if not report.is_successful:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _progress_bar() -> Iterator["Progress"]:
    """Show a progress bar on stderr if it is a terminal, and remove it at the end."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        bar_of: dict[str, Any] = {}

        def show_progress(what: str, done: int, total: int) -> None:
            if what not in bar_of:
                bar_of[what] = bars.add_task(what)
            bars.update(bar_of[what], completed=done, total=total)

        yield show_progress


def _print_report(
    source: "MigrationLocation", target: "MigrationLocation", report: "MigrationReport"
) -> None:
    from coordinator.operate.migration import MigrationAction

    print_items(_group_states_by_topic(report), _COLUMNS, Output.TABLE)
    counts = report.plan.count_actions()
    verb = "were" if report.executed else "would be"
    print_line(
        f"{source} -> {target}: {len(report.folded.states)} share-partitions; "
        f"{counts[MigrationAction.COPY]} {verb} copied, {counts[MigrationAction.REPLACE]} replaced, "
        f"{counts[MigrationAction.DELETE]} deleted, {counts[MigrationAction.OMIT]} omitted, "
        f"{counts[MigrationAction.ALREADY_PRESENT]} were present already"
    )
    for note in report.notes:
        print_line(f"note: {note}")
    if not report.executed:
        print_line("Dry run: nothing was written. Repeat with --execute.")
    elif report.is_successful:
        same = len(report.folded.states) - counts[MigrationAction.OMIT]
        print_line(f"Source and target have the same state of {same} share-partitions.")
    else:
        for difference in report.different[:DIFFERENT_SHOWN_MAX]:
            print_line(f"{difference.key}: {difference.what}", err=True)
        print_line(
            f"share-coordinator: {len(report.different)} share-partitions differ between source and target",
            err=True,
        )


def _group_states_by_topic(report: "MigrationReport") -> list[dict[str, Any]]:
    from protocol.state_records import topic_id_text

    by_topic: defaultdict[tuple[str, str], list[SharePartitionKey]] = defaultdict(list)
    for key in sorted(report.folded.states):
        by_topic[key.group_id, topic_id_text(key.topic_id)].append(key)
    return [
        {
            "group": group,
            "topic_id": topic_id,
            "state_batches": sum(report.folded.states[key].batch_count for key in keys),
            "partitions": [_make_partition_fields(report, key) for key in keys],
        }
        for (group, topic_id), keys in by_topic.items()
    ]


def _make_partition_fields(report: "MigrationReport", key: "SharePartitionKey") -> dict[str, Any]:
    state = report.folded.states[key]
    return {
        "partition": key.partition,
        "start_offset": state.start_offset,
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "delivery_complete_count": state.delivery_complete_count,
        "state_batches": state.batch_count,
        "step": report.plan.steps[key].value,
    }


def _format_offset_span(offsets: list[int]) -> str:
    low, high = min(offsets), max(offsets)
    return str(low) if low == high else f"{low} to {high}"


def _make_json_values(
    source: "MigrationLocation", target: "MigrationLocation", report: "MigrationReport"
) -> dict[str, Any]:
    from coordinator.operate.migration import MigrationAction

    return {
        "from": str(source),
        "to": str(target),
        "executed": report.executed,
        "counts": {step.value: count for step, count in report.plan.count_actions().items()},
        "groups": _group_states_by_topic(report),
        "deleted": [str(key) for key in report.plan.keys_with_action(MigrationAction.DELETE)],
        "notes": report.notes,
        "verified": report.executed and report.is_successful,
        "differences": {
            "count": len(report.different),
            "first": [
                {"share_partition": str(key), "what": what}
                for key, what in report.different[:DIFFERENT_SHOWN_MAX]
            ],
        },
    }
