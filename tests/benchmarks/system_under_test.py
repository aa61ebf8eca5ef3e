"""A coordinator under measurement, its figures in each round, and the spread of the rounds.

Systems are measured in turn, so each ratio compares two systems in the same round. A slowdown of the machine
affects both of them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.frames import Workload
from tests.benchmarks.load import LoadFigures, measure_workload
from tests.benchmarks.machine import has_loaded_extension


class RoundSpread(NamedTuple):
    """The median, minimum and maximum of a figure over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_format_number(self.median)} ({_format_number(self.low)}-{_format_number(self.high)})"


def compute_spread(rounds: Sequence[float]) -> RoundSpread:
    """Return the median and the extremes of the rounds. There must be at least one round."""
    return RoundSpread(statistics.median(rounds), min(rounds), max(rounds))


def ratio_spread(ours: Sequence[float], theirs: Sequence[float]) -> RoundSpread:
    """Return the spread of `ours / theirs`, computed round by round."""
    return compute_spread([our / their for our, their in zip(ours, theirs, strict=True)])


def _format_number(number: float) -> str:
    """Format a number with about three significant digits."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


# The maximum number of topics in a workload, and the number of partitions of each topic.
TOPICS = 5
PARTITIONS = 200


@dataclass
class SystemUnderTest:
    """The address of a coordinator, its process, and the figures of each round.

    Systems with the same `cluster` are compared with each other. `log` is the value of journal.sync of this
    coordinator, "topic", or empty for other systems. `commit` is the built Git commit, or empty for the
    working tree. `package` is the directory of the Python package. `settings` describes how the system was
    started.
    """

    name: str
    host: str
    port: int
    topic_ids: Sequence[bytes]
    pid: int = 0
    cluster: str = ""
    log: str = ""
    commit: str = ""
    package: Path | None = None
    settings: str = ""
    rounds: dict[Workload, list[LoadFigures]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_compiled = self.package is None or has_loaded_extension(self.pid, self.package)
        if not self.is_compiled:
            self.name += ", no compiled module"

    @property
    def is_kafka(self) -> bool:
        return self.name.startswith("Kafka")

    def drive(self, workload: Workload, seconds: float, *, answers_max: int = 0) -> LoadFigures:
        """Drive the system with a workload for some seconds, or up to `answers_max` responses if not 0."""
        return measure_workload(
            self.host, self.port, self.topic_ids, workload, seconds, answers_max=answers_max, pid=self.pid
        )

    def add(self, workload: Workload, figures: LoadFigures) -> None:
        """Add the figures of one more round."""
        self.rounds.setdefault(workload, []).append(figures)

    def per_round(self, workload: Workload, figure: str) -> list[float]:
        """Return one figure of each round."""
        return [getattr(figures, figure) for figures in self.rounds[workload]]

    def median(self, workload: Workload) -> LoadFigures:
        """Return the median of each figure over the rounds, and the sum of the errors."""
        rounds = self.rounds[workload]
        medians = LoadFigures(*map(statistics.median, zip(*rounds, strict=True)))
        errors = sum(figures.errors for figures in rounds)
        first = next((figures.first_error for figures in rounds if figures.errors), 0)
        return medians._replace(errors=errors, first_error=first)
