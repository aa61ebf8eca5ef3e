"""Test that systemd accepts the unit of deploy/systemd, and that its settings are a valid configuration."""

import shlex
import subprocess
from pathlib import Path

import pytest

from coordinator.config import load_config
from tests.deploy.files import DEPLOY, read_unit

UNIT = DEPLOY / "systemd" / "share-coordinator.service"
SETTINGS = DEPLOY / "systemd" / "share-coordinator.properties"


@pytest.mark.needs("systemd-analyze")
def test_systemd_reports_nothing_about_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # The program of the unit is not installed on the test machine.
    program = shlex.split(read_unit(UNIT)["Service"]["ExecStart"])[0]
    copy.write_text(UNIT.read_text("utf-8").replace(program, "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    # systemd-analyze reports unknown names and values only as warnings.
    assert UNIT.name not in done.stdout + done.stderr


def test_settings_of_unit_are_valid() -> None:
    name, _, value = read_unit(UNIT)["Service"]["Environment"].partition("=")
    config = load_config(file=SETTINGS, environ={name: value}).config
    assert str(config.data_dir) == "/var/lib/share-coordinator"
    assert (config.listen.host, config.http.host) == ("127.0.0.1", "127.0.0.1")


def test_unit_starts_serve_with_installed_settings() -> None:
    command = shlex.split(read_unit(UNIT)["Service"]["ExecStart"])
    assert command[1:] == ["serve", "--config", f"/etc/share-coordinator/{SETTINGS.name}"]


def test_stop_timeout_of_unit_exceeds_that_of_coordinator() -> None:
    timeout_s = int(read_unit(UNIT)["Service"]["TimeoutStopSec"].removesuffix("s"))
    config = load_config(file=SETTINGS, environ={}).config
    assert timeout_s * 1000 > config.stop_timeout_ms + 10_000


@pytest.mark.parametrize("directive", ["NoNewPrivileges", "ProtectHome", "PrivateTmp"])
def test_service_is_confined(directive: str) -> None:
    assert read_unit(UNIT)["Service"][directive] == "yes"
