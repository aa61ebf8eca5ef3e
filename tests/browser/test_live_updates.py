"""Test that the page shows changes of a coordinator, and reports a coordinator that does not answer."""

import asyncio
import os
import signal
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
from tests.builders import ACKNOWLEDGED, ARCHIVED, AVAILABLE, TOPIC_ID
from tests.kafka import wait_until
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.observer import ObserverProcess
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


class CoordinatorWithOneSharePartition:
    """A coordinator process with one share-partition."""

    def __init__(self, directory: Path) -> None:
        self.port, http_port = free_ports(2)
        self.process = CoordinatorProcess(directory, port=self.port, http_port=http_port, log="memory")
        self.origin = f"http://127.0.0.1:{http_port}"
        view = {"group": KEY.group_id, "topic": topic_id_text(TOPIC_ID), "partition": 0}
        self.url = f"{self.origin}/?{urlencode(view)}"

    def start_and_initialize(self) -> None:
        self.process.start()

        async def initialize() -> None:
            async with ShareCoordinatorClient(f"127.0.0.1:{self.port}") as client:
                await client.initialize(KEY, state_epoch=1, start_offset=0)

        asyncio.run(initialize())

    def write(self, start_offset: int, batch: StateBatch, complete: int = -1) -> None:
        async def send() -> None:
            async with ShareCoordinatorClient(f"127.0.0.1:{self.port}") as client:
                await client.write(
                    KEY,
                    state_epoch=1,
                    leader_epoch=0,
                    start_offset=start_offset,
                    delivery_complete_count=complete,
                    batches=[batch],
                )

        asyncio.run(send())

    @contextmanager
    def keep_writing(self) -> Iterator[None]:
        """Acknowledge one offset after the other while the block runs."""
        over = threading.Event()

        def write() -> None:
            offset = 0
            while not over.wait(0.1):
                self.write(0, StateBatch(offset, offset, ACKNOWLEDGED, 1))
                offset += 1

        writing = threading.Thread(target=write)
        writing.start()
        try:
            yield
        finally:
            over.set()
            writing.join()


@pytest.fixture
def coordinator(page: Page, tmp_path: Path) -> Iterator[CoordinatorWithOneSharePartition]:
    """A running coordinator.

    After the end of the test, errors of the page about the killed coordinator are ignored.
    """
    running = CoordinatorWithOneSharePartition(tmp_path)
    running.start_and_initialize()
    try:
        yield running
    finally:
        running.process.kill()
    page.page_errors[:] = [text for text in page.page_errors if "ERR_" not in text]


def test_slow_response_is_shown_although_newer_changes_arrived(
    page: Page, coordinator: CoordinatorWithOneSharePartition
) -> None:
    page.open_url(coordinator.url)
    page.wait_for_text("Epochs and snapshots")
    assert "acknowledged" not in page.evaluate("document.body.innerText")
    page.evaluate(f"(() => {{ {SLOW} }})()")
    with coordinator.keep_writing():
        page.wait_for_text("acknowledged")


def test_changes_are_shown_without_reload(page: Page, coordinator: CoordinatorWithOneSharePartition) -> None:
    coordinator.write(100, StateBatch(100, 104, AVAILABLE, 1), 0)
    page.open_url(coordinator.url)
    page.wait_for_text("available 5")
    asked = len(page.requests)
    coordinator.write(103, StateBatch(103, 104, ACKNOWLEDGED, 1), 2)
    page.wait_for_text("acknowledged 2")
    wait_until(lambda: page.texts(".cell[aria-selected=true]") == ["✓"], seconds=120, what="the cell")
    # The document was requested once and its data repeatedly; the browser loads the icon at any time.
    assert page.requests.count(coordinator.url) == 1
    again = {request for request in page.requests[asked:] if "/api/" not in request}
    assert again <= {f"{coordinator.origin}/assets/icon.svg", f"{coordinator.origin}/healthz"}

    page.click("#live")
    page.wait_for_text("Resume")
    coordinator.write(103, StateBatch(105, 109, ARCHIVED, 3), 7)
    page.click("#live")
    page.wait_for_text("archived 5")
    coordinator.process.stop()
    # The last data remain visible, with their age.
    page.wait_for_text("no connection, data as of ")
    legend = ["✓acknowledged 2", "✕archived 5"]
    wait_until(lambda: page.texts(".legend li") == legend, seconds=120, what="what was seen")


def test_observer_without_a_cluster_shows_the_reason(page: Page, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    observer = ObserverProcess(tmp_path, f"127.0.0.1:{port}")
    # It never becomes ready.
    observer.process.start()
    try:
        wait_until(lambda: observer.get("/livez")[0] == 200, seconds=120, what="HTTP is served")
        page.open_url(f"http://127.0.0.1:{observer.http_port}/")
        page.wait_for_text(f"No broker of 127.0.0.1:{port} can be reached")
        page.wait_for_text("No state is loaded.")
        page.click("#to-shards")
        page.wait_for_text("No shard is known yet.")
        page.wait_until("!document.querySelector('.waiting')")
    finally:
        observer.kill()
    page.page_errors[:] = [text for text in page.page_errors if "503" not in text and "ERR_" not in text]


def test_suspended_coordinator_is_shown_as_not_answering(
    page: Page, coordinator: CoordinatorWithOneSharePartition
) -> None:
    page.open_url(f"{coordinator.origin}/?view=shards")
    page.wait_until("document.querySelector('#ready').innerText.includes('ready')")
    page.wait_for_text("50 active")
    os.kill(coordinator.process.process.pid, signal.SIGSTOP)
    page.wait_until("document.querySelector('#ready').innerText.startsWith('no connection, data as of')")
    page.click("#to-groups")
    page.wait_for_text("The coordinator does not answer")
    os.kill(coordinator.process.process.pid, signal.SIGCONT)
    page.wait_until("document.querySelector('#ready').innerText.includes('ready')")
    page.wait_for_text("State in the log")
    assert "The coordinator does not answer" not in page.evaluate("document.body.innerText")
