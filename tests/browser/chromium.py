"""Drive a headless Chromium through its DevTools protocol over a pipe, without a driver, port or library.

Chromium reads commands from file descriptor 3 and writes to file descriptor 4. Messages are JSON texts that
end with a zero byte. Chromium exits when the pipe is closed, so no browser outlives the tests.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.kafka import ConditionTimeout, wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

_ANSWER_WITHIN_S = 180
_WAIT_S = 120
_READ_BYTES = 1 << 16
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    # Tests run as root in containers, where Chromium cannot start its sandbox.
    "--no-sandbox",
)
# Duplicate two file descriptors as 3 and 4, and execute the browser. The descriptors may already be 4 and 3.
_AT_3_AND_4 = """
import fcntl, os, sys
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 10) for number in sys.argv[1:3]]
os.dup2(aside[0], 3)
os.dup2(aside[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_KEYS = {
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "ArrowDown": 40,
    "ArrowUp": 38,
    "Tab": 9,
    "Enter": 13,
    "Home": 36,
    "End": 35,
    "PageDown": 34,
}


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class PageError(AssertionError):
    """A script of the page threw an exception, or the browser refused a command."""


class Chromium:
    """A running browser. Not thread-safe."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._unread = b""
        self._last_id = 0
        self._pages: dict[str, Page] = {}

    def command(self, method: str, parameters: dict[str, Any] | None = None, session: str = "") -> Any:
        """Send a command and return its result; pass events that arrive before it to the pages."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to_browser, data) :]
        while True:
            answer = self._read_message()
            if answer.get("id") != self._last_id:
                self._dispatch_event(answer)
            elif "error" in answer:
                raise PageError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def _read_message(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from_browser], [], [], _ANSWER_WITHIN_S)
            data = os.read(self._from_browser, _READ_BYTES) if ready else b""
            if not data:
                raise PageError("the browser does not answer")
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _dispatch_event(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is not None:
            page.record_event(event["method"], event["params"])

    def open_new_page(self) -> "Page":
        target = self.command("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.command("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            page.command(f"{domain}.enable")
        return page


class Page:
    """A page of a browser. `page_errors` are the errors of the page, `requests` the URLs of its requests."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.page_errors: list[str] = []
        self.requests: list[str] = []

    def command(self, method: str, **parameters: Any) -> Any:
        return self._browser.command(method, parameters, self._session)

    def record_event(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.page_errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.page_errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def close(self) -> None:
        self._browser.command("Target.closeTarget", {"targetId": self._target})

    def open_url(self, url: str) -> None:
        """Open an address, and wait until the page is loaded."""
        self.evaluate("window.isLeft = true")
        self.command("Page.navigate", url=url)
        self.wait_until(
            f"!window.isLeft && location.href === {json.dumps(url)} && document.readyState === 'complete'"
        )

    def reload(self) -> None:
        """Reload the page, and wait until it is loaded. Later evaluations apply to the new document."""
        self.evaluate("window.isLeft = true")
        self.command("Page.reload")
        self.wait_until("!window.isLeft && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise. Raises PageError if it throws."""
        answer = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise PageError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_until(self, script: str) -> Any:
        """Return the value of an expression as soon as it is true.

        Exceptions are ignored until the deadline, because elements of the expression may not be loaded yet.
        """
        thrown = "nothing"

        def evaluate_script() -> Any:
            nonlocal thrown
            try:
                return self.evaluate(script)
            except PageError as error:
                thrown = str(error)
                return None

        try:
            return wait_until(evaluate_script, seconds=_WAIT_S, what=script)
        except ConditionTimeout as late:
            raise ConditionTimeout(f"{late}; the last exception: {thrown}") from None

    def wait_for_text(self, text: str) -> None:
        self.wait_until(f"document.body.innerText.includes({json.dumps(text)})")

    def texts(self, selector: str) -> list[str]:
        """Return the visible text of the elements, one line each."""
        script = f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)"
        return [" ".join(text.split()) for text in self.evaluate(script)]

    def rows(self) -> list[list[str]]:
        """Return the cells of all rows of all tables."""
        script = (
            "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((c) => c.innerText))"
        )
        return [[" ".join(text.split()) for text in row] for row in self.evaluate(script)]

    def click(self, selector: str) -> None:
        """Click on the middle of an element, with mouse events.

        The page may redraw the element between the measurement and the click. A click that misses has no
        effect and is repeated.
        """
        wait_until(lambda: self._click_middle(selector), seconds=_WAIT_S, what=f"a click on {selector}")

    def _click_middle(self, selector: str) -> bool:
        box = self.wait_until(
            f"""(() => {{
                const node = document.querySelector({json.dumps(selector)});
                if (!node) return null;
                node.scrollIntoView({{ block: "center" }});
                const {{ x, y, width, height }} = node.getBoundingClientRect();
                return width && {{ x: x + width / 2, y: y + height / 2 }};
            }})()"""
        )
        self.evaluate(
            f"""(() => {{
                window.clickHit = false;
                window.stopWatchingClicks?.abort();
                window.stopWatchingClicks = new AbortController();
                document.addEventListener("click", (event) => {{
                    const node = document.querySelector({json.dumps(selector)});
                    if (node?.contains(event.target)) window.clickHit = true;
                    else {{ event.preventDefault(); event.stopImmediatePropagation(); }}
                }}, {{ capture: true, signal: window.stopWatchingClicks.signal }});
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **box, button="left", clickCount=1)
        # If the click opened another document, that document has no such variable.
        hit = self.wait_until("window.stopWatchingClicks?.abort(), String(window.clickHit)")
        return bool(hit != "false")

    def press_key(self, key: str) -> None:
        """Press a key in the focused element."""
        code = _KEYS[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type_text(self, text: str) -> None:
        """Insert text into the focused element."""
        self.command("Input.insertText", text=text)

    def emulate_color_scheme(self, scheme: str) -> None:
        """Emulate the user's preferred colour scheme, "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def save_screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a screenshot of the page as PNG."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def run_chromium(directory: Path) -> Iterator[Chromium]:
    """Run a browser with a profile and a log in `directory`."""
    found = find_chromium()
    assert found is not None
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    profile = f"--user-data-dir={directory / 'profile'}"
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _AT_3_AND_4, str(commands), str(answers), found, *_FLAGS, profile],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(commands)
    os.close(answers)
    browser = Chromium(to_browser, from_browser)
    try:
        yield browser
    finally:
        with suppress(OSError, PageError):
            browser.command("Browser.close")
        os.close(to_browser)
        os.close(from_browser)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
