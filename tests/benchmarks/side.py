"""One coordinator that is measured, and its figures."""

import statistics

from tests.benchmarks.frames import Load
from tests.benchmarks.load import Figures


class Side:
    """Where it is, and what came of each round. Sides that are `beside` each other can be compared."""

    def __init__(self, name: str, host: str, port: int, topic_id: bytes, *, beside: str = "") -> None:
        self.name = name
        self.host = host
        self.port = port
        self.topic_id = topic_id
        self.beside = beside
        self.rounds: dict[Load, list[Figures]] = {}

    @property
    def is_kafka(self) -> bool:
        return self.name.startswith("Kafka")

    def add(self, load: Load, figures: Figures) -> None:
        """Note the figures of one more round."""
        self.rounds.setdefault(load, []).append(figures)

    def median(self, load: Load) -> Figures:
        """Return the median of each figure over the rounds."""
        columns = zip(*self.rounds[load], strict=True)
        *medians, _ = map(statistics.median, columns)
        return Figures(*medians, sum(figures.errors for figures in self.rounds[load]))
