"""Register the commands, format their help, and print each error as one line without a traceback.

Exit codes: 0 success, 1 failure, 2 invalid command line or setting, 130 interrupted.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coordinator.cli import EXIT_INTERRUPTED, EXIT_USAGE
from coordinator.cli.config_commands import config_app
from coordinator.cli.expiry_command import expiry
from coordinator.cli.hand_over_command import hand_over
from coordinator.cli.journal_commands import journal_app
from coordinator.cli.migrate_command import PLACES, migrate
from coordinator.cli.output import Output, format_error, print_error, set_output_format
from coordinator.cli.recovery import recovery_app
from coordinator.cli.run_commands import OBSERVE_FLAGS, RELAY_FLAGS, demo, observe, relay, serve, version
from coordinator.cli.settings_flags import ANY_SETTING, COMMON_FLAGS
from coordinator.cli.state_commands import groups_app, shards, state_app
from coordinator.cli.top_command import top

# Every command belongs to one section of the help; a test compares this with the registered commands.
COMMAND_GROUPS = {
    "Run": ("serve", "observe", "relay", "demo"),
    "Inspect a running coordinator": ("groups", "state", "shards", "top", "expiry"),
    "Change": ("hand-over", "migrate"),
    "Inspect and recover logs": ("journal", "recovery"),
    "Other": ("config", "version"),
}


class CompleteHelp(TyperGroup):
    """A command with subcommands, whose help has complete sentences; typer would truncate them.

    The parameters of its methods have no type annotations, because different releases of typer import their
    classes from different packages.
    """

    def command_sections(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the subcommands by the title of their section."""
        return {"Commands": list(self.commands)}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.command_sections().items():
            rows = [(name, _first_sentence(self.commands[name].help or "")) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


class GroupedCommands(CompleteHelp):
    """The top-level command, whose subcommands are in several sections."""

    def command_sections(self) -> Mapping[str, Sequence[str]]:
        return COMMAND_GROUPS


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


EXIT_FAILED = 1

# Set this environment variable to show the traceback of an internal error.
TRACEBACK_ENV = "SHARE_COORDINATOR_TRACEBACK"

# The help is formatted without the package rich, because importing rich takes 0.1 s.
app = typer.Typer(
    cls=GroupedCommands,
    name="share-coordinator",
    help="A standalone share coordinator (KIP-932) for Apache Kafka.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=ANY_SETTING, epilog=COMMON_FLAGS)(serve)
app.command(context_settings=ANY_SETTING, epilog=OBSERVE_FLAGS)(observe)
app.command(context_settings=ANY_SETTING, epilog=RELAY_FLAGS)(relay)
app.add_typer(config_app, name="config", cls=CompleteHelp)
app.add_typer(journal_app, name="journal", cls=CompleteHelp)
app.command(context_settings=ANY_SETTING, epilog=PLACES)(migrate)
app.add_typer(recovery_app, name="recovery", cls=CompleteHelp)
app.add_typer(groups_app, name="groups", cls=CompleteHelp)
app.add_typer(state_app, name="state", cls=CompleteHelp)
app.command()(shards)
app.command()(top)
app.command()(expiry)
app.command("hand-over")(hand_over)
app.command()(demo)
app.command()(version)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _register_root_options(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def run_command() -> None:
    """Run the command that `sys.argv` names and end the process with its exit code."""
    _open_standard_streams()
    set_output_format(Output.TABLE)
    if isinstance(sys.stdout, TextIOWrapper):
        # Characters that the encoding of the terminal does not have are printed as backslash escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="share-coordinator")
    except Exception as error:
        if os.environ.get(TRACEBACK_ENV):
            raise
        sys.exit(EXIT_INTERRUPTED if _is_interrupt(error) else _report_error(error))


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error. Python 3.11 wraps exceptions of `__set_name__` in others."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _open_standard_streams() -> None:
    """Replace closed standard streams by /dev/null, so that no other file gets their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _report_error(error: Exception) -> int:
    """Print an error on one line; return the exit code."""
    from coordinator.errors import ConfigError, CoordinatorError

    if isinstance(error, CoordinatorError | OSError):
        status = getattr(error, "status", None)
        print_error(format_error(error), **({} if status is None else {"status": status}))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if isinstance(error, UnicodeEncodeError):
        print_error("an argument, or a variable of the environment, must be UTF-8 (with LANG=C.UTF-8)")
        return EXIT_USAGE
    print_error(
        f"internal error: {type(error).__name__}: {format_error(error)} "
        f"(set {TRACEBACK_ENV}=1 for a traceback)"
    )
    exit_code: int = getattr(error, "exit_code", EXIT_FAILED)
    return exit_code
