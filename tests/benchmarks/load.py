"""Drive a coordinator with a workload over closed-loop connections, like those of brokers.

The generator is a small C program, which leaves most processor time to the coordinator.
"""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from protocol.errors import ErrorCode
from tests.benchmarks.frames import ClientRequests, Frame, Workload

_SOURCE = Path(__file__).with_name("generator.c")
_COMPILERS = ("cc", "gcc", "clang")
# The directory of the compiled generator is removed when the process ends.
_folders: list[TemporaryDirectory[str]] = []


class LoadFigures(NamedTuple):
    """The result of one run of the load generator.

    `cpu_us` is the CPU time of the server per request; 0 if unknown.
    """

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
def compile_generator() -> Path:
    """Compile the generator. Raises RuntimeError without a working compiler."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise RuntimeError("the load generator needs a C compiler: apt-get install gcc libc6-dev")
    _folders.append(TemporaryDirectory(prefix="share-coordinator-generator-"))
    program = Path(_folders[-1].name, "generator")
    run = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(_SOURCE)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"the load generator does not compile: {run.stderr}")
    return program


# Each run has its own share groups. The offsets of a new run are below the start offsets of an earlier run,
# so the coordinator would ignore writes to the same groups.
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
    """Drive a coordinator with one connection for each client. Clients with a request interval come first.

    Each repetition of the frames adds `offset_step` to their offsets and `epoch_step` to their epochs.
    """
    parts = [_encode_int32(len(clients)), offset_step.to_bytes(8, "big"), _encode_int32(epoch_step)]
    for client in clients:
        parts += [_encode_int32(client.in_flight), _encode_int32(client.interval_ms)]
        parts += _encode_frames(client.prologue)
        parts += _encode_frames(client.run)
    command = [str(compile_generator()), host, str(port), str(seconds), str(answers_max), str(pid)]
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


def _encode_frames(frames: Sequence[Frame]) -> list[bytes]:
    parts = [_encode_int32(len(frames))]
    for frame in frames:
        parts += [
            _encode_positions(tuple(frame.offset_places)),
            _encode_positions(tuple(frame.epoch_places)),
            frame.data,
        ]
    return parts


@cache
def _encode_positions(places: tuple[int, ...]) -> bytes:
    return b"".join(map(_encode_int32, (len(places), *places)))


def _encode_int32(number: int) -> bytes:
    return number.to_bytes(4, "big")
