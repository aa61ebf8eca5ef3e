"""Test texts of the page: invisible characters in names are escaped, and figures have correct labels."""

import json
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Page
from tests.unit.admin.admin_server import AdminServer, serve_admin
from tests.unit.admin.test_state_routes import make_snapshot

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def admin_server() -> Iterator[AdminServer]:
    with serve_admin([make_snapshot("orders"), make_snapshot("parcels")]) as running:
        yield running


@pytest.mark.parametrize(
    "hidden",
    ["\u034f", "\ufe0f", "\U000e0061", "\u2800", "\u3164", "\u00a0", "\u2028", "\u200d", "\ue000", "\x9b"],
)
def test_invisible_character_is_escaped(page: Page, admin_server: AdminServer, hidden: str) -> None:
    page.open_url(f"{admin_server.url}/")
    text = json.dumps("a b" + hidden)
    seen = page.evaluate(
        f"import('/assets/elements.js').then(({{ escapeInvisible }}) => escapeInvisible({text}))"
    )
    assert seen == f"a b\\u{{{ord(hidden):x}}}"


def test_count_of_found_groups_is_labelled_as_found(page: Page, admin_server: AdminServer) -> None:
    page.open_url(f"{admin_server.url}/?find=ord")
    page.wait_for_text("Groups found")
    figures = dict(zip(page.texts(".facts dt"), page.texts(".facts dd:not(.note)"), strict=True))
    assert (figures["Groups found"], figures["Share-partitions"]) == ("1", "2")


def test_list_shows_sort_by_topic_id(page: Page, admin_server: AdminServer) -> None:
    page.open_url(f"{admin_server.url}/?group=orders")
    page.click('a[data-key="sort key"]')
    page.wait_for_text("Topic-partition, by topic id \u2191")


def test_names_do_not_wrap_at_every_character_on_narrow_screen(page: Page, admin_server: AdminServer) -> None:
    page.resize(390, 844)
    page.open_url(f"{admin_server.url}/")
    page.wait_until("document.querySelectorAll('tbody tr').length === 2")
    assert page.evaluate("document.querySelector('tbody th').getBoundingClientRect().width") >= 150
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_page_explains_why_lag_is_not_known(page: Page, admin_server: AdminServer) -> None:
    for view in ("", "?group=orders"):
        page.open_url(f"{admin_server.url}/{view}")
        page.wait_for_text("Lag, members and topic names are not known: bootstrap.servers is not set.")
