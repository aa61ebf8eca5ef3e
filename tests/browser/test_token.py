"""Test the page of a coordinator that requires tokens: one login per tab, and no token in a URL."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.browser.chromium import Page
from tests.builders import TOPIC_ID, packed
from tests.unit.admin.admin_server import SHARDS, Served, served
from tests.unit.admin.test_state_routes import snapshot
from tests.unit.admin.test_tokens import READING, WRITING, file_of

pytestmark = pytest.mark.browser

ASKED = "This coordinator requires a token"
WRONG = "wrong-0123456789-wrong"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    """A coordinator that requires a token, with one group."""
    tokens = file_of(tmp_path, f"people read {READING}\n")
    records = [snapshot(batches=packed((100, 109, 0, 2)))]
    with served(records, http_token_file=str(tokens)) as running:
        yield running


@pytest.fixture
def door(page: Page) -> Iterator[Page]:
    """A page that ignores the browser's errors about refused requests and a stopped coordinator."""
    yield page
    refused = ("401", "429", "ERR_")
    page.complaints[:] = [text for text in page.complaints if not any(sign in text for sign in refused)]
    assert not any(token in request for request in page.requests for token in (READING, WRITING, WRONG))


def address(coordinator: Served, **view: object) -> str:
    return f"{coordinator.url}/" + (f"?{urlencode(view)}" if view else "")


def give(page: Page, token: str) -> None:
    """Type a token and press Enter; the field has the initial focus."""
    page.wait("document.activeElement?.id === 'token'")
    page.type(token)
    page.press("Enter")


def test_token_is_requested_once(door: Page, coordinator: Served, tmp_path: Path) -> None:
    page = door
    page.go(address(coordinator))
    page.wait_for(ASKED)
    page.wait_for("token required")
    assert "orders" not in page.evaluate("document.body.innerText")
    page.photograph(tmp_path / "token.png")
    give(page, READING)
    page.wait_for("orders")
    page.wait_for("ready")
    assert page.evaluate("document.querySelector('form.token')") is None
    # Neither another view nor a reload requests the token again.
    page.click('a[data-key="group orders"]')
    page.wait_for("1 share-partition")
    page.go(address(coordinator, group="orders", topic=topic_id_text(TOPIC_ID), partition=0))
    page.wait_for("available 10")
    # The page shows no link to JSON, because a link cannot contain the token.
    assert "View as JSON" not in page.evaluate("document.body.innerText")
    page.reload()
    page.wait_for("available 10")
    page.wait("document.querySelector('#live').title.startsWith('Live')")
    assert ASKED not in page.evaluate("document.body.innerText")
    # The token is stored in this tab only.
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_wrong_token_is_requested_again(door: Page, coordinator: Served) -> None:
    page = door
    page.go(address(coordinator))
    give(page, WRONG)
    page.wait_for("The token is not valid.")
    give(page, READING)
    page.wait_for("orders")


def test_changes_are_shown_with_token(door: Page, coordinator: Served) -> None:
    page = door
    number = state_partition(snapshot().key, SHARDS)
    page.go(address(coordinator, view="shards"))
    give(page, READING)
    page.wait(f"document.querySelectorAll('tbody tr').length === {SHARDS}")
    assert page.rows()[number][1] == "active"
    page.wait("document.querySelector('#live').title.startsWith('Live')")
    coordinator.do(lambda: coordinator.coordinator.runtime.resign(number))
    page.wait(f"document.querySelectorAll('tbody tr')[{number}].innerText.includes('elsewhere')")


def test_revoked_token_is_requested_again(door: Page, coordinator: Served, tmp_path: Path) -> None:
    page = door
    page.go(address(coordinator, view="shards"))
    give(page, READING)
    page.wait("document.querySelector('#live').title.startsWith('Live')")
    file_of(tmp_path, f"people read {WRITING}\n")

    def changed() -> None:
        assert coordinator.coordinator.access.reload_if_changed()
        coordinator.coordinator.app.state.event_stream.interrupt()

    coordinator.do(changed)
    page.wait_for("The token is not valid.")
    assert page.evaluate("sessionStorage.length") == 0
    give(page, WRITING)
    page.wait(f"document.querySelectorAll('tbody tr').length === {SHARDS}")


# The refusal of the event stream starts before every other refusal, and ends when the test resolves it.
LATE_REFUSAL = """
    const ask = window.fetch;
    let refused;
    const first = new Promise((done) => { refused = done; });
    window.fetch = async (path, options) => {
      const answer = await ask(path, options);
      if (answer.status !== 401) return answer;
      if (path !== "/api/v1/live") { await first; return answer; }
      const said = await answer.json();
      answer.json = () => {
        refused();
        return new Promise((done) => { window.endRefusal = () => done(said); });
      };
      return answer;
    };
"""


def test_late_refusal_does_not_remove_new_token(door: Page, coordinator: Served) -> None:
    page = door
    page.command("Page.addScriptToEvaluateOnNewDocument", source=LATE_REFUSAL)
    page.go(address(coordinator))
    give(page, READING)
    page.wait_for("orders")
    page.wait("document.querySelector('#live').title.startsWith('Live')")
    page.evaluate("endRefusal()")
    assert ASKED not in page.evaluate("document.body.innerText")
    assert page.evaluate("sessionStorage.length") == 1


def test_token_can_be_removed(door: Page, coordinator: Served) -> None:
    page = door
    page.go(address(coordinator))
    assert page.evaluate("document.querySelector('#forget').hidden")
    give(page, READING)
    page.wait_for("orders")
    page.click("#forget")
    page.wait(f"document.body?.innerText.includes('{ASKED}')")
    assert page.evaluate("sessionStorage.length") == 0
    # Navigation within the page does not bypass the login.
    page.click("#to-shards")
    page.wait("location.search === '?view=shards'")
    page.wait_for(ASKED)
