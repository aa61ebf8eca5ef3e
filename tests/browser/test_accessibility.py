"""axe-core reports nothing for any view, in light and dark mode, on a wide and on a narrow screen."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from coordinator.observe.signals import GroupSignals, Problem
from coordinator.observe.signals.detectors import SignalLimits, find_problem
from protocol.state_records import topic_id_text
from tests.browser.chromium import Page
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import AdminServer, TopicsInMemory, serve_admin
from tests.unit.admin.test_history_routes import RECORDS
from tests.unit.admin.test_signals import make_monitor
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.signals.test_detectors import CASES

pytestmark = pytest.mark.browser

BATCHES = pack_batches(
    (100, 109, 0, 2), (110, 110, 4, 5), (112, 139, 2, 1), (150, 150, 3, 1), (400, 419, 0, 4)
)
# The text that the page shows for an unknown value.
DASH = "\u2013"
# Each problem has a group with its name.
PROBLEMS = [problem for problem in Problem if problem is not Problem.NONE]
VIEWS: dict[str, dict[str, object]] = {
    "groups": {},
    "group": {"group": "stuck"},
    "share-partition": {"group": "stuck", "topic": "", "partition": 0},
    "history": {"view": "history", "group": "orders", "topic": "", "partition": 0, "at": 4},
    "shards": {"view": "shards"},
}


@cache
def read_axe_script() -> str:
    """Return the script of axe-core. `make install` installs the package with tests/browser/axe.lock."""
    package = distribution("axe-playwright-python")
    path = Path(str(package.locate_file("axe_playwright_python/axe.min.js")))
    return path.read_text("utf-8")


def make_signals(problem: Problem) -> GroupSignals:
    signals = GroupSignals(group=problem.label, **CASES[problem])  # type: ignore[arg-type]
    signals.problem, signals.message = find_problem(signals, SignalLimits())
    return signals


@pytest.fixture(scope="module")
def admin_server() -> Iterator[AdminServer]:
    records = [*RECORDS, *(make_snapshot(problem.label, batches=BATCHES) for problem in PROBLEMS)]
    monitor = make_monitor(*map(make_signals, PROBLEMS))
    topics = TopicsInMemory({TOPIC_ID: "parcels"}, {(TOPIC_ID, 0): 1_000})
    with serve_admin(records, lambda: topics, signals=monitor) as running:
        yield running


def open_view(page: Page, coordinator: AdminServer, view: str) -> None:
    values = dict(VIEWS[view])
    if "topic" in values:
        values["topic"] = topic_id_text(TOPIC_ID)
    page.open_url(coordinator.page_url(**values))
    page.wait_for_text("ready")
    page.wait_until("!document.querySelector('.waiting')")


def list_violations(page: Page) -> list[str]:
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(f"(() => {{ {read_axe_script()} }})()")
    found: list[dict[str, Any]] = page.evaluate("axe.run(document).then((report) => report.violations)")
    return [f"{each['id']}: {json.dumps([node['html'] for node in each['nodes']])}" for each in found]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_nothing(page: Page, admin_server: AdminServer, scheme: str, width: int) -> None:
    page.emulate_color_scheme(scheme)
    page.resize(width, 900)
    for view in VIEWS:
        open_view(page, admin_server, view)
        assert list_violations(page) == [], view
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(245, 246, 248)") == (scheme == "light")


def test_axe_finds_a_planted_violation(page: Page, admin_server: AdminServer) -> None:
    open_view(page, admin_server, "groups")
    page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert any(found.startswith("image-alt") for found in list_violations(page))


def test_front_page_lists_problems_by_severity_in_one_sentence_each(
    page: Page, admin_server: AdminServer
) -> None:
    open_view(page, admin_server, "groups")
    page.wait_for_text("5 groups with a problem")
    expected = sorted(PROBLEMS, reverse=True)
    items = page.texts(".problems li")
    assert len(items) == len(expected)
    for problem, item in zip(expected, items, strict=True):
        label = problem.label.replace("-", " ")
        assert item == f"{label} {problem.label}: {make_signals(problem).message}."
    page.click('a[data-key="sort problem"]')
    page.wait_until("location.search === '?sort=problem&desc=1'")
    page.wait_until("document.querySelector('th[aria-sort=descending]')?.textContent.startsWith('Problem')")
    stuck = make_signals(Problem.STUCK)
    assert [row[0] for row in page.rows()][:5] == [problem.label for problem in expected]
    assert page.rows()[1][:4] == ["stuck", "stuck", DASH, str(stuck.in_flight)]


def test_delivery_history_of_a_record_is_linked_from_the_offset_window(
    page: Page, admin_server: AdminServer
) -> None:
    page.open_url(
        f"{admin_server.url}/?{urlencode(VIEWS['history'] | {'topic': topic_id_text(TOPIC_ID), 'view': ''})}"
    )
    page.wait_for_text("is below the start offset 5: complete")
    page.click('a[data-key="history of record"]')
    page.wait_for_text("Delivery history of record 4")
    page.wait_until("document.querySelectorAll('tbody tr').length === 4")
    cells = [row[1:4] for row in page.rows()]
    assert cells[1] == ["\u2713acknowledged", "2", "accepted (ACKNOWLEDGED) at delivery 2"]
    assert cells[2][1:] == ["1", "released, to be delivered again (AVAILABLE) at delivery 1"]
    page.click('a[data-key="all"]')
    page.wait_for_text("leader epoch 2; start offset 5")


def test_group_page_shows_its_problem_and_figures(page: Page, admin_server: AdminServer) -> None:
    open_view(page, admin_server, "group")
    assert page.texts(".problems p") == [f"stuck: {make_signals(Problem.STUCK).message}."]
    facts = dict(zip(page.texts(".facts dt"), page.texts(".facts dd:not(.note)"), strict=True))
    assert (facts["Lag"], facts["Members"], facts["Acknowledged"]) == ("not known", "1", "not known")
