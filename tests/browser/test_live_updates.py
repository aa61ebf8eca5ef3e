"""Test that the page shows changes during a pending response, even if responses are slow."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from coordinator.client import ShareCoordinatorClient
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey, topic_id_text
from tests.browser.chromium import Page
from tests.builders import ACKNOWLEDGED, TOPIC_ID
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.ports import free_ports

pytestmark = pytest.mark.browser

KEY = SharePartitionKey("moving", TOPIC_ID, 0)
# Responses take longer than the refresh interval of the page.
SLOW = """
    const quick = window.fetch;
    window.fetch = async (path, options) => {
      if (!path.startsWith("/api/v1/share-partition")) return quick(path, options);
      await new Promise((done, failed) => {
        setTimeout(done, 3000);
        options.signal.addEventListener("abort", () => failed(options.signal.reason));
      });
      return quick(path, options);
    };
"""


@contextmanager
def write_continuously(port: int) -> Iterator[None]:
    """Acknowledge one offset after the other while the block runs."""
    over = threading.Event()

    async def write() -> None:
        async with ShareCoordinatorClient(f"127.0.0.1:{port}") as client:
            offset = 0
            while not over.is_set():
                batch = StateBatch(offset, offset, ACKNOWLEDGED, 1)
                await client.write(KEY, state_epoch=1, leader_epoch=0, start_offset=0, batches=[batch])
                offset += 1
                await asyncio.to_thread(over.wait, 0.1)

    writing = threading.Thread(target=lambda: asyncio.run(write()))
    writing.start()
    try:
        yield
    finally:
        over.set()
        writing.join()


def test_change_events_do_not_suppress_slow_response(page: Page, tmp_path: Path) -> None:
    port, http_port = free_ports(2)
    process = CoordinatorProcess(tmp_path, port=port, http_port=http_port, log="memory")

    async def initialize() -> None:
        async with ShareCoordinatorClient(f"127.0.0.1:{port}") as client:
            await client.initialize(KEY, state_epoch=1, start_offset=0)

    process.start()
    try:
        asyncio.run(initialize())
        view = {"group": KEY.group_id, "topic": topic_id_text(TOPIC_ID), "partition": 0}
        page.open_url(f"http://127.0.0.1:{http_port}/?{urlencode(view)}")
        page.wait_for_text("Nothing is in flight")
        assert "acknowledged" not in page.evaluate("document.body.innerText")
        page.evaluate(f"(() => {{ {SLOW} }})()")
        with write_continuously(port):
            page.wait_for_text("acknowledged")
    finally:
        process.stop()
    page.page_errors[:] = [text for text in page.page_errors if "ERR_" not in text]
