"""The page for people: static files out of the package, and what a browser may do with them.

The page is data and code of ours and nothing else: no script, style or font from elsewhere, nothing inline,
and no text that becomes markup (Trusted Types forbid `innerHTML` and its kin), because group ids are
whatever somebody typed.
"""

from importlib.resources import files

from fastapi import APIRouter, Response

_ASSETS = {
    "page.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
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
    # Small enough to be asked for each time, so that a new release is seen at once.
    "Cache-Control": "no-cache",
}


def page_routes() -> APIRouter:
    """Make the routes of the page, which is read from the package now."""
    routes = APIRouter(include_in_schema=False)
    folder = files("coordinator.admin") / "assets"

    def add(path: str, name: str, media_type: str) -> None:
        content = (folder / name).read_bytes()

        @routes.get(path)
        async def show() -> Response:
            return Response(content, media_type=media_type, headers=_HEADERS)

    add("/", "index.html", "text/html; charset=utf-8")
    for name, media_type in _ASSETS.items():
        add(f"/assets/{name}", name, media_type)
    return routes
