"""`expiry`: list abandoned state with its expiration time, or run a round of expiry."""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.admin_options import ExecuteOption, with_admin_client
from coordinator.cli.output import Columns, Output, OutputOption, print_items, print_json, print_line

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient, Answer

_PATH = "/api/v1/expiry"
_TOPIC_COLUMNS: Columns = {"GROUP": "group", "TOPIC": lambda item: item["topic"] or item["topic_id"]}
_FORECAST_COLUMNS: Columns = {
    **_TOPIC_COLUMNS,
    "PARTITIONS": lambda item: _format_ranges(item["partitions"]),
    "REASON": "reason",
    "ABANDONED-SINCE": "since",
    "EXPIRES-AT": lambda item: item["expires_at"] or "never",
    "STATUS": "status",
}
_ROUND_COLUMNS: Columns = {
    **_TOPIC_COLUMNS,
    "REASON": "reason",
    "REMOVED": "share_partitions",
    "REFUSED": lambda item: item["refused"] or None,
}


@with_admin_client
def expiry(
    retention_minutes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Use this retention time for the list, even if expiry is disabled."
        ),
    ] = None,
    execute: ExecuteOption = False,
    output: OutputOption = Output.TABLE,
    *,
    api: "AdminClient",
) -> None:
    """List abandoned state and when it expires. With --execute, remove the due state now."""
    if execute:
        if retention_minutes is not None:
            from coordinator.errors import ConfigError

            raise ConfigError(
                "--retention-minutes",
                retention_minutes,
                "omitted with --execute, which uses the configured retention time",
            )
        _print_round_result(api.post(_PATH, {"execute": True}), output)
    else:
        _print_forecast(api, retention_minutes, output)


def _print_forecast(api: "AdminClient", retention_minutes: int | None, output: Output) -> None:
    answer = api.get(_PATH, limit=1, retention_minutes=retention_minutes)
    items = list(api.list_items(_PATH, retention_minutes=retention_minutes))
    if output is Output.JSON:
        total = {name: value for name, value in answer.items() if name not in ("items", "limit", "offset")}
        print_json({**total, "items": items})
        return
    print_items(items, _FORECAST_COLUMNS, output)
    for sentence in _make_warnings(answer):
        print_line(f"share-coordinator: {sentence}", err=True)


def _format_ranges(numbers: list[int]) -> str:
    """Format ascending numbers as ranges: 0-3,7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _make_warnings(answer: "Answer") -> list[str]:
    sentences = []
    if not answer["enabled"]:
        sentences.append(
            "expiry is disabled (share.coordinator.group.state.retention.minutes=-1), and ages are counted "
            "from the first request of this list"
        )
    if answer["unanswered_groups"]:
        sentences.append(f"{answer['unanswered_groups']} groups could not be described")
    if answer["warning"]:
        sentences.append(answer["warning"])
    if answer["missing_shards"]:
        sentences.append(
            f"{len(answer['missing_shards'])} shards are not loaded here, so this list is incomplete"
        )
    return sentences


def _print_round_result(answer: "Answer", output: Output) -> None:
    if output is Output.JSON:
        print_json(answer)
        return
    print_items(answer["items"], _ROUND_COLUMNS, output)
    print_line(f"share-coordinator: {answer['outcome']}", err=True)
