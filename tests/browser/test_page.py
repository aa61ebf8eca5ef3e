"""Test the web page in a real browser, with mouse and keyboard, and in light and dark mode."""

from collections.abc import Iterator

import pytest

from coordinator.cluster.ownership import Assignment, Replica
from protocol.routing import state_partition
from protocol.state_records import topic_id_text
from tests.browser.chromium import Chromium, Page, PageError
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import SHARDS, AdminServer, TopicsInMemory, serve_admin
from tests.unit.admin.test_state_routes import make_snapshot

pytestmark = pytest.mark.browser

TOPIC = topic_id_text(TOPIC_ID)
# Users choose group ids, so they may contain any text.
NASTY = [
    "<img src=x onerror=document.title='taken'>",
    "\"><script>document.title='taken'</script>",
    "a/b?c#d&group=e",
    "%2e%2e",
    "..",
    "\u202egnp.exe",
    "tab\tand\x00null",
    "  spaces  ",
    "日本語",
]
RUNS = pack_batches((100, 109, 0, 2), (110, 110, 4, 5), (112, 139, 2, 1), (150, 150, 3, 1), (400, 419, 0, 1))
MANY = 10_000
# 12,000 state batches of one offset each: every second offset has a delivery state.
SPLIT = pack_batches(*((offset, offset, 2, 2) for offset in range(100, 24_100, 2)))
DASH = "\u2013"


@pytest.fixture(scope="module")
def admin_server() -> Iterator[AdminServer]:
    """A coordinator with a few groups, one of which has many share-partitions.

    The cluster has only one of their topics.
    """
    records = [make_snapshot(batches=RUNS), make_snapshot(topic_id=OTHER_TOPIC_ID, partition=3)]
    records += [*map(make_snapshot, NASTY), make_snapshot("split", batches=SPLIT)]
    records += [make_snapshot("large", partition=number) for number in range(MANY)]
    topics = TopicsInMemory({TOPIC_ID: "parcels"}, {(TOPIC_ID, 0): 1_000})
    with serve_admin(records, lambda: topics) as running:
        yield running


def open_window(page: Page, coordinator: AdminServer, **view: object) -> None:
    page.open_url(coordinator.page_url(group="orders", topic=TOPIC, partition=0, **view))
    page.wait_until("document.querySelectorAll('.cell').length > 0")


def open_page(page: Page, url: str, text: str) -> None:
    page.open_url(url)
    page.wait_for_text(text)


def test_groups_are_listed_and_link_to_share_partitions(page: Page, admin_server: AdminServer) -> None:
    open_page(page, admin_server.page_url(), "orders")
    page.wait_for_text("ready")
    rows = {row[0]: row[1:5] for row in page.rows()}
    assert rows["orders"] == [DASH, DASH, DASH, "2"]
    assert rows["large"] == [DASH, DASH, DASH, "10,000"]
    page.click('a[data-key="group orders"]')
    page.wait_for_text("parcels-0")
    page.wait_for_text("896")
    first, second = page.rows()
    assert first[:4] == ["parcels-0", "100", "896", "60"]
    assert second[:4] == [f"{topic_id_text(OTHER_TOPIC_ID)}-3", "100", "not known", "0"]
    page.click("tbody a")
    page.wait_for_text("Oldest incomplete record")
    assert page.evaluate("location.search") == f"?group=orders&topic={TOPIC}&partition=0"
    assert page.texts("h1") == ["parcels-0"]


def test_window_shows_each_offset(page: Page, admin_server: AdminServer) -> None:
    open_window(page, admin_server)
    page.wait_for_text("896")
    facts = dict(zip(page.texts(".facts dt"), page.texts(".facts dd:not(.note)"), strict=True))
    assert facts["Start offset"] == "100"
    assert facts["Lag"] == "896"
    assert facts["In flight"] == "60"
    assert facts["Oldest incomplete record"] == "100"
    assert page.texts(".legend li") == [
        "✓acknowledged 28",
        "↺available 30",
        "…archiving 1",
        "✕archived 1",
        "·no stored state 260",
    ]
    labels = page.evaluate("[...document.querySelectorAll('.cell')].map((cell) => cell.ariaLabel)")
    shown = {int(label.split(":")[0]): label.split(": ")[1] for label in labels}
    assert shown[99] == "below the start offset"
    assert shown[100] == "available, delivered twice"
    assert shown[110] == "archived, delivered 5 times"
    assert shown[111] == "no stored state"
    assert shown[112] == "acknowledged, delivered once"
    assert shown[150] == "archiving, delivered once"
    assert (min(shown), max(shown)) == (96, 255)
    assert page.texts("section:nth-of-type(1) tbody tr")[0] == "110 110 1 ✕archived 5"
    page.wait_for_text("After the window, up to the end offset 1000: 580 records")


def test_link_selects_offset(page: Page, admin_server: AdminServer) -> None:
    open_window(page, admin_server, at=405)
    page.wait_for_text("Offset 405 is ↺available, delivered once, in a range of 20 records, 400 to 419")
    assert page.texts(".cell[aria-selected=true]") == ["↺"]
    assert page.evaluate("document.querySelector('[aria-selected=true]').dataset.offset") == "405"


def test_window_with_many_offset_ranges_is_drawn_completely(page: Page, admin_server: AdminServer) -> None:
    page.open_url(admin_server.page_url(group="split", topic=TOPIC, partition=0, at=23_100))
    page.wait_for_text("Offset 23100 is ✓acknowledged, delivered twice")
    assert page.texts(".pager span:not(.off)")[-1] == f"1{DASH}100 of 12,000"
    page.click('.lists a[data-key="last »"]')
    page.wait_for_text(f"11,901{DASH}12,000 of 12,000")
    assert page.rows()[-1][:2] == ["24098", "24098"]
    # A step beyond the loaded offsets loads the next offsets.
    page.click('.cell[data-offset="23295"]')
    page.wait_until("document.activeElement.dataset.offset === '23295'")
    page.press_key("ArrowRight")
    page.wait_until("document.activeElement.dataset.offset === '23296'")
    page.wait_for_text("Offset 23296 is ✓acknowledged")


def test_window_is_navigable_with_keyboard(page: Page, admin_server: AdminServer) -> None:
    open_window(page, admin_server)
    page.evaluate("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    columns = page.evaluate("Number(document.querySelectorAll('.row.r32')[1].textContent) - 96")
    for key, offset in (
        ("ArrowRight", 101),
        ("ArrowDown", 101 + columns),
        ("ArrowUp", 101),
        ("ArrowLeft", 100),
    ):
        page.press_key(key)
        page.wait_until(f"document.activeElement.dataset.offset === '{offset}'")
        page.wait_for_text(f"Offset {offset} ")
        assert page.evaluate("new URLSearchParams(location.search).get('at')") == str(offset)
    page.press_key("PageDown")
    page.wait_for_text("offsets 256 to 511")
    page.wait_until("document.activeElement.dataset.offset === '356'")
    # All controls are reachable without a mouse.
    assert page.evaluate(
        "[...document.querySelectorAll('a[href], button, input')].every((node) => node.tabIndex >= 0)"
    )


@pytest.mark.parametrize("group", NASTY)
def test_group_id_is_shown_as_text_only(page: Page, admin_server: AdminServer, group: str) -> None:
    page.open_url(admin_server.page_url(find=group))
    page.wait_until("document.querySelectorAll('tbody tr').length === 1")
    page.click("tbody a")
    page.wait_for_text("1 share-partition")
    page.click("tbody a")
    page.wait_for_text("Oldest incomplete record")
    where = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    assert where == {"group": group, "topic": TOPIC, "partition": "0"}
    assert "taken" not in page.evaluate("document.title").split(" · ")
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    shown = page.evaluate("document.querySelector('.crumbs .name').textContent")
    assert shown.isprintable()
    assert page.evaluate("getComputedStyle(document.querySelector('.crumbs .name')).unicodeBidi") == "isolate"


def test_text_cannot_become_markup(page: Page, admin_server: AdminServer) -> None:
    open_page(page, admin_server.page_url(), "orders")
    with pytest.raises(PageError, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    page.page_errors.clear()


def test_ten_thousand_share_partitions_are_paged(page: Page, admin_server: AdminServer) -> None:
    open_page(page, admin_server.page_url(group="large"), f"1{DASH}100 of 10,000")
    assert len(page.rows()) == 100
    page.click('a[data-key="last »"]')
    page.wait_for_text(f"9,901{DASH}10,000 of 10,000")
    assert page.rows()[-1][0] == "parcels-9999"
    page.click('a[data-key="sort in-flight"]')
    page.wait_until("location.search === '?group=large&sort=in-flight&desc=1'")
    page.wait_until("document.querySelector('th[aria-sort=descending]')?.textContent.startsWith('In flight')")
    page.evaluate("history.back()")
    page.wait_for_text(f"9,901{DASH}10,000 of 10,000")
    # Open a link to an offset beyond the end of the list.
    open_page(page, admin_server.page_url(group="large", offset=30_000), "none of 10,000")
    page.click("a[data-key$=previous]")
    page.wait_for_text(f"9,901{DASH}10,000 of 10,000")


def test_groups_are_filtered_while_typing(page: Page, admin_server: AdminServer) -> None:
    open_page(page, admin_server.page_url(), "orders")
    page.click("#find")
    page.type_text("ORD")
    page.wait_until("document.querySelectorAll('tbody tr').length === 1")
    assert page.rows()[0][0] == "orders"
    assert page.evaluate("location.search") == "?find=ORD"
    assert page.evaluate("document.activeElement.id") == "find"


def test_shards_show_and_link_their_owner(browser: Chromium, page: Page) -> None:
    us, them = Replica("a", "127.0.0.1:1", "127.0.0.1:2"), Replica("b", "127.0.0.1:3", "127.0.0.1:4")
    number = state_partition(make_snapshot().key, SHARDS)
    with serve_admin([make_snapshot(), make_snapshot("large")]) as coordinator:
        owners = tuple(int(shard == number) for shard in range(SHARDS))
        coordinator.run_in_loop(
            lambda: coordinator.coordinator.owners.set_assignment(Assignment(1, (us, them), owners))
        )
        coordinator.run_in_loop(lambda: coordinator.coordinator.runtime.resign(number))
        open_page(page, coordinator.page_url(view="shards"), "elsewhere")
        row = page.rows()[number]
        assert row[1:4] == ["elsewhere", "127.0.0.1:3", DASH]
        links = "[...document.querySelectorAll('main a')].map((node) => node.href)"
        assert "http://127.0.0.1:4/?view=shards" in page.evaluate(links)
        open_page(page, coordinator.page_url(), "1 of 4 shards are not owned by this coordinator")
        open_page(
            page,
            coordinator.page_url(group="orders", topic=TOPIC, partition=0),
            "The owner is 127.0.0.1:3",
        )
        assert f"http://127.0.0.1:4/?group=orders&topic={TOPIC}&partition=0" in page.evaluate(links)
        page.page_errors[:] = [text for text in page.page_errors if "503" not in text]
    page.page_errors[:] = [text for text in page.page_errors if "ERR_" not in text]


def test_missing_share_partition_is_reported(page: Page, admin_server: AdminServer) -> None:
    open_page(page, admin_server.page_url(group="orders", topic=TOPIC, partition=77), "Not found")
    page.wait_for_text("has no state here")
    page.page_errors[:] = [text for text in page.page_errors if "404" not in text]


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_page_has_no_horizontal_scrolling(page: Page, admin_server: AdminServer, width: int) -> None:
    page.resize(width, 800)
    views: list[dict[str, object]] = [{}, {"group": "large"}, {"view": "shards"}]
    for view in views:
        open_page(page, admin_server.page_url(**view), "brokers connect to")
        page.wait_until("!document.querySelector('.waiting')")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
    open_window(page, admin_server)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
