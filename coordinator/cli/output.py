"""Print results: aligned columns for people, JSON and YAML for programs."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from coordinator.printable import escape_json_unprintable, escape_unprintable


class Output(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"


class OutputForm(StrEnum):
    """The output format of a command that requests a running coordinator."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormOption = Annotated[OutputForm, typer.Option("-o", "--output", help="Output format.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Output format.")]


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print_json_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_yaml(value: object) -> None:
    """Print a value as YAML."""
    typer.echo("\n".join(_yaml_lines(value)))


def _yaml_lines(value: object) -> Iterator[str]:
    """Format a value as block-style YAML. Scalars are JSON, which is valid YAML.

    Control characters are escaped; in quotes, YAML restores them.
    """
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _yaml_entry(f"{name}:", item)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _yaml_entry("-", item)
    else:
        yield escape_unprintable(json.dumps(value, ensure_ascii=False))


def _yaml_entry(label: str, item: object) -> Iterator[str]:
    first, *others = _yaml_lines(item)
    if not (isinstance(item, Mapping | list) and item):
        yield f"{label} {first}"
    elif label == "-":
        yield f"- {first}"
        yield from (f"  {line}" for line in others)
    else:
        yield label
        yield from (f"  {line}" for line in (first, *others))


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line. Control characters are escaped, because group ids and error messages may contain them."""
    typer.echo(escape_unprintable(text), err=err)


def format_error(error: Exception) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())


def print_json_text(text: str) -> None:
    """Print JSON text. Characters that are invisible or not supported by the output are escaped."""
    typer.echo(escape_json_unprintable(text, sys.stdout.encoding))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns, as wide as their widest entry; the last one is not padded.

    Control characters are escaped.
    """
    lines = [[escape_unprintable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        typer.echo("  ".join(padded).rstrip())
