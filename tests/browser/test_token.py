"""Test the page of a coordinator that requires tokens: one login per tab, and no token in a URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.observe.signals import GroupSignals, Problem
from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.browser.chromium import Page
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import SHARDS, AdminServer, serve_admin
from tests.unit.admin.test_signals import make_monitor
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.admin.test_tokens import READING, WRITING, write_token_file

pytestmark = pytest.mark.browser

ASKED = "This coordinator requires a token"
WRONG = "wrong-0123456789-wrong"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[AdminServer]:
    """A coordinator that requires a token, with one group."""
    tokens = write_token_file(tmp_path, f"people read {READING}\n")
    records = [make_snapshot(batches=pack_batches((100, 109, 0, 2)))]
    problems = (GroupSignals(group=f"g{n}", problem=Problem.STUCK, message="stuck") for n in range(21))
    with serve_admin(records, signals=make_monitor(*problems), http_token_file=str(tokens)) as running:
        yield running


@pytest.fixture
def login_page(page: Page) -> Iterator[Page]:
    """A page that ignores the browser's errors about refused requests and a stopped coordinator."""
    yield page
    refused = ("401", "429", "ERR_")
    page.page_errors[:] = [text for text in page.page_errors if not any(sign in text for sign in refused)]
    assert not any(token in request for request in page.requests for token in (READING, WRITING, WRONG))


def enter_token(page: Page, token: str) -> None:
    """Type a token and press Enter; the field has the initial focus."""
    page.wait_until("document.activeElement?.id === 'token'")
    page.type_text(token)
    page.press_key("Enter")


def test_token_is_requested_once(login_page: Page, coordinator: AdminServer, tmp_path: Path) -> None:
    page = login_page
    page.open_url(coordinator.page_url())
    page.wait_for_text(ASKED)
    page.wait_for_text("token required")
    assert "orders" not in page.evaluate("document.body.innerText")
    page.save_screenshot(tmp_path / "token.png")
    enter_token(page, READING)
    page.wait_for_text("orders")
    page.wait_for_text("ready")
    assert page.evaluate("document.querySelector('form.token')") is None
    page.wait_for_text("and 1 more group.")
    # Neither another view nor a reload requests the token again.
    page.click('a[data-key="group orders"]')
    page.wait_for_text("1 share-partition")
    page.open_url(coordinator.page_url(group="orders", topic=topic_id_text(TOPIC_ID), partition=0))
    page.wait_for_text("available 10")
    # The page shows no link to JSON, because a link cannot contain the token.
    assert "View as JSON" not in page.evaluate("document.body.innerText")
    page.reload()
    page.wait_for_text("available 10")
    page.wait_for_text("ready")
    assert ASKED not in page.evaluate("document.body.innerText")
    # The token is stored in this tab only.
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_wrong_token_is_requested_again(login_page: Page, coordinator: AdminServer) -> None:
    page = login_page
    page.open_url(coordinator.page_url())
    enter_token(page, WRONG)
    page.wait_for_text("The token is not valid.")
    enter_token(page, READING)
    page.wait_for_text("orders")


def test_changes_are_shown_with_token(login_page: Page, coordinator: AdminServer) -> None:
    page = login_page
    number = state_partition(make_snapshot().key, SHARDS)
    page.open_url(coordinator.page_url(view="shards"))
    enter_token(page, READING)
    page.wait_until(f"document.querySelectorAll('tbody tr').length === {SHARDS}")
    assert page.rows()[number][1] == "active"
    page.wait_for_text("ready")
    coordinator.run_in_loop(lambda: coordinator.coordinator.runtime.resign(number))
    page.wait_until(f"document.querySelectorAll('tbody tr')[{number}].innerText.includes('elsewhere')")


def test_revoked_token_is_requested_again(login_page: Page, coordinator: AdminServer, tmp_path: Path) -> None:
    page = login_page
    page.open_url(coordinator.page_url(view="shards"))
    enter_token(page, READING)
    page.wait_for_text("ready")
    write_token_file(tmp_path, f"people read {WRITING}\n")

    coordinator.run_in_loop(coordinator.coordinator.access.reload_if_changed)
    page.wait_for_text("The token is not valid.")
    assert page.evaluate("sessionStorage.length") == 0
    enter_token(page, WRITING)
    page.wait_until(f"document.querySelectorAll('tbody tr').length === {SHARDS}")


# The page gets the body of the refused /healthz request only when the test calls endRefusal(). Other refusals
# arrive after the head of this refusal.
LATE_REFUSAL = """
    const ask = window.fetch;
    let refused;
    const first = new Promise((done) => { refused = done; });
    window.fetch = async (path, options) => {
      const answer = await ask(path, options);
      if (answer.status !== 401) return answer;
      if (path !== "/healthz") { await first; return answer; }
      const said = await answer.text();
      answer.text = () => {
        refused();
        return new Promise((done) => { window.endRefusal = () => done(said); });
      };
      return answer;
    };
"""


def test_late_refusal_does_not_remove_new_token(login_page: Page, coordinator: AdminServer) -> None:
    page = login_page
    page.command("Page.addScriptToEvaluateOnNewDocument", source=LATE_REFUSAL)
    page.open_url(coordinator.page_url())
    enter_token(page, READING)
    page.wait_for_text("orders")
    page.wait_for_text("ready")
    page.evaluate("endRefusal()")
    assert ASKED not in page.evaluate("document.body.innerText")
    assert page.evaluate("sessionStorage.length") == 1


def test_token_can_be_removed(login_page: Page, coordinator: AdminServer) -> None:
    page = login_page
    page.open_url(coordinator.page_url())
    assert page.evaluate("document.querySelector('#forget').hidden")
    enter_token(page, READING)
    page.wait_for_text("orders")
    page.click("#forget")
    page.wait_until(f"document.body?.innerText.includes('{ASKED}')")
    assert page.evaluate("sessionStorage.length") == 0
    # Navigation within the page does not bypass the login.
    page.click("#to-shards")
    page.wait_until("location.search === '?view=shards'")
    page.wait_for_text(ASKED)
