"""One coordinator that is measured, and its figures."""

import statistics

from tests.benchmarks.frames import Load
from tests.benchmarks.load import Figures


class Side:
    """Where it is, and what came of each round. Sides that are `beside` each other can be compared.

    `sync` is its journal.sync, if it has a journal; `settings` says to people how it was started.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        topic_id: bytes,
        *,
        beside: str = "",
        sync: str = "",
        settings: str = "",
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.topic_id = topic_id
        self.beside = beside
        self.sync = sync
        self.settings = settings
        self.rounds: dict[Load, list[Figures]] = {}

    @property
    def is_kafka(self) -> bool:
        return self.name.startswith("Kafka")

    def add(self, load: Load, figures: Figures) -> None:
        """Note the figures of one more round."""
        self.rounds.setdefault(load, []).append(figures)

    def of(self, load: Load, figure: str) -> list[float]:
        """Return one figure of each round."""
        return [getattr(figures, figure) for figures in self.rounds[load]]

    def median(self, load: Load) -> Figures:
        """Return the median of each figure over the rounds."""
        columns = zip(*self.rounds[load], strict=True)
        *medians, _ = map(statistics.median, columns)
        return Figures(*medians, sum(figures.errors for figures in self.rounds[load]))
