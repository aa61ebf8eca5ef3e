"""Test the `serve` command as a process: start, readiness, and stop."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka.demo import run_without_kafka
from tests.kafka.ports import free_ports
from tests.kafka.processes import PROGRAM

pytestmark = pytest.mark.e2e

STOP_TIMEOUT_S = 120
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("SHARE_COORDINATOR_")}


@contextmanager
def run_serve(*args: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `serve` until the block ends; it is ready when the block begins."""
    process = subprocess.Popen(
        [PROGRAM, "serve", *args, "--logging-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if '"event": "share coordinator on ' in line:
                break
        else:
            pytest.fail(f"serve ended early: {said}")
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def address_flags() -> list[str]:
    """Command-line flags for two free addresses: the listener and HTTP."""
    port, http_port = free_ports(2)
    return ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_coordinator_serves_until_signal(
    address_flags: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    with run_serve(*address_flags, "--data-dir", str(tmp_path / "new" / "data")) as process:
        with urllib.request.urlopen(f"http://{address_flags[3]}/livez", timeout=120) as answer:
            assert json.load(answer)["status"] == "alive"
        process.send_signal(number)
        _, said = process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 0
    events = [json.loads(line) for line in said.splitlines()]
    assert events[-1]["event"] == "stopped"
    assert [event for event in events if event["level"] in ("WARNING", "ERROR")] == []


def test_make_demo_succeeds_without_java(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_without_kafka(["java"], tmp_path) == 0
    assert "11. The group is deleted" in capfd.readouterr().out


def test_python_without_assertions_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "coordinator", "serve"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "share-coordinator: the coordinator does not run under python -O, which disables its assertions"
    ]
