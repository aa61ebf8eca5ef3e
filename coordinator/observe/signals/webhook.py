"""Send events of share groups to an HTTP endpoint."""

import asyncio
import urllib.request

import msgspec

from coordinator.observe.signals.monitor import Event

TIMEOUT_S = 10.0


class Webhook:
    """An endpoint that receives each event as a JSON object with POST. Any 2xx status is a success."""

    name = "The webhook"

    def __init__(self, url: str) -> None:
        """Prepare for an http or https URL without connecting."""
        self._url = url

    async def deliver(self, event: Event) -> None:
        """Send an event. Raises OSError if the response status is not 2xx."""
        await asyncio.to_thread(self._post_event, msgspec.json.encode(event))

    async def close(self) -> None:
        """Do nothing: each event has a connection of its own."""

    def _post_event(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read(1_000)
