"""The webhook delivers events in order, retries refused events, and drops an event after the last attempt."""

import asyncio
import json
import ssl
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from coordinator.observe.signals.detectors import SignalEvent
from coordinator.observe.signals.event_delivery import WAITING_MAX, EventQueue, Webhook
from tests.certificates import CertificateAuthority


def make_event(number: int) -> SignalEvent:
    return SignalEvent(number, "workers", "stuck", began=True, message=f"message {number}")


class WebhookEndpoint:
    """An HTTP server that responds with the given status codes, then with 204."""

    def __init__(self, statuses: list[int], certificate: Path | None = None) -> None:
        self.received: Queue[dict[str, Any]] = Queue()
        endpoint = self

        class RecordingHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                endpoint.received.put(json.loads(body))
                self.send_response(statuses.pop(0) if statuses else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), RecordingHandler)
        self._scheme = "http"
        if certificate is not None:
            self._scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever)

    def __enter__(self) -> "WebhookEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/events"


def send_events(
    endpoint: WebhookEndpoint, events: list[SignalEvent], count: int, *, webhook: type[Webhook] = Webhook
) -> list[dict[str, Any]]:
    """Send events; return the first `count` request bodies that the endpoint received."""

    async def send_and_receive() -> list[dict[str, Any]]:
        queue = EventQueue(webhook(endpoint.url), retry_after_s=(0.0, 0.0))
        running = asyncio.create_task(queue.run())
        for each in events:
            queue.put(each)
        bodies = [await asyncio.to_thread(endpoint.received.get, timeout=60) for _ in range(count)]
        running.cancel()
        return bodies

    return asyncio.run(send_and_receive())


def test_events_arrive_in_order_and_a_refused_event_is_resent() -> None:
    with WebhookEndpoint([204, 503]) as endpoint:
        bodies = send_events(endpoint, [make_event(1), make_event(2), make_event(3)], 4)
    assert [body["timestamp_ms"] for body in bodies] == [1, 2, 2, 3]
    assert bodies[0] == {
        "timestamp_ms": 1,
        "group": "workers",
        "problem": "stuck",
        "began": True,
        "message": "message 1",
    }


def test_event_is_dropped_after_the_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    with WebhookEndpoint([500, 500, 500]) as endpoint:
        bodies = send_events(endpoint, [make_event(1), make_event(2)], 4)
    assert [body["timestamp_ms"] for body in bodies] == [1, 1, 1, 2]
    assert "which was dropped: HTTP status 500" in caplog.text


def test_event_after_an_unexpected_error_is_delivered(caplog: pytest.LogCaptureFixture) -> None:
    class FailingWebhook(Webhook):
        async def deliver(self, event: SignalEvent) -> None:
            if event.timestamp_ms == 1:
                raise ZeroDivisionError
            await super().deliver(event)

    with WebhookEndpoint([]) as endpoint:
        (body,) = send_events(endpoint, [make_event(1), make_event(2)], 1, webhook=FailingWebhook)
    assert body["timestamp_ms"] == 2
    assert "ZeroDivisionError" in caplog.text


def test_trusted_authorities_are_read_again_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = CertificateAuthority(tmp_path / "ours"), CertificateAuthority(tmp_path / "other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(other.certificate.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))

    async def fail_then_deliver(url: str) -> None:
        webhook = Webhook(url)
        trusted.write_bytes(authority.certificate.read_bytes())
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await webhook.deliver(make_event(1))
        await webhook.deliver(make_event(2))

    with WebhookEndpoint([], authority.issue_certificate("hooks").combined_file) as endpoint:
        asyncio.run(fail_then_deliver(endpoint.url))
    assert endpoint.received.get()["timestamp_ms"] == 2


def test_oldest_event_is_dropped_when_the_queue_is_full() -> None:
    with WebhookEndpoint([]) as endpoint:
        (first,) = send_events(endpoint, [make_event(number) for number in range(WAITING_MAX + 1)], 1)
    assert first["timestamp_ms"] == 1
