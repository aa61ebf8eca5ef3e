"""Drive a coordinator with a workload over closed-loop connections, like those of brokers.

The generator is a small C program, which leaves most processor time to the coordinator. Without a C compiler
the generator runs in Python on uvloop; the figures are then lower bounds.
"""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop

from protocol.errors import ErrorCode
from tests.benchmarks.frames import ClientRequests, Frame, Workload
from tests.benchmarks.machine import process_cpu_seconds
from tests.benchmarks.python_generator import drive_clients

_SOURCE = Path(__file__).with_name("generator.c")
_COMPILERS = ("cc", "gcc", "clang")


class LoadFigures(NamedTuple):
    """The result of one run. `cpu_us` is the CPU time of the server per request; 0 if unknown."""

    requests_per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    errors: int
    cpu_us: float = 0.0
    first_error: int = 0

    @property
    def error_text(self) -> str:
        """Return the number of failed responses and the first error code; empty if none failed."""
        return f"{self.errors} ERRORS, first {ErrorCode(self.first_error).name}" if self.errors else ""


@cache
def compile_generator() -> Path | None:
    """Compile the generator; return None without a working compiler."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    program = _generator_folder() / "generator"
    command = [compiler, "-O2", "-o", str(program), str(_SOURCE)]
    return program if subprocess.run(command, capture_output=True).returncode == 0 else None


@cache
def _generator_folder() -> Path:
    # The directory is removed when the process ends.
    folder = TemporaryDirectory(prefix="share-coordinator-generator-")
    _held.append(folder)
    return Path(folder.name)


_held: list[TemporaryDirectory[str]] = []


# Each run has its own groups. The offsets of a new run are below the start offsets of an earlier run, so the
# coordinator would ignore writes to the same groups.
_runs = count()


def measure_workload(
    host: str,
    port: int,
    topic_ids: Sequence[bytes],
    workload: Workload,
    seconds: float,
    *,
    answers_max: int = 0,
    pid: int = 0,
) -> LoadFigures:
    """Drive a coordinator for some seconds, or until `answers_max` responses have arrived.

    `pid` is the process whose CPU time is measured.
    """
    return drive_frames(
        host,
        port,
        workload.clients(next(_runs), topic_ids),
        seconds,
        offset_step=workload.offset_step,
        epoch_step=workload.epoch_step,
        answers_max=answers_max,
        pid=pid,
    )


def drive_frames(
    host: str,
    port: int,
    clients: Sequence[ClientRequests],
    seconds: float,
    *,
    offset_step: int = 0,
    epoch_step: int = 0,
    answers_max: int = 0,
    pid: int = 0,
) -> LoadFigures:
    """Drive a coordinator with one connection for each client. Clients with an interval come first.

    Each repetition of the frames adds `offset_step` to their offsets and `epoch_step` to their epochs.
    """
    program = compile_generator()
    if program is None:
        return _drive_in_python(host, port, clients, seconds, answers_max, pid)
    parts = [_encode_int32(len(clients)), offset_step.to_bytes(8, "big"), _encode_int32(epoch_step)]
    for client in clients:
        parts += [_encode_int32(client.in_flight), _encode_int32(client.interval_ms)]
        parts += _encode_frames(client.prologue)
        parts += _encode_frames(client.run)
    command = [str(program), host, str(port), str(seconds), str(answers_max), str(pid)]
    run = subprocess.run(command, input=b"".join(parts), capture_output=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr.decode())
    answers, took_s, errors, first_error, cpu_s, *latencies_us = run.stdout.split()
    return LoadFigures(
        int(answers) / float(took_s),
        *map(float, latencies_us),
        int(errors),
        float(cpu_s) * 1e6 / int(answers),
        int(first_error),
    )


def _drive_in_python(
    host: str, port: int, clients: Sequence[ClientRequests], seconds: float, answers_max: int, pid: int
) -> LoadFigures:
    began_s = process_cpu_seconds(pid) if pid else 0.0
    figures = uvloop.run(drive_clients(host, port, clients, seconds, answers_max))
    used_s = process_cpu_seconds(pid) - began_s if pid else 0.0
    return LoadFigures(*figures.measured, figures.errors, used_s * 1e6 / figures.answers, figures.first_error)


def _encode_frames(frames: Sequence[Frame]) -> list[bytes]:
    parts = [_encode_int32(len(frames))]
    for frame in frames:
        parts += [_encode_positions(frame.offset_places), _encode_positions(frame.epoch_places), frame.data]
    return parts


@cache
def _encode_position_tuple(places: tuple[int, ...]) -> bytes:
    return b"".join(map(_encode_int32, (len(places), *places)))


def _encode_positions(places: Sequence[int]) -> bytes:
    return _encode_position_tuple(tuple(places))


def _encode_int32(number: int) -> bytes:
    return number.to_bytes(4, "big")
