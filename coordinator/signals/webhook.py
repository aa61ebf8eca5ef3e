"""Send events of share groups to an HTTP endpoint, in order and without blocking the event loop."""

import asyncio
import logging
import urllib.request
from collections import deque

import msgspec

from coordinator.signals.monitor import Event

_logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
# Delays in seconds before the retries; after the last retry, the event is dropped.
RETRY_AFTER_S = (1.0, 5.0, 30.0)
# Maximum number of queued events; the oldest are dropped first, as in /api/v1/events.
WAITING_MAX = 1_000


class Webhook:
    """An endpoint that receives each event as a JSON object with POST. Any 2xx status is a success."""

    def __init__(self, url: str, *, retry_after_s: tuple[float, ...] = RETRY_AFTER_S) -> None:
        """Create a sender for an http or https URL without connecting."""
        self._url = url
        self._retry_after_s = retry_after_s
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self._arrived = asyncio.Event()

    def send(self, event: Event) -> None:
        """Queue an event."""
        if len(self._waiting) == WAITING_MAX:
            _logger.warning("The webhook is too slow; the oldest event was dropped.")
        self._waiting.append(event)
        self._arrived.set()

    async def run(self) -> None:
        """Send queued events one after another until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._deliver(self._waiting.popleft())

    async def _deliver(self, event: Event) -> None:
        body = msgspec.json.encode(event)
        for pause_s in (*self._retry_after_s, None):
            try:
                await asyncio.to_thread(self._post, body)
            except OSError as error:
                if pause_s is None:
                    _logger.warning("The webhook did not accept an event, which was dropped: %s", error)
                    return
                _logger.info("The webhook did not accept an event; retrying in %g s: %s", pause_s, error)
                await asyncio.sleep(pause_s)
            else:
                return

    def _post(self, body: bytes) -> None:
        """Send an event. Raises OSError if the response status is not 2xx."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read(1_000)
