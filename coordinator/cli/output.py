"""What commands print: aligned columns for people, JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print.")]


def print_json(value: object) -> None:
    """Print a value as JSON, indented, characters as they are."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns, as wide as their widest entry; the last one is not padded."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        typer.echo("  ".join(padded).rstrip())
