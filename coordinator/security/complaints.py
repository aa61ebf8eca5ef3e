"""Log lines about strangers: what they do wrong is worth a line, but not one each."""

import logging

from coordinator.clock import seconds_since_boot

_logger = logging.getLogger(__name__)

SAY_EVERY_S = 10.0


class Complaints:
    """Says a thing at once, and again after a while, with how often it happened in between."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def say(self, sentence: str, **facts: object) -> None:
        """Warn, unless that was said just now. Facts are shown to people: no secrets."""
        now_s = seconds_since_boot()
        if now_s - self._said_s.get(sentence, -SAY_EVERY_S) < SAY_EVERY_S:
            self._left_out[sentence] = self._left_out.get(sentence, 0) + 1
            return
        self._said_s[sentence] = now_s
        more = self._left_out.pop(sentence, 0)
        _logger.warning(sentence, extra={**facts, **({"more_before": more} if more else {})})
