"""A wall clock for tests."""


class ManualClock:
    """A wall clock that only the test advances."""

    def __init__(self, ms: int = 1_700_000_000_123) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return self.ms

    def advance(self, minutes: float) -> None:
        self.ms += round(minutes * 60_000)
