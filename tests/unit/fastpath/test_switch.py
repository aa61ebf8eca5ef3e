"""The environment variable that disables the compiled module, and the messages about the module in use."""

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator import fastpath
from coordinator.cli.program import app as application
from coordinator.compiled_sources import PURE_PYTHON_ENV


@pytest.mark.parametrize(
    ("switch", "off"), [("", False), pytest.param("0", False, marks=pytest.mark.slow), ("1", True)]
)
def test_version_command_shows_whether_writes_are_compiled(switch: str, off: bool) -> None:
    environment = {**os.environ, PURE_PYTHON_ENV: switch}
    command = [sys.executable, "-m", "coordinator", "version", "-o", "json"]
    version = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    is_there = any(
        Path(fastpath.__file__).with_name("_compiled" + suffix).exists() for suffix in EXTENSION_SUFFIXES
    )
    assert version["fast_path"] == ("compiled" if is_there and not off else "pure Python")


@pytest.mark.parametrize("missing", [True, False])
def test_serve_warns_once_if_the_compiled_module_is_missing(
    missing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fastpath, "compiled", None if missing else object())
    monkeypatch.setattr("coordinator.app.serve", lambda config: 0)
    monkeypatch.setattr("coordinator.process.logging_setup.set_up_logging", lambda level, form: None)
    assert CliRunner().invoke(application, ["serve"]).exit_code == 0
    warnings = [record for record in caplog.records if record.name == "coordinator.fastpath"]
    assert len(warnings) == missing


@pytest.mark.slow
def test_config_check_accepts_the_environment_switch() -> None:
    command = [sys.executable, "-m", "coordinator", "config", "check"]
    subprocess.run(command, env={**os.environ, PURE_PYTHON_ENV: "1"}, capture_output=True, check=True)
