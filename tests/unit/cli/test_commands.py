"""The command line: exit codes, one-line errors and fast imports."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from coordinator.cli.program import app
from coordinator.config import SETTINGS, Config, HostPort, render_reference
from coordinator.errors import ConfigError, ListenError, LogLocked
from tests.unit.cli.command_line import CommandLine


def replace_application(monkeypatch: pytest.MonkeyPatch, serve: Callable[[Config], int]) -> None:
    """Replace `coordinator.app`, so that the command `serve` calls the given function."""
    stand_in = ModuleType("coordinator.app")
    stand_in.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coordinator.app", stand_in)


def test_command_without_arguments_prints_help(share_coordinator: CommandLine) -> None:
    outcome = share_coordinator()
    assert outcome.exit_code == 2
    assert "serve" in outcome.out + outcome.err


def command_names(command: Any = None, name: str = "") -> Iterator[str]:
    """Yield the full name of each command."""
    command = command or get_command(app)
    for word, inner in getattr(command, "commands", {}).items():
        yield from command_names(inner, f"{name} {word}".strip())
    if name and not hasattr(command, "commands"):
        yield name


@pytest.mark.parametrize("command", list(command_names()))
def test_every_command_has_help(share_coordinator: CommandLine, command: str) -> None:
    outcome = share_coordinator(*command.split(), "--help")
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert f"Usage: share-coordinator {command}" in outcome.out
    # Each option shows a placeholder or its choices instead of a type name.
    types = re.findall(r"^ +(?:-\w, )?--[a-z-]+ <(?:int|float|str|path)\b.*", outcome.out, re.MULTILINE)
    assert types == []
    assert not re.search(r"\{[a-z]+\}", outcome.out.splitlines()[0]), "an argument has no metavar"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--max-connections", "0"], "max.connections=0 cannot be used: it must be a whole number from 1 "),
        (["--max-connections=0"], "max.connections=0 cannot be used: it must be a whole number from 1 "),
        (["--max-connection", "5"], "did you mean --max-connections?"),
        (["--set", "max.connection=5"], "did you mean max.connections?"),
        (["--set", "max.connections"], "--set=max.connections cannot be used: it must be NAME=VALUE"),
        (["--log", "disk"], "log=disk cannot be used: it must be memory, journal or kafka (flag --log)"),
        (["--log"], "--log cannot be used: it must be followed by a value"),
        (["--config", "/does/not/exist"], "--config=/does/not/exist cannot be used"),
        (["--log", "memory", "--log", "journal"], "log=journal cannot be used: it must be given only once"),
        (["stray"], "stray cannot be used: it must be a flag"),
    ],
)
@pytest.mark.parametrize("command", [["serve"], ["config", "check"], ["config", "show"]])
def test_invalid_setting_prints_one_line_and_exits_with_code_2(
    share_coordinator: CommandLine, command: list[str], args: list[str], line: str
) -> None:
    outcome = share_coordinator(*command, *args)
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert line in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_unknown_command_exits_with_code_2(share_coordinator: CommandLine) -> None:
    outcome = share_coordinator("server")
    assert outcome.exit_code == 2
    assert "No such command 'server'" in outcome.err


def test_config_show_prints_every_setting_and_its_source(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARE_COORDINATOR_NODE_IDS", "7")
    outcome = share_coordinator("config", "show", "--max-connections", "5")
    rows = [line.split(maxsplit=2) for line in outcome.out.splitlines()]
    assert rows[0] == ["NAME", "VALUE", "FROM"]
    assert [row[0] for row in rows[1:]] == [setting.name for setting in SETTINGS]
    assert ["max.connections", "5", "flag --max-connections"] in rows
    assert ["node.ids", "7", "environment SHARE_COORDINATOR_NODE_IDS"] in rows
    assert ["listen", "127.0.0.1:9095", "default"] in rows


def test_config_show_prints_json(share_coordinator: CommandLine) -> None:
    shown = share_coordinator("config", "show", "-o", "json", "--set", "node.ids=7").json
    (row,) = (row for row in shown if row["name"] == "node.ids")
    assert (row["value"], row["from"], row["default"]) == ("7", "flag --set node.ids", "4")
    assert set(row) == {"name", "value", "from", "env", "flag", "default", "allowed", "meaning"}


def test_make_run_example_is_a_valid_configuration(share_coordinator: CommandLine) -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text("utf-8")
    (example,) = re.findall(r"^# .*make run ARGS='([^']+)'", makefile, re.MULTILINE)
    assert share_coordinator("config", "check", *example.split()).exit_code == 0


def test_config_check_reads_the_given_file(share_coordinator: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text("max.connections=9\n")
    outcome = share_coordinator("config", "check", "--config", str(file))
    assert (outcome.exit_code, outcome.out) == (0, "Configuration is valid.\n")
    assert share_coordinator("config", "check", "-o", "json").json == {"good": True}


def test_config_reference_equals_the_generated_page(share_coordinator: CommandLine) -> None:
    assert share_coordinator("config", "reference").out == render_reference()


def test_version_command_and_version_option_print_the_same(share_coordinator: CommandLine) -> None:
    shown = share_coordinator("version", "-o", "json").json
    outcome = share_coordinator("version")
    assert outcome.out.startswith(f"share-coordinator {shown['version']} ")
    # Users often try `--version` first.
    assert share_coordinator("--version") == outcome


def test_demo_help_does_not_mention_a_cluster(share_coordinator: CommandLine) -> None:
    printed = " ".join(share_coordinator("demo", "--help").out.split())
    assert ".properties file. Default: plaintext without login." in printed
    assert "cluster" not in printed


def test_serve_passes_settings_to_the_application(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Config] = []

    def record_config(config: Config) -> int:
        served.append(config)
        return 7

    replace_application(monkeypatch, record_config)
    outcome = share_coordinator(
        "serve", "--listen", "127.0.0.1:1", "--logging-level", "error", "--log", "memory"
    )
    assert outcome.exit_code == 7
    assert (served[0].listen, served[0].log_level, served[0].log) == (
        HostPort("127.0.0.1", 1),
        "ERROR",
        "memory",
    )


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (LogLocked("data/lock", 12), 1, "share-coordinator: data/lock is held by process 12"),
        (OSError(13, "Permission denied", "x"), 1, "share-coordinator: [Errno 13] Permission denied: 'x'"),
        (
            ListenError("http", "h:1", OSError(98, "x")),
            1,
            "share-coordinator: http=h:1 cannot be ",
        ),
        (ConfigError("node.ids", "5", "4"), 2, "share-coordinator: node.ids=5 cannot be used: it must be 4"),
        (ZeroDivisionError("a\nb"), 1, "share-coordinator: internal error: ZeroDivisionError: a b ("),
    ],
)
def test_failure_prints_one_line(
    share_coordinator: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    exit_code: int,
    line: str,
) -> None:
    def raise_failure(config: Config) -> int:
        raise error

    replace_application(monkeypatch, raise_failure)
    outcome = share_coordinator("serve", "--logging-level", "error")
    assert outcome.exit_code == exit_code
    assert outcome.err.startswith(line)
    assert len(outcome.err.splitlines()) == 1


def test_traceback_is_shown_if_requested_by_environment(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_failure(config: Config) -> int:
        raise ZeroDivisionError

    replace_application(monkeypatch, raise_failure)
    monkeypatch.setenv("SHARE_COORDINATOR_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        share_coordinator("serve", "--logging-level", "error")


def test_help_imports_no_heavy_modules() -> None:
    """`--help` must start fast, so it imports only the command line itself."""
    program = (
        "import sys\n"
        "sys.argv = ['share-coordinator', '--help']\n"
        "from coordinator.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print('LOADED', *sorted(name.split('.')[0] for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "LOADED" in loaded
    assert (
        loaded & {"pydantic", "fastapi", "uvicorn", "aiokafka", "prometheus_client", "rich", "protocol"}
        == set()
    )


@pytest.mark.parametrize("package", ["typer", "pydantic"])
def test_ctrl_c_during_imports_is_silent(package: str) -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def __set_name__(self, *_):\n"
        "        raise KeyboardInterrupt\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'typer' == {package!r}:\n"
        "            raise KeyboardInterrupt\n"
        f"        if name == {package!r}:\n"
        "            type('Model', (), {'field': self})\n"
        "sys.argv = ['share-coordinator', 'config', 'show']\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from coordinator.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        (b"version -o json >&- 2>&- <&-", 0),
        # Without output, only the exit code says that nothing else than the missing brokers was wrong.
        (b"serve --log kafka >&- 2>&- <&-", 2),
        (b"groups describe \xff 2>&1 | grep -q 'must be UTF-8'", 0),
        pytest.param(
            *(b"config check --set listen=\xff 2>&1 | grep -q 'must be UTF-8'", 0), marks=pytest.mark.slow
        ),
    ],
)
def test_closed_streams_and_text_that_is_not_utf8_are_no_internal_error(
    command: bytes, exit_code: int
) -> None:
    shell = [b"/bin/sh", b"-c", sys.executable.encode() + b" -m coordinator " + command]
    assert subprocess.run(shell, check=False).returncode == exit_code


def test_python_m_coordinator_runs_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("share-coordinator ")
