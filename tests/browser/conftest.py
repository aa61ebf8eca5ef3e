"""The shared browser of all page tests. tests.deploy.required_programs handles a missing browser."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, Page, run_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A headless Chromium."""
    with run_chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    """A new page. The test fails if the page has errors or sends requests to another host."""
    opened = browser.open_new_page()
    opened.resize(1280, 900)
    yield opened
    assert opened.page_errors == []
    hosts = {request.split("/")[2] for request in opened.requests if request != "about:blank"}
    assert all(host.startswith("127.0.0.1:") for host in hosts), hosts
    opened.close()
