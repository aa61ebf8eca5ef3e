"""Authenticate and limit each HTTP request before it reaches a route.

This middleware authorizes reads. Writes are authorized when they are executed, because a dry run requires
only read access.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.operate.admin.access_control import AccessControl, AccessDenied, HttpPrincipal
from coordinator.printable import escape_unprintable

# Keys of the ASGI state: the client's certificate, the authenticated client, and a function that raises
# AccessDenied if the client may not write.
CERTIFICATE = "client_certificate"
PRINCIPAL = "principal"
AUTHORIZE_WRITE = "authorize_write"

# Maximum size of a request body; requests to the API take a few hundred bytes.
BODY_BYTES_MAX = 64 << 10

# The Sec-Fetch-Site values of requests from pages of another site, or of another port of this host.
_OTHER_SITES = frozenset(("cross-site", "same-site"))

_READ_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class AccessMiddleware:
    """ASGI middleware that passes permitted requests to the application.

    `request.state.principal` is the authenticated client. `authorize_write()` raises AccessDenied if the
    client may not write.
    """

    def __init__(
        self, app: ASGIApp, access: AccessControl, refused: Callable[[int], None] = lambda status: None
    ) -> None:
        """Wrap an application; `refused` is called with the HTTP status of each refused request."""
        self._app = app
        self._access = access
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or respond with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            principal = self._authenticate_request(scope)
            if scope["method"] not in _READ_METHODS:
                self._check_request_body(scope, principal)
                receive = _SizeLimitedReceive(receive, self._refused)
        except AccessDenied as denied:
            self._refused(denied.status)
            answer = {"status": denied.status, "message": denied.message}
            # Close the connection, because the rest of the request body is not read.
            headers = (
                denied.headers
                if scope["method"] in _READ_METHODS
                else {**denied.headers, "Connection": "close"}
            )
            await JSONResponse(answer, denied.status, headers)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state[PRINCIPAL] = principal
        state[AUTHORIZE_WRITE] = partial(self._access.authorize_write, principal)
        if scope["method"] == "HEAD":
            # HEAD is handled as GET; the server omits the body.
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)

    def _authenticate_request(self, scope: Scope) -> HttpPrincipal:
        address = scope["client"][0] if scope.get("client") else "-"
        if scope["method"] in _READ_METHODS and self._access.is_public(scope["path"]):
            return HttpPrincipal("-", address)
        headers = Headers(scope=scope)
        if headers.get("sec-fetch-site") in _OTHER_SITES and scope["path"].startswith("/api/"):
            # A page of another site cannot read the response, but it could request expensive lists.
            raise AccessDenied(403, "requests from pages of other sites are refused; open the API directly")
        self._access.check_host_header(headers.get("host", ""))
        certificate: Mapping[str, Any] | None = scope.get(CERTIFICATE)
        return self._access.authenticate(address, headers.get("authorization", ""), certificate)

    def _check_request_body(self, scope: Scope, principal: HttpPrincipal) -> None:
        """Raise AccessDenied if the request comes from a page of another site or is not small JSON.

        A browser adds its user's client certificate to requests from any page. Pages of other sites can
        neither send JSON without a preflight request nor hide their origin.
        """
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            self._access.audit_refusal(
                principal.address, f"from a page of {escape_unprintable(origin)}", principal.who
            )
            raise AccessDenied(403, f"write requests from pages of {escape_unprintable(origin)} are refused")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise AccessDenied(415, "send a JSON body with Content-Type: application/json")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise AccessDenied(413, _TOO_LARGE)


_TOO_LARGE = f"the body is too large; the limit is {BODY_BYTES_MAX} bytes"


class _SizeLimitedReceive:
    """An ASGI `receive` that raises HTTPException if the body exceeds `BODY_BYTES_MAX`."""

    def __init__(self, receive: Receive, refused: Callable[[int], None]) -> None:
        self._receive = receive
        self._refused = refused
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > BODY_BYTES_MAX:
            self._refused(413)
            raise HTTPException(413, _TOO_LARGE, {"Connection": "close"})
        return message
