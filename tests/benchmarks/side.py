"""One coordinator that is measured, and its figures."""

import statistics

from tests.benchmarks.load import Figures, Load


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
        rounds = self.rounds[load]
        return Figures(
            statistics.median(figures.requests_per_second for figures in rounds),
            statistics.median(figures.p50_us for figures in rounds),
            statistics.median(figures.p99_us for figures in rounds),
            sum(figures.errors for figures in rounds),
        )
