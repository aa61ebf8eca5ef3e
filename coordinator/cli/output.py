"""Print results: aligned columns for people, JSON for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from coordinator.printable import escape_json_unprintable, escape_unprintable


class Output(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"


class _Format:
    """The output format of the running command; its errors have the same format."""

    requested = Output.TABLE


def set_output_format(output: Output) -> Output:
    """Set the format of errors, and return it."""
    _Format.requested = output
    return output


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="Output format.", callback=set_output_format)
]

# A column of a table: the name of a field of the items, or a function of an item.
Column = str | Callable[[Any], object]
Columns = Mapping[str, Column]


def print_json(value: object) -> None:
    print_json_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line. Control characters are escaped, because group ids and error messages may contain them."""
    typer.echo(escape_unprintable(text), err=err)


def print_error(text: str, **fields: object) -> None:
    """Print an error on stderr: one line, or with `-o json` an object with the text and further fields."""
    if _Format.requested is Output.JSON:
        typer.echo(escape_json_unprintable(json.dumps({"error": text, **fields})), err=True)
    else:
        print_line(f"share-coordinator: {text}", err=True)


def format_error(error: Exception) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())


def print_json_text(text: str) -> None:
    """Print JSON text. Characters that are invisible or not supported by the output are escaped."""
    typer.echo(escape_json_unprintable(text, sys.stdout.encoding))


def print_items(items: Iterable[Any], columns: Columns, output: Output) -> None:
    """Print items: a table with the given columns, or JSON with all fields."""
    if output is Output.JSON:
        print_json(list(items))
    else:
        print_table(tuple(columns), (make_row(item, columns) for item in items))


def make_row(item: Any, columns: Columns) -> list[object]:
    """Return the cells of an item. As in Kafka's tools, a dash is an unknown value."""
    values = (item[column] if isinstance(column, str) else column(item) for column in columns.values())
    return ["-" if value is None or (isinstance(value, int) and value < 0) else value for value in values]


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns. Control characters are escaped."""
    for line in format_table(head, rows):
        typer.echo(line)


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines with columns as wide as their widest entry; the last column is not padded."""
    lines = [[escape_unprintable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
