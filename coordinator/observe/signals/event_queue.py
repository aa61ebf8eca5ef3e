"""Deliver events of share groups to a destination, in order and without blocking the event loop."""

import asyncio
import logging
from collections import deque
from typing import Protocol

from coordinator.errors import CoordinatorError
from coordinator.observe.signals.monitor import SignalEvent

_logger = logging.getLogger(__name__)

# Delays in seconds before the retries; after the last retry, the event is dropped.
RETRY_AFTER_S = (1.0, 5.0, 30.0)
# Maximum number of queued events; the oldest are dropped first, as in /api/v1/events.
WAITING_MAX = 1_000


class EventDestination(Protocol):
    """A destination of events. Log messages about it begin with its `name`."""

    name: str

    async def deliver(self, event: SignalEvent) -> None:
        """Deliver an event. Raises OSError or CoordinatorError if the event has to be delivered again."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class EventQueue:
    """Queues events for one destination; `run` delivers them one after another."""

    def __init__(
        self, destination: EventDestination, *, retry_after_s: tuple[float, ...] = RETRY_AFTER_S
    ) -> None:
        """Create an empty queue."""
        self._destination = destination
        self._retry_after_s = retry_after_s
        self._waiting: deque[SignalEvent] = deque(maxlen=WAITING_MAX)
        self._arrived = asyncio.Event()

    def send(self, event: SignalEvent) -> None:
        """Queue an event."""
        if len(self._waiting) == WAITING_MAX:
            _logger.warning("%s is too slow; the oldest event was dropped.", self._destination.name)
        self._waiting.append(event)
        self._arrived.set()

    async def run(self) -> None:
        """Deliver queued events until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._deliver_event(self._waiting.popleft())

    async def close(self) -> None:
        """Close the destination."""
        await self._destination.close()

    async def _deliver_event(self, event: SignalEvent) -> None:
        name = self._destination.name
        for pause_s in (*self._retry_after_s, None):
            try:
                await self._destination.deliver(event)
            except (OSError, CoordinatorError) as error:
                if pause_s is None:
                    _logger.warning("%s did not accept an event, which was dropped: %s", name, error)
                    return
                _logger.info("%s did not accept an event; retrying in %g s: %s", name, pause_s, error)
                await asyncio.sleep(pause_s)
            except Exception:
                _logger.exception("%s failed with an unexpected error; an event was dropped.", name)
                return
            else:
                return
