"""The help text of the command line and shell completion."""

import pytest
import typer
from typer.main import get_command

from coordinator.cli.program import COMMAND_GROUPS, app
from tests.unit.cli.command_line import CommandLine


def test_every_command_is_in_one_help_group() -> None:
    grouped = [name for names in COMMAND_GROUPS.values() for name in names]
    registered = vars(get_command(app))["commands"]
    assert isinstance(app, typer.Typer)
    assert sorted(grouped) == sorted(registered)


@pytest.mark.parametrize("command", ["groups", "state", "config", "journal", "recovery"])
def test_help_of_command_group_shows_complete_sentences(share_coordinator: CommandLine, command: str) -> None:
    commands = share_coordinator(command, "--help").out.partition("Commands:")[2]
    assert commands.rstrip().endswith(".")
    assert "..." not in commands


def test_help_shows_complete_sentences_in_groups(share_coordinator: CommandLine) -> None:
    out = share_coordinator("--help").out
    assert "..." not in out.partition("Run:")[2]
    assert all(f"{title}:" in out for title in COMMAND_GROUPS)
    assert "Show the share groups of a cluster that uses Kafka's own share coordinator." in " ".join(
        out.split()
    )


def test_shell_completion_lists_commands(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SHARE_COORDINATOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "share-coordinator gr")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert share_coordinator().out == "groups\n"
