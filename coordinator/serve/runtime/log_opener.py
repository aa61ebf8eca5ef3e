"""Open the log at startup; retry while its brokers are unavailable.

Brokers and coordinators may start in any order. Errors that a retry cannot resolve are raised: a broker
refuses the login, or a topic differs from the settings.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from coordinator.errors import LogRefused, LogUnavailable
from coordinator.process.clock import Clock
from coordinator.process.event_loop import run_until_set

_logger = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 5.0
# The interval at which a wait that continues is logged again.
REPEAT_INTERVAL_S = 60.0


class LogOpener:
    """Opens a log, with retries; `health` returns the reason for the wait."""

    def __init__(self, open_log: Callable[[], Awaitable[None]], clock: Clock) -> None:
        """Create an opener; `run` calls `open_log` again while it raises LogUnavailable."""
        self._open_log = open_log
        self._clock = clock
        self._since = ""
        self._reason = ""
        self._logged_s = float("-inf")

    async def run(self, stop_requested: asyncio.Event) -> bool:
        """Open the log and return True; return False if a stop was requested first.

        Raises LogRefused, and other errors that a retry cannot resolve.
        """
        return await run_until_set(self._try_open_log(), stop_requested)

    async def _try_open_log(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                await self._open_log()
                break
            except LogRefused:
                raise
            except LogUnavailable as error:
                self._record_log_unavailable(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        if self._since:
            _logger.info("The log is open.", extra={"waited_since": self._since})
        self._since = self._reason = ""

    def health(self) -> list[str]:
        """Return the reason for the wait and its start time; an empty list if there is no wait."""
        if not self._since:
            return []
        return [f"The log cannot be opened since {self._since}: {self._reason}"]

    def _record_log_unavailable(self, reason: str) -> None:
        self._reason = reason
        if not self._since:
            now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
            self._since = now.isoformat(timespec="seconds")
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= REPEAT_INTERVAL_S:
            self._logged_s = now_s
            _logger.warning("Waiting for the log: %s", reason, extra={"since": self._since})
