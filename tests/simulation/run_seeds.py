"""Simulate with several seeds, in sequence or on all cores, and format the violations."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.journal import JournalSimulator
from tests.simulation.kafka.scenarios import draw_kafka_plan
from tests.simulation.kafka.simulator import KafkaSimulator
from tests.simulation.plan import draw_plan
from tests.simulation.simulation import SimulationOutcome


def simulate_journal(seed: int, minutes: float | None = None) -> SimulationOutcome:
    return JournalSimulator(draw_plan(seed, minutes=minutes)).run()


def simulate_kafka(seed: int, minutes: float | None = None) -> SimulationOutcome:
    """Simulate several coordinators on a Kafka cluster."""
    return KafkaSimulator(draw_kafka_plan(seed, minutes=minutes)).run()


# The kinds of simulation. The kinds of simulation; the same seed has a different plan in each kind.
KINDS: dict[str, Callable[[int, float | None], SimulationOutcome]] = {
    "alone": simulate_journal,
    "kafka": simulate_kafka,
}


def check_seed(kind: str, minutes: float | None, seed: int) -> str | None:
    """Simulate with one seed; return its violation and the command for a replay, or None."""
    outcome = KINDS[kind](seed, minutes)
    if outcome.violation is None:
        return None
    options = f"--kind {kind} --seed {seed}" + (f" --minutes {minutes}" if minutes else "")
    return (
        f"{outcome}\n{type(outcome.violation).__name__}: {outcome.violation}\n"
        f"replay: python -m tests.simulation {options} --verbose"
    )


def check_seeds(kind: str, seeds: Sequence[int], minutes: float | None = None) -> Iterator[str]:
    """Simulate with several seeds on all cores; yield the violations in the order of the seeds."""
    return (violation for violation in check_each_seed(kind, seeds, minutes) if violation is not None)


def check_each_seed(kind: str, seeds: Sequence[int], minutes: float | None = None) -> Iterator[str | None]:
    """Simulate with several seeds on all cores; yield the result of `check_seed` for each seed, in order."""
    workers = os.cpu_count() or 1
    chunk = max(1, min(25, len(seeds) // (4 * workers)))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(check_seed, kind, minutes), seeds, chunksize=chunk)
