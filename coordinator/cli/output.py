"""Print results: aligned columns for people, JSON and YAML for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

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
    """Print a value as YAML. Unprintable characters are escaped; in quotes, YAML restores them."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Writes subclasses of dict, and texts with unprintable characters in quotes."""

    def represent_text(dumper: Any, text: str) -> Any:
        style = None if text.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, represent_text)
    Dumper.add_multi_representer(dict, Dumper.represent_dict)
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    typer.echo("\n".join(map(escape_unprintable, text.split("\n"))), nl=False)


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
