"""`journal verify | dump`: inspect a journal, even while a coordinator uses it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.output import (
    Columns,
    Output,
    OutputOption,
    print_items,
    print_json,
    print_json_text,
    print_line,
)

if TYPE_CHECKING:
    from coordinator.log.journal.inspect import JournalReport

EXIT_NOT_WHOLE = 1

journal_app = typer.Typer(
    help="Inspect a journal directory.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_SEGMENT_COLUMNS: Columns = {
    "FILE": "file",
    "BYTES": "size_bytes",
    "USED": "used_bytes",
    "FIRST-COMMIT": "first_commit",
    "COMMITS": "commits",
    "RECORDS": "records",
}

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The directory of the journal (data.dir).",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]


@journal_app.command()
def verify(folder: Folder, output: OutputOption = Output.TABLE) -> None:
    """Read every record as the next start would. Exit code 0 if the journal is intact, 1 if not."""
    from coordinator.log.journal.inspect import verify_journal

    report = verify_journal(folder)
    if output is Output.JSON:
        print_json(_make_json_values(report))
    else:
        _print_report(report)
    if not _is_journal_intact(report):
        raise typer.Exit(EXIT_NOT_WHOLE)


@journal_app.command()
def dump(
    folder: Folder,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="N", help="Only this state partition; may be repeated.", min=0
        ),
    ] = None,
) -> None:
    """Print every record in log order, each as one line of JSON.

    Keys and values have the field names of kafka-dump-log --share-group-state-decoder.
    """
    from coordinator.errors import ConfigError
    from coordinator.log.journal.dump_format import record_objects
    from coordinator.log.journal.inspect import dump_journal, verify_journal

    empty = True
    for batch in dump_journal(folder, state_partitions=partition or None):
        empty = False
        for shown in record_objects(batch):
            print_json_text(json.dumps(shown, ensure_ascii=False))
    if empty:
        report = verify_journal(folder)
        if not _is_journal_intact(report):
            _print_report(report)
            raise typer.Exit(EXIT_NOT_WHOLE)
        if partition and (highest := max(partition)) >= report.state_partitions > 0:
            raise ConfigError("--partition", highest, f"from 0 to {report.state_partitions - 1}")


def _is_journal_intact(report: "JournalReport") -> bool:
    """Return whether the journal is intact. A torn tail is allowed, because it was never acknowledged."""
    return report.damage is None and bool(report.segments or report.unused_files)


def _make_json_values(report: "JournalReport") -> dict[str, Any]:
    shown = report._asdict()
    shown["whole"] = _is_journal_intact(report)
    shown["segments"] = [segment._asdict() for segment in report.segments]
    shown["torn_tail"] = report.torn_tail._asdict() if report.torn_tail is not None else None
    names = ("file", "position", "found", "advice")
    shown["damage"] = report.damage and {name: getattr(report.damage, name) for name in names}
    return shown


def _print_report(report: "JournalReport") -> None:
    if not _is_journal_intact(report) and report.damage is None:
        print_line(f"share-coordinator: there is no journal in {report.folder}", err=True)
        return
    print_items((segment._asdict() for segment in report.segments), _SEGMENT_COLUMNS, Output.TABLE)
    records = sum(segment.records for segment in report.segments)
    commits = sum(segment.commits for segment in report.segments)
    print_line(f"{report.state_partitions} state partitions, {records} records in {commits} commits")
    if report.recovery_point is not None:
        print_line(f"recovery point: all commits up to {report.recovery_point} were durable")
    if report.unused_files:
        print_line(f"unused files, which the next start removes or reuses: {', '.join(report.unused_files)}")
    if report.torn_tail is not None:
        file, position, lost_commits = report.torn_tail
        lost = f"; {lost_commits} later commits are ignored" if lost_commits else ""
        print_line(
            f"the last write to {file}, at byte {position}, did not finish and was not acknowledged{lost}"
        )
    if report.is_changing:
        print_line("a coordinator is writing to the journal, so its end could not be checked")
    if report.damage is not None:
        print_line(f"share-coordinator: {report.damage}", err=True)
    else:
        print_line("The journal is intact.")
