"""`offsets reset | delete`: change the start offsets of share groups through Kafka's group coordinator.

The group coordinator refuses changes while a group has members, and keeps its own metadata consistent with
the state. Therefore, all changes go through it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import FormOption, OutputForm, print_json, print_line, print_table, print_yaml
from coordinator.cli.settings_flags import ANY_SETTING
from coordinator.cli.write_commands import print_dry_run_note

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient
    from coordinator.cli.offsets_plan import PlannedChange, TopicPartition
    from coordinator.cluster.kafka.share_groups import ChangeResult, ShareGroups
    from coordinator.cluster.kafka.user_topics import UserTopics

Done = TypeVar("Done")

CLUSTER_NEEDED = """
\b
Required: the cluster whose group coordinator changes the offsets
  --bootstrap-servers HOST:PORT,...   and the other client settings of serve
Optional: the share coordinator at --url, which provides the in-flight records.
"""

offsets_app = typer.Typer(
    help="Change start offsets of share groups through Kafka's group coordinator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GroupOption = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="The share group.", show_default=False)
]
AllTopicsOption = Annotated[bool, typer.Option("--all-topics", help="All topics of the group.")]


@offsets_app.command(context_settings=ANY_SETTING, epilog=CLUSTER_NEEDED)
@with_admin_client
def reset(
    ctx: typer.Context,
    group: GroupOption,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC[:0,1]", help="Only this topic; may be repeated.")
    ] = None,
    all_topics: AllTopicsOption = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end offset.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DDThh:mm:ss.sss", help="To the first record at or after a time in UTC."
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="To this offset.", min=0)] = None,
    execute: ExecuteOption = False,
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Set new start offsets. The group must have no members.

    REDELIVERED counts completed records that would be delivered again, SKIPPED incomplete records that would
    never be delivered.
    """
    from coordinator.cli.offsets_plan import OffsetsPlanner, ResetTarget, TopicScope

    scope = TopicScope.parse(topic or (), all_topics=all_topics, partitions_allowed=True)
    target = ResetTarget.parse(earliest=to_earliest, latest=to_latest, moment=to_datetime, offset=to_offset)
    states = _read_states(api, group)

    async def compute_changes(
        groups: "ShareGroups", topics: "UserTopics"
    ) -> "tuple[list[PlannedChange], list[str]]":
        planned, remarks = await OffsetsPlanner(groups, topics, states).reset(group, scope, target)
        if not execute:
            return planned, remarks
        offsets: dict[str, dict[int, int]] = {}
        for each in planned:
            assert each.new_offset is not None
            offsets.setdefault(each.topic, {})[each.partition] = each.new_offset
        answers = await groups.alter_offsets(group, offsets)
        failed = _list_failures(
            {
                f"{name}-{partition}": outcome
                for name, outcomes in answers.items()
                for partition, outcome in outcomes.items()
            }
        )
        return planned, [*remarks, *failed]

    planned, remarks = _run_with_planner(ctx.args, compute_changes)
    _print_plan(group, planned, output, executed=execute, reset=True)
    _print_remarks(remarks, executed=execute)


@offsets_app.command(context_settings=ANY_SETTING, epilog=CLUSTER_NEEDED)
@with_admin_client
def delete(
    ctx: typer.Context,
    group: GroupOption,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    all_topics: AllTopicsOption = False,
    execute: ExecuteOption = False,
    output: FormOption = OutputForm.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """Delete the state of a group for some topics. The group must have no members.

    If a consumer subscribes again, the group starts by share.auto.offset.reset.
    """
    from coordinator.cli.offsets_plan import OffsetsPlanner, TopicScope

    scope = TopicScope.parse(topic or (), all_topics=all_topics, partitions_allowed=False)
    states = _read_states(api, group)

    async def compute_changes(
        groups: "ShareGroups", topics: "UserTopics"
    ) -> "tuple[list[PlannedChange], list[str]]":
        planned = await OffsetsPlanner(groups, topics, states).delete(group, scope)
        if not execute:
            return planned, []
        names = sorted({each.topic for each in planned})
        return planned, _list_failures(await groups.delete_offsets(group, names))

    planned, remarks = _run_with_planner(ctx.args, compute_changes)
    _print_plan(group, planned, output, executed=execute, reset=False)
    _print_remarks(remarks, executed=execute)


def _run_with_planner(extra: list[str], work: "Callable[[ShareGroups, UserTopics], Awaitable[Done]]") -> Done:
    """Run a function with the configured cluster. Raises ConfigError without a cluster."""
    from coordinator.cli.admin_client import load_cluster_config
    from coordinator.cluster.kafka.share_groups import ShareGroups
    from coordinator.cluster.kafka.user_topics import UserTopics
    from coordinator.errors import ConfigError
    from coordinator.security.client_security import make_client_security

    config = load_cluster_config(extra)
    if config is None:
        raise ConfigError(
            "--bootstrap-servers",
            "",
            "HOST:PORT of a broker, because Kafka's group coordinator changes the offsets",
        )
    servers, security = config.bootstrap_servers, make_client_security(config)

    async def run() -> Done:
        groups = ShareGroups(servers, security=security, client_id="share-coordinator-offsets")
        topics = UserTopics(servers, security=security, client_id="share-coordinator-offsets")
        try:
            return await work(groups, topics)
        finally:
            await groups.close()
            await topics.close()

    return asyncio.run(run())


def _read_states(api: "AdminClient", group: str) -> "dict[TopicPartition, dict[str, object]] | None":
    from coordinator.cli.offsets_plan import read_group_states
    from coordinator.errors import CoordinatorError

    try:
        return read_group_states(api, group)
    except CoordinatorError as error:
        print_line(f"share-coordinator: in-flight records are not known: {error}", err=True)
        return None


def _list_failures(outcomes: "dict[str, ChangeResult]") -> list[str]:
    from coordinator.cli.offsets_plan import error_name

    return [
        f"FAILED {what}: {error_name(outcome.error_code)} {outcome.error_message}".rstrip()
        for what, outcome in outcomes.items()
        if outcome.error_code
    ]


_KEY = ("GROUP", "TOPIC", "PARTITION", "START-OFFSET")


def _print_plan(
    group: str, planned: "Sequence[PlannedChange]", output: OutputForm, *, executed: bool, reset: bool
) -> None:
    if output is not OutputForm.TABLE:
        rows = [
            {
                "group": group,
                "topic": each.topic,
                "partition": each.partition,
                "start_offset": each.start_offset,
                "new_offset": each.new_offset,
                "in_flight_records": each.effect.in_flight,
                **({"redelivered": each.effect.redelivered, "skipped": each.effect.skipped} if reset else {}),
                "executed": executed,
            }
            for each in planned
        ]
        (print_json if output is OutputForm.JSON else print_yaml)(rows)
        return
    print_table(
        (*_KEY, "NEW-OFFSET", "IN-FLIGHT", "REDELIVERED", "SKIPPED") if reset else (*_KEY, "IN-FLIGHT"),
        [
            tuple(
                "-" if cell is None else cell
                for cell in (
                    group,
                    each.topic,
                    each.partition,
                    each.start_offset,
                    *((each.new_offset,) if reset else ()),
                    each.effect.in_flight,
                    *((each.effect.redelivered, each.effect.skipped) if reset else ()),
                )
            )
            for each in planned
        ],
    )


def _print_remarks(remarks: Sequence[str], *, executed: bool) -> None:
    for remark in remarks:
        print_line(f"share-coordinator: {remark}", err=True)
    print_dry_run_note(executed=executed)
    if any(remark.startswith("FAILED") for remark in remarks):
        raise typer.Exit(1)
