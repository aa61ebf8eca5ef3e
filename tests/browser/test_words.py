"""What the page says: names without anything hidden in them, figures under their right names."""

import json
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Page
from tests.unit.admin.serving import Served, served
from tests.unit.admin.test_state import snapshot

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Served]:
    with served([snapshot("orders"), snapshot("parcels")]) as running:
        yield running


@pytest.mark.parametrize(
    "hidden",
    ["\u034f", "\ufe0f", "\U000e0061", "\u2800", "\u3164", "\u00a0", "\u2028", "\u200d", "\ue000", "\x9b"],
)
def test_what_cannot_be_seen_is_written_out(page: Page, coordinator: Served, hidden: str) -> None:
    page.go(f"{coordinator.url}/")
    seen = page.evaluate(
        f"import('/assets/elements.js').then(({{ seen }}) => seen({json.dumps('a b' + hidden)}))"
    )
    assert seen == f"a b\\u{{{ord(hidden):x}}}"
