"""Serve the web page and the runbook: files from the package, with strict security headers.

The page loads no script, style or font from other sites and has no inline code. Text never becomes markup
(Trusted Types forbid `innerHTML`), because group ids may contain any character. Alerts link to the runbook,
the section "Alerts" of docs/operations.md, which needs no internet access.
"""

import re
from collections.abc import Callable
from html import escape
from importlib.resources import files

from fastapi import APIRouter, Response

RUNBOOK_PATH = "/runbook"

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runbook · Share coordinator</title>
<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/assets/style.css">
<main>
<p class="crumbs"><a href="/">Share groups</a> /</p>
<h1>Alerts</h1>
"""
# The coordinator does not serve the pages that the links lead to, so only the text of a link is kept.
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_ITALIC = re.compile(r"\*([^*]+)\*")


def render_runbook(operations: bytes) -> bytes:
    """Return the section "Alerts" of a Markdown file as HTML; tables become preformatted text."""
    section = operations.decode().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    blocks = section[section.index("### ") :].strip().split("\n\n")
    return (_HEAD + "\n".join(map(_render_block, blocks)) + "\n</main>\n").encode()


def _render_block(block: str) -> str:
    if block.startswith("### "):
        name = escape(block.removeprefix("### "))
        return f'<h2 id="{name.lower()}">{name}</h2>'
    if block.startswith(("|", "```")):
        return f"<pre>{escape(block.strip('`').strip())}</pre>"
    text = _CODE.sub(r"<code>\1</code>", _LINK.sub(r"\1", escape(block)))
    return "<p>" + _ITALIC.sub(r"<i>\1</i>", _BOLD.sub(r"<b>\1</b>", text)) + "</p>"


_SCRIPTS = ("page.js", "api.js", "history.js", "views.js", "offsets.js", "elements.js")
_ASSETS = {
    **dict.fromkeys(_SCRIPTS, "text/javascript; charset=utf-8"),
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The browser revalidates the files each time, so that it never shows files of an earlier release.
    "Cache-Control": "no-cache",
}


def page_routes() -> APIRouter:
    """Create the routes of the page; the files are read from the package now."""
    routes = APIRouter(include_in_schema=False)
    folder = files("coordinator.operate.admin") / "assets"

    def add_file(
        path: str, name: str, media_type: str, convert: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        content = convert((folder / name).read_bytes())

        @routes.get(path)
        async def send_file() -> Response:
            return Response(content, media_type=media_type, headers=_HEADERS)

    add_file("/", "index.html", "text/html; charset=utf-8")
    add_file(RUNBOOK_PATH, "operations.md", "text/html; charset=utf-8", render_runbook)
    for name, media_type in _ASSETS.items():
        add_file(f"/assets/{name}", name, media_type)
    return routes
