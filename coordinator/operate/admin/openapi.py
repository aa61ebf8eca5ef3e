"""Describe authentication in the OpenAPI document, and refuse query parameters that it does not list."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from coordinator.operate.admin.access_control import AccessControl

_SCHEMES = {
    "bearerToken": {"type": "http", "scheme": "bearer", "description": "A token of http.token.file."},
    "clientCertificate": {"type": "mutualTLS", "description": "With http.ssl.client.auth."},
}
# The refusals of AccessMiddleware, for every route that is not public.
_REFUSALS = {
    "401": "The client is not authenticated.",
    "403": "The client is not authorized.",
    "429": "Too many wrong tokens from this address.",
}


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse an unknown query parameter with status 422, because FastAPI would ignore it."""
    if not request.query_params:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            allowed = f"known are {', '.join(known)}" if known else "there are none"
            raise HTTPException(422, f"unknown query parameter {name!r}; {allowed}")


def operation_id(route: APIRoute) -> str:
    """Return the name of the route's function; generated clients use it as a method name."""
    return route.name


def describe_access(app: FastAPI, access: AccessControl, *, login_required: bool) -> None:
    """Add the authentication schemes and their refusals to the application's OpenAPI document."""
    security: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            document["components"]["securitySchemes"] = _SCHEMES
            document["security"] = security if login_required else [*security, {}]
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    _describe_operation(operation, public=access.is_public(path))
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_operation(operation: dict[str, Any], *, public: bool) -> None:
    if public:
        operation["security"] = []
        return
    for status, description in _REFUSALS.items():
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
        operation["responses"].setdefault(status, {"description": description, "content": content})
