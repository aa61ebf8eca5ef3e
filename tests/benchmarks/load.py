"""A load, and what came of it: a closed loop of clients, each with one request in flight, as brokers do.

The generator is a small program in C, so that it takes little of the machine that it shares with what it
measures. Where there is no C compiler it is Python on uvloop, which bounds the figures from above.
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

from tests.benchmarks.frames import Frame, Load, frames, offsets_a_lap
from tests.benchmarks.python_generator import drive

_SOURCE = Path(__file__).with_name("generator.c")
_COMPILERS = ("cc", "gcc", "clang")


class Figures(NamedTuple):
    """What came of it. Latencies in microseconds."""

    requests_per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    errors: int


@cache
def generator() -> Path | None:
    """Compile the generator; None if there is no compiler that can."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    folder = _folder()
    program = folder / "generator"
    command = [compiler, "-O2", "-o", str(program), str(_SOURCE)]
    return program if subprocess.run(command, capture_output=True).returncode == 0 else None


@cache
def _folder() -> Path:
    # Held until the end of the process, which removes it.
    folder = TemporaryDirectory(prefix="share-coordinator-generator-")
    _held.append(folder)
    return Path(folder.name)


_held: list[TemporaryDirectory[str]] = []


# Every run has groups of its own: to one that was driven before, the offsets of a new run lie below the start
# offset, and there would be nothing to keep.
_runs = count()


def measure(
    host: str, port: int, topic_id: bytes, load: Load, seconds: float, *, answers_max: int = 0
) -> Figures:
    """Drive a coordinator with a load for some seconds, or until so many answers are there."""
    run = next(_runs)
    clients = [frames(f"bench-{run}-{number}", topic_id, load) for number in range(load.connections)]
    return drive_frames(host, port, clients, seconds, step=offsets_a_lap(load), answers_max=answers_max)


def drive_frames(
    host: str,
    port: int,
    clients: Sequence[tuple[list[Frame], list[Frame]]],
    seconds: float,
    *,
    step: int = 0,
    answers_max: int = 0,
) -> Figures:
    """Drive a coordinator with a connection for each client: what goes first, and what is sent lap after lap.

    In each lap but the first, the offsets of the frames move on by `step`.
    """
    program = generator()
    if program is None:
        return Figures(*uvloop.run(drive(host, port, list(clients), seconds, answers_max)))
    fed = [_int32(len(clients)), step.to_bytes(8, "big")]
    for first, measured in clients:
        fed += _fed(first)
        fed += _fed(measured)
    command = [str(program), host, str(port), str(seconds), str(answers_max)]
    run = subprocess.run(command, input=b"".join(fed), capture_output=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr.decode())
    answers, took_s, errors, *latencies_us = run.stdout.split()
    return Figures(int(answers) / float(took_s), *map(float, latencies_us), int(errors))


def _fed(sent: list[Frame]) -> list[bytes]:
    parts = [_int32(len(sent))]
    for frame in sent:
        parts += [_int32(len(frame.offset_places)), *map(_int32, frame.offset_places), frame.data]
    return parts


def _int32(number: int) -> bytes:
    return number.to_bytes(4, "big")
