"""How long we may believe the last thing that Kafka told us."""

from collections.abc import Callable


class Lease:
    """A time that runs from when a question was sent whose answer said that our map is the newest.

    Written by one thread, read by any: a number is all there is.
    """

    def __init__(self, lasts_s: float, monotonic: Callable[[], float]) -> None:
        self._lasts_s = lasts_s
        self._monotonic = monotonic
        self._renewed_s: float | None = None

    def renew(self, sent_s: float) -> None:
        """Count from a question sent at this time on the clock."""
        self._renewed_s = sent_s if self._renewed_s is None else max(self._renewed_s, sent_s)

    def end(self) -> None:
        """Believe nothing any more."""
        self._renewed_s = None

    def age_s(self) -> float | None:
        """Return the seconds since the question, None if there was none."""
        renewed_s = self._renewed_s
        return None if renewed_s is None else self._monotonic() - renewed_s

    def left_s(self) -> float:
        """Return the seconds until it is not fresh any more, 0 or less if it is not."""
        age_s = self.age_s()
        return 0.0 if age_s is None else self._lasts_s - age_s

    def is_fresh(self) -> bool:
        """True while it lasts."""
        return self.left_s() > 0
