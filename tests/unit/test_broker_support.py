"""Support of the tests with a real broker: deselection without Java, ports and child processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka import ports as port_support
from tests.kafka import wait_until
from tests.kafka.jars import REPOSITORY, KafkaJars
from tests.kafka.toolchain import REQUIRE_ALL

A_BROKER_TEST = "tests/conformance/test_log_dump.py::test_journal_dump_decodes_records_as_kafkas_tool_does"
PARENT_THAT_IS_KILLED = """
import os, signal
from pathlib import Path
from tests.kafka import ChildProcess
child = ChildProcess("child", ["sleep", "600"], Path({log!r}))
child.start()
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_broker_test_without_java(tmp_path: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a test that needs a broker in an environment without Java and Maven."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", A_BROKER_TEST],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_deselected_tests_are_reported_with_the_install_command(tmp_path: Path) -> None:
    done = run_broker_test_without_java(tmp_path)
    said = [line for line in done.stdout.splitlines() if "left out" in line]
    assert len(said) == 1, done.stdout
    assert "1; no java, javac, mvn" in said[0]
    assert "apt-get install maven openjdk-17-jdk-headless" in said[0]
    assert "1 deselected" in done.stdout


@pytest.mark.slow
def test_missing_programs_fail_if_everything_is_required(tmp_path: Path) -> None:
    done = run_broker_test_without_java(tmp_path, **{REQUIRE_ALL: "1"})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 error" in done.stdout
    assert "apt-get install maven openjdk-17-jdk-headless" in done.stdout


def test_child_process_ends_when_its_test_run_is_killed(tmp_path: Path) -> None:
    script = PARENT_THAT_IS_KILLED.format(log=str(tmp_path / "child.log"))
    parent = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    child = int(parent.stdout)
    wait_until(lambda: not is_running(child), seconds=120, what="the child is killed")


def is_running(pid: int) -> bool:
    try:
        # A zombie process does not count as running.
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_port_is_not_assigned_to_two_processes() -> None:
    """A port without a listener may still be in use: its process may be about to start or to restart."""
    script = (
        "from tests.kafka import ports; print(*(p for p in range(15_000, 15_200) if ports._lock_port(p)))"
    )

    def list_lockable_ports() -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return [int(port) for port in done.stdout.split()]

    mine = next(port for port in list_lockable_ports() if port_support._lock_port(port))
    assert mine not in list_lockable_ports()


@pytest.mark.broker
def test_jvm_warnings_go_to_stderr_instead_of_stdout(newest_jars: KafkaJars, tmp_path: Path) -> None:
    command = newest_jars.java_command("no.such.Program")
    # A different class path makes the JVM warn about its class-data archive.
    command[command.index("-cp") + 1] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == ""
    assert "[warning][cds" in done.stderr
