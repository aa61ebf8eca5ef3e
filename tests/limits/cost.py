"""Measure the effect of an attack on the latency of other clients and on the memory of the process."""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.benchmarks.machine import resident_bytes
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.relay import RelayProcess
from tests.limits.attacks import HTTP, KAFKA
from tests.limits.observed import LoopTime, LoopTimes
from tests.limits.victims import MeasuredClients

P999_MS_MAX = 50.0
# The maximum p99.9 of the CPU time between two ticks of the event loop (see `observed`), in milliseconds.
LOOP_P999_MS_MAX = 25.0
GROWTH_MB_MAX = 256.0
RELEASED_MB_MAX = 32.0
RELEASE_S = 30.0


HEADINGS = (
    f"{'kind':18}{'opened':>8}{'loop CPU':>9}{'ms each':>8}{'p99.9':>7}{'max ms':>7}"
    f"{'requests':>9}{'broker p99.9':>14}{'probe p99.9':>13}{'growth MB':>11}{'left MB':>9}"
)


class AttackCost(NamedTuple):
    """The measured effect of an attack of one kind."""

    kind: str
    opened: int
    seconds: float
    loop: LoopTime
    requests: int
    broker_p999_ms: float
    probe_p999_ms: float
    growth_mb: float
    left_mb: float

    def exceeded_bounds(self) -> list[str]:
        """Return a description of each exceeded bound."""
        found = []
        if self.broker_p999_ms > P999_MS_MAX:
            found.append(f"p99.9 of a broker is {self.broker_p999_ms:.0f} ms")
        if self.probe_p999_ms > P999_MS_MAX:
            found.append(f"p99.9 of a probe is {self.probe_p999_ms:.0f} ms")
        if self.loop.p999_ms > LOOP_P999_MS_MAX:
            found.append(f"p99.9 of the event loop is {self.loop.p999_ms:.0f} ms of CPU time")
        if self.growth_mb > GROWTH_MB_MAX:
            found.append(f"memory grew by {self.growth_mb:.0f} MB")
        if self.left_mb > RELEASED_MB_MAX:
            found.append(f"{self.left_mb:.0f} MB were not released")
        return found

    def table_row(self) -> str:
        """Return one row of the cost table."""
        each_ms = self.loop.cpu_s / max(1, self.opened) * 1000
        return (
            f"{self.kind:18}{self.opened:8}{self.loop.cpu_s / self.seconds:9.0%}{each_ms:8.2f}"
            f"{self.loop.p999_ms:7.1f}{self.loop.max_ms:7.1f}"
            f"{self.requests:9}{self.broker_p999_ms:14.1f}{self.probe_p999_ms:13.1f}"
            f"{self.growth_mb:11.0f}{self.left_mb:9.0f}"
        )


def measure_attack(
    process: CoordinatorProcess | RelayProcess,
    kinds: Sequence[str],
    count: int,
    seconds: float,
    loop_times: LoopTimes,
) -> AttackCost:
    """Attack the Kafka port, the HTTP port or both, each with `count` connections; return the cost."""
    pid = process.process.pid
    before = highest = resident_bytes(pid)
    clients = MeasuredClients(process)
    loop_times.start_measurement()
    attackers = []
    for known, port in ((KAFKA, process.port), (HTTP, process.http_port)):
        if chosen := [kind for kind in kinds if kind in known]:
            arguments = [",".join(chosen), str(port), str(count), str(seconds)]
            attackers.append(_start_attack(arguments))
    opened = 0
    try:
        while any(attacker.poll() is None for attacker in attackers):
            highest = max(highest, resident_bytes(pid))
            time.sleep(0.1)
        loop = loop_times.finish_measurement()
        opened = sum(int(attacker.stdout.read()) for attacker in attackers if attacker.stdout is not None)
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.communicate()
        clients.stop()
    released_by_s = time.monotonic() + RELEASE_S
    while (left := resident_bytes(pid) - before) > RELEASED_MB_MAX * 1e6 and time.monotonic() < released_by_s:
        time.sleep(0.5)
    return AttackCost(
        ",".join(kinds),
        opened,
        seconds,
        loop,
        len(clients.broker_ms),
        percentile_999(clients.broker_ms),
        percentile_999(clients.probe_ms),
        (highest - before) / 1e6,
        left / 1e6,
    )


def _start_attack(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start the process of an attack, which prints the number of connections that it has opened."""
    command = [sys.executable, "-m", "tests.limits.attacks", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def percentile_999(values: list[float]) -> float:
    """Return the 99.9th percentile."""
    return sorted(values)[int(len(values) * 0.999)]
