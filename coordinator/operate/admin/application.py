"""Create the FastAPI application: routes, error responses, and access control."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from coordinator.metrics import Metrics
from coordinator.operate.admin.access_control import AccessControl, AccessDenied
from coordinator.operate.admin.access_middleware import AccessMiddleware
from coordinator.operate.admin.api_models import ErrorResponse, ErrorWithOwner, Responses
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.expiry_routes import expiry_routes
from coordinator.operate.admin.hand_over_routes import hand_over_routes
from coordinator.operate.admin.health_routes import health_routes, probe_routes
from coordinator.operate.admin.page_routes import page_routes
from coordinator.operate.admin.signal_routes import signal_routes
from coordinator.operate.admin.state_routes import OwnedElsewhereError, history_routes, state_routes

# The error responses of all routes that are not public, and those of the API.
_REFUSALS: Responses = {
    401: {"model": ErrorResponse, "description": "The client is not authenticated."},
    403: {"model": ErrorResponse, "description": "The client is not authorized."},
    429: {"model": ErrorResponse, "description": "Too many wrong tokens from this address."},
}
_API_ERRORS: Responses = {
    **_REFUSALS,
    404: {"model": ErrorResponse, "description": "The state does not exist."},
    409: {"model": ErrorResponse, "description": "The request failed or was executed in part."},
    422: {"model": ErrorResponse, "description": "A parameter or the body is invalid."},
    503: {
        "model": ErrorWithOwner,
        "description": "The shard is not loaded, or another coordinator owns it; or the cluster does not "
        "answer; or too many requests wait.",
    },
}

_NO_ROUTE = {
    404: "there is no such path; /openapi.json lists all paths",
    405: "this path does not support this method; /openapi.json lists all methods",
}


def create_app(view: CoordinatorView, access: AccessControl) -> FastAPI:
    """Create the application. Every response reads the current state of the runtime."""
    app = FastAPI(
        title="Share coordinator",
        version=version("share-coordinator"),
        description="Health, metrics and the state of share groups. With http.writes=true also changes.",
        redirect_slashes=False,
        # FastAPI's documentation pages load scripts from the internet; /openapi.json has the same content.
        docs_url=None,
        redoc_url=None,
    )
    # Only for the OpenAPI document: AccessMiddleware authenticates all requests.
    bearer = HTTPBearer(
        scheme_name="bearerToken", description="A token of http.token.file.", auto_error=False
    )
    login = [Security(bearer)] if view.config.http_requires_login else []
    public: dict[str, Any] = {"generate_unique_id_function": _operation_id}
    api = public | {"dependencies": [*login, Depends(_refuse_unknown_parameters)], "responses": _API_ERRORS}
    routers = [
        probe_routes(view, **public),
        health_routes(view, **public, dependencies=login, responses=_REFUSALS),
        state_routes(view, **api),
        hand_over_routes(view, **api),
        history_routes(view, **api),
        expiry_routes(view, **api),
        signal_routes(view, **api),
        page_routes(),
    ]
    # include_router would analyze the parameters of each route a second time, at the first request.
    app.router.routes += [route for router in routers for route in router.routes]
    _add_error_responses(app, view.metrics)
    app.add_middleware(AccessMiddleware, access=access, refused=view.metrics.count_http_refusal)
    return app


def _operation_id(route: APIRoute) -> str:
    """Return the name of the route's function; generated clients use it as a method name."""
    return route.name


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse an unknown query parameter with status 422, because FastAPI would ignore it."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            allowed = f"known are {', '.join(known)}" if known else "there are none"
            raise HTTPException(422, f"unknown query parameter {name!r}; {allowed}")


def _add_error_responses(app: FastAPI, metrics: Metrics) -> None:
    async def respond_to_denied_access(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AccessDenied)
        metrics.count_http_refusal(error.status)
        return _make_error_response(error.status, error.message, headers=error.headers)

    app.add_exception_handler(AccessDenied, respond_to_denied_access)
    app.add_exception_handler(StarletteHTTPException, _make_http_exception_response)
    app.add_exception_handler(RequestValidationError, _make_validation_error_response)
    app.add_exception_handler(Exception, _make_internal_error_response)


def _make_error_response(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, **more: object
) -> JSONResponse:
    # The message may quote the request. JSON may contain lone surrogates, which UTF-8 cannot encode.
    printable = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"status": status, "message": printable, **more}, status, headers)


async def _make_http_exception_response(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    message = str(error.detail)
    # FastAPI's errors for unknown paths contain only the status phrase, so add a message with a remedy.
    if message == HTTPStatus(error.status_code).phrase:
        message = _NO_ROUTE.get(error.status_code, message)
    owner = error.owner if isinstance(error, OwnedElsewhereError) else None
    more = {} if owner is None else {"owner": owner.model_dump()}
    return _make_error_response(error.status_code, message, headers=error.headers, **more)


async def _make_internal_error_response(_: Request, error: Exception) -> JSONResponse:
    # The traceback is in the log.
    return _make_error_response(500, "internal error; the coordinator's log has the details")


async def _make_validation_error_response(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _make_error_response(422, "; ".join(map(_describe_validation_error, error.errors())))


def _describe_validation_error(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem['ctx']['error']}"
    return f"{problem['loc'][-1]}: {problem['msg']}, not {problem.get('input')!r}"
