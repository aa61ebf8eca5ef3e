"""Describe the machine of a measurement, and detect other load during the measurement."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kafka.processes import raise_session_priority
from tests.kafka.toolchain import program_path

_TICKS = os.sysconf("SC_CLK_TCK")
# If other processes use more than this share of the CPU time of all cores, the figures are not reliable.
BUSY_SHARE = 0.05
LOAD_PER_CORE_MAX = 0.5


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants, including ended ones."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(pid, 0.0) for pid in ours)


def has_loaded_extension(pid: int, package: Path) -> bool:
    """Return whether a process has loaded a compiled module from a package's directory."""
    return any(
        line.endswith(".so") and str(package) + os.sep in line
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
    )


def peak_mib(pid: int | str = "self") -> int:
    """Return the peak resident memory of a process in MiB.

    Unlike ru_maxrss, the source VmHWM does not include the peak of the process that started this one.
    """
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class Machine:
    """The machine during a measurement, with the CPU time that other processes used."""

    def __init__(self) -> None:
        # The load generator runs in this process's session; each measured process has its own session.
        raise_session_priority(os.getpid())
        self.load_average = os.getloadavg()[0]
        self._began = datetime.now(UTC)
        self._began_s = time.monotonic()
        self._busy_s = _read_busy_seconds()
        self._own_s = cpu_seconds()

    def other_processes_share(self) -> float:
        """Return the fraction of all cores' CPU time since the start that other processes used."""
        all_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        busy_s, own_s = _read_busy_seconds() - self._busy_s, cpu_seconds() - self._own_s
        # The measured times are multiples of a clock tick, so the difference may be negative.
        return min(max(busy_s - own_s, 0.0) / all_s, 1.0)

    def properties(self) -> dict[str, Any]:
        """Return the properties of the machine that affect figures."""
        return {
            "date": self._began.strftime("%Y-%m-%d %H:%M UTC"),
            "commit": _command_output("git", "describe", "--always", "--dirty"),
            "cpu": f"{os.cpu_count()} x {_cpu_model()}",
            "kernel": platform.release(),
            "python": platform.python_version(),
            "java": _java_version(),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
            "load_average_at_start": self.load_average,
            "cpu_used_by_others": round(self.other_processes_share(), 3),
        }

    def lines(self) -> list[str]:
        """Return the properties as text, with a warning if other processes affected the figures."""
        facts = self.properties()
        lines = [
            f"{facts['date']}, commit {facts['commit']}, {facts['cpu']}, Linux {facts['kernel']}",
            f"Python {facts['python']}, Java {facts['java']}, priority {facts['priority']} for all, "
            f"load average {facts['load_average_at_start']:.2f} at the start, other processes used "
            f"{facts['cpu_used_by_others']:.0%} of the CPU time",
        ]
        if self.load_average > LOAD_PER_CORE_MAX * (os.cpu_count() or 1):
            lines.append("WARNING: the machine was busy when the measurement began")
        if facts["cpu_used_by_others"] > BUSY_SHARE:
            lines.append("WARNING: other processes were running; do not rely on these figures")
        return lines


def _read_busy_seconds() -> float:
    """Return the CPU seconds of all cores that were not idle."""
    times = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = map(int, times)
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java_version() -> str:
    java = program_path("java")
    if java is None:
        return "none"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return output.partition('"')[2].partition('"')[0] or "unknown"


def _command_output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"
