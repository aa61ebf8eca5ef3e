"""The shared browser of all page tests, and the handling of a missing browser.

Without a Chromium these tests are deselected, and one line at the end of the run says how to install it. With
SHARE_COORDINATOR_REQUIRE_ALL=1 (CI), they fail instead.
"""

from collections.abc import Generator, Iterator

import pytest

from tests.browser.chromium import PACKAGE, Chromium, Page, find_chromium, run_chromium
from tests.kafka.toolchain import are_all_required

_left_out = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A headless Chromium."""
    if find_chromium() is None:
        pytest.fail(f"no Chromium here; to get it: apt-get install {PACKAGE}", pytrace=False)
    with run_chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    """A new page. The test fails if the page has errors or sends requests to another host."""
    opened = browser.page()
    opened.resize(1280, 900)
    yield opened
    assert opened.page_errors == []
    hosts = {request.split("/")[2] for request in opened.requests if request != "about:blank"}
    assert all(host.startswith("127.0.0.1:") for host in hosts), hosts
    opened.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("browser")]
    if find_chromium() is not None or are_all_required() or not wanting:
        return
    config.hook.pytest_deselected(items=wanting)
    items[:] = [item for item in items if item not in wanting]
    config.stash[_left_out] = len(wanting)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    if count := config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            f"left out, for want of a browser, tests: {count}; to get it: apt-get install {PACKAGE}"
        )
    return (yield)
