"""Serve the web page: static files from the package, with strict security headers.

The page loads no script, style or font from other sites and has no inline code. Text never becomes markup
(Trusted Types forbid `innerHTML`), because group ids may contain any character.
"""

from collections.abc import Callable
from importlib.resources import files

from fastapi import APIRouter, Response

from coordinator.operate.admin.runbook import RUNBOOK_PATH, render_runbook

_ASSETS = {
    "page.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "history.js": "text/javascript; charset=utf-8",
    "views.js": "text/javascript; charset=utf-8",
    "offsets.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
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
    # The files are small, so the browser revalidates them each time and always gets the present release.
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
