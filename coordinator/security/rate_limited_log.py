"""Log warnings about clients, with a rate limit for each kind of message."""

import logging
from typing import Any

from coordinator.process.clock import seconds_since_boot

_logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
# Clients choose some logged values, so their length is limited.
FACT_CHARS_MAX = 200
SENTENCES_MAX = 100


class RateLimitedLog:
    """Logs each message at once, and after an interval again with the number of suppressed repetitions."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def warn(self, sentence: str, **facts: object) -> None:
        """Log a warning with a rate limit. The values in `facts` are logged and must contain no secrets."""
        self.warn_by_kind(sentence, sentence, **facts)

    def warn_by_kind(self, kind: str, sentence: str, **facts: object) -> None:
        """Log a warning like `warn`, with one rate limit for all sentences of a kind."""
        now_s = seconds_since_boot()
        if now_s - self._logged_s.get(kind, -INTERVAL_S) < INTERVAL_S:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        if len(self._logged_s) >= SENTENCES_MAX:
            self._logged_s.clear()
            self._suppressed.clear()
        self._logged_s[kind] = now_s
        more = self._suppressed.pop(kind, 0)
        sentence, facts = _shorten_text(sentence), {name: _shorten_text(fact) for name, fact in facts.items()}
        _logger.warning(sentence, extra={**facts, **({"more_before": more} if more else {})})


def _shorten_text(fact: Any) -> Any:
    """Return a value for the log; long text is shortened."""
    if isinstance(fact, str) and len(fact) > FACT_CHARS_MAX:
        return f"{fact[:FACT_CHARS_MAX]}... ({len(fact)} characters)"
    return fact
