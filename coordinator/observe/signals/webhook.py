"""Send events of share groups to an HTTP endpoint."""

import ssl

import msgspec

from coordinator.observe.signals.monitor import SignalEvent

TIMEOUT_S = 10.0
_RESPONSE_BYTES_MAX = 1_000


class Webhook:
    """An endpoint that receives each event as a JSON object with POST. Any 2xx status is a success."""

    name = "The webhook"

    def __init__(self, url: str) -> None:
        """Prepare for an http or https URL without connecting."""
        from coordinator.process.http_request import send_request

        self._send_request = send_request
        self._url = url
        self._tls = ssl.create_default_context()

    async def deliver(self, event: SignalEvent) -> None:
        """Send an event. Raises OSError if the response status is not 2xx."""
        try:
            await self._send_request(
                "POST",
                self._url,
                tls=self._tls,
                timeout_s=TIMEOUT_S,
                bytes_max=_RESPONSE_BYTES_MAX,
                body=msgspec.json.encode(event),
                headers={"Content-Type": "application/json"},
            )
        except OSError:
            # The trusted authorities may have changed. Reading them takes 15 ms, too long for each request.
            self._tls = ssl.create_default_context()
            raise

    async def close(self) -> None:
        """Do nothing: each event has a connection of its own."""
