"""Test that updates of the page preserve the scroll position, focus, clicks and selections."""

import json
from collections.abc import Iterator

import pytest

from coordinator.cluster.ownership import Assignment, Replica
from tests.browser.chromium import Page
from tests.builders import pack_batches
from tests.unit.admin.admin_server import SHARDS, AdminServer, serve_admin
from tests.unit.admin.test_state_routes import make_snapshot

pytestmark = pytest.mark.browser

# Each response contains larger figures than the previous one.
CHANGING = """
    (() => {
      const same = window.fetch;
      let more = 0;
      window.fetch = async (path, options) => {
        const response = await same(path, options);
        if (!path.startsWith("/api/v1/share-partitions")) return response;
        const answer = await response.json();
        more += 1;
        for (const item of answer.items) item.in_flight_records += 1000 * more;
        return new Response(JSON.stringify(answer), { headers: response.headers });
      };
    })()
"""
FIGURE = "document.querySelector('tbody td:nth-child(4)').textContent"


@pytest.fixture(scope="module")
def admin_server() -> Iterator[AdminServer]:
    records = [make_snapshot(partition=number, batches=pack_batches((100, 100, 0, 1))) for number in range(3)]
    with serve_admin(records) as running:
        yield running


def wait_for_change(page: Page) -> None:
    """Wait until a changed figure is shown."""
    before = page.evaluate(FIGURE)
    page.wait_until(f"{FIGURE} !== {json.dumps(before)}")


@pytest.fixture
def changing_page(page: Page, admin_server: AdminServer) -> Page:
    page.command("Page.addScriptToEvaluateOnNewDocument", source=CHANGING)
    page.resize(375, 800)
    page.open_url(f"{admin_server.url}/?group=orders")
    page.wait_until("document.querySelectorAll('tbody tr').length === 3")
    return page


def test_table_keeps_scroll_position(changing_page: Page) -> None:
    changing_page.evaluate("document.querySelector('.scroll').scrollLeft = 200")
    wait_for_change(changing_page)
    assert changing_page.evaluate("document.querySelector('.scroll').scrollLeft") == 200


def test_link_in_table_keeps_focus(changing_page: Page) -> None:
    changing_page.evaluate("document.querySelector('tbody tr:nth-child(2) td:last-child a').focus()")
    wait_for_change(changing_page)
    row = "document.querySelector('tbody tr:nth-child(2)')"
    assert changing_page.evaluate(f"{row}.contains(document.activeElement)")


def test_pressed_link_exists_until_release(changing_page: Page) -> None:
    changing_page.evaluate(
        "window.link = document.querySelector('tbody a'); link.dispatchEvent("
        "new PointerEvent('pointerdown', { bubbles: true })); window.asked = performance.now()"
    )
    # Two responses arrived while the link was pressed.
    answers = "performance.getEntriesByType('resource').filter((entry) => entry.responseEnd > window.asked"
    changing_page.wait_until(f"{answers} && entry.name.includes('/share-partitions')).length >= 2")
    assert changing_page.evaluate("link.isConnected")
    changing_page.evaluate("link.dispatchEvent(new PointerEvent('pointerup', { bubbles: true })); 0")
    changing_page.wait_until("!link.isConnected")


def test_page_shows_that_selected_text_pauses_updates(changing_page: Page) -> None:
    changing_page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
    changing_page.wait_for_text("Pause (text is selected)")
    before = changing_page.evaluate(FIGURE)
    changing_page.evaluate("getSelection().removeAllRanges()")
    changing_page.wait_until(f"{FIGURE} !== {json.dumps(before)}")
    assert "text is selected" not in changing_page.evaluate("document.body.innerText")


def test_links_to_same_owner_have_different_keys(page: Page) -> None:
    them = Replica("b", "127.0.0.1:3", "127.0.0.1:4")
    with serve_admin() as coordinator:
        board, runtime = coordinator.coordinator.owners, coordinator.coordinator.runtime
        coordinator.run_in_loop(lambda: board.set_assignment(Assignment(1, (them,), (0,) * SHARDS)))
        for number in range(SHARDS):
            coordinator.run_in_loop(lambda number=number: runtime.resign(number))
        page.open_url(f"{coordinator.url}/?view=shards")
        page.wait_until("document.querySelectorAll('tbody a').length === 4")
        keys = page.evaluate("[...document.querySelectorAll('tbody a')].map((link) => link.dataset.key)")
    assert len(set(keys)) == SHARDS
