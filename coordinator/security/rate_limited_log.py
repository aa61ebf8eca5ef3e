"""Log lines about strangers: what they do wrong is worth a line, but not one each."""

import logging
from typing import Any

from coordinator.clock import seconds_since_boot

_logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
# A client chooses some facts, and sentences with them: neither the log nor the memory of it grows with them.
FACT_CHARS_MAX = 200
SENTENCES_MAX = 100


class RateLimitedLog:
    """Says a thing at once, and again after a while, with how often it happened in between."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def warn(self, sentence: str, **facts: object) -> None:
        """Warn, unless that was said just now. Facts are shown to people: no secrets."""
        now_s = seconds_since_boot()
        if now_s - self._logged_s.get(sentence, -INTERVAL_S) < INTERVAL_S:
            self._suppressed[sentence] = self._suppressed.get(sentence, 0) + 1
            return
        if len(self._logged_s) >= SENTENCES_MAX:
            self._logged_s.clear()
            self._suppressed.clear()
        self._logged_s[sentence] = now_s
        more = self._suppressed.pop(sentence, 0)
        sentence, facts = _cut(sentence), {name: _cut(fact) for name, fact in facts.items()}
        _logger.warning(sentence, extra={**facts, **({"more_before": more} if more else {})})


def _cut(fact: Any) -> Any:
    """Return a fact as it is, or the beginning of a long text."""
    if isinstance(fact, str) and len(fact) > FACT_CHARS_MAX:
        return f"{fact[:FACT_CHARS_MAX]}... ({len(fact)} characters)"
    return fact
