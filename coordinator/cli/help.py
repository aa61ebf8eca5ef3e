"""Format the help of the command line: commands in groups, each with the first sentence of its help."""

from typing import Any

from typer.core import TyperGroup

# Every command belongs to one group; a test compares this with the registered commands.
COMMAND_GROUPS = {
    "Run": ("serve", "observe", "relay", "demo"),
    "Inspect a running coordinator": ("groups", "state", "shards", "top", "expiry"),
    "Change": ("snapshot", "prune", "hand-over", "migrate"),
    "Inspect and recover logs": ("journal", "recovery"),
    "Other": ("config", "version"),
}


class GroupedCommands(TyperGroup):
    """The top-level command, whose help shows the commands in groups.

    The arguments have no type annotations, because different releases of typer import their classes from
    different packages.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands."""
        for title, names in COMMAND_GROUPS.items():
            rows = [(name, _first_sentence(self.commands[name].help or "")) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."
