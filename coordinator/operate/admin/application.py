"""Create the FastAPI application: routes, error responses, and path segments with any characters."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.observe.signals import SignalMonitor
from coordinator.operate.admin.access_control import AccessControl, AccessDenied
from coordinator.operate.admin.access_middleware import AccessMiddleware
from coordinator.operate.admin.cluster_info import ClusterInfoCache, TopicQueries
from coordinator.operate.admin.coordinator_view import CoordinatorView, HandOver, hand_over_unavailable
from coordinator.operate.admin.event_stream import EventStream, event_routes
from coordinator.operate.admin.expiry_routes import expiry_routes
from coordinator.operate.admin.health_routes import health_routes
from coordinator.operate.admin.history_routes import history_routes
from coordinator.operate.admin.openapi import (
    describe_access,
    operation_id,
    refuse_unknown_parameters,
)
from coordinator.operate.admin.owner_directory import OwnerDirectory
from coordinator.operate.admin.page_routes import page_routes
from coordinator.operate.admin.paths import GROUPS_PATH
from coordinator.operate.admin.signals import signal_routes
from coordinator.operate.admin.state_routes import OwnedElsewhereError, state_routes
from coordinator.operate.admin.write_routes import write_routes
from coordinator.operate.expiry import Expiry
from coordinator.operate.history import HistoryProcess
from coordinator.serve.runtime import Runtime
from coordinator.serve.state_view import StateView


def create_app(
    runtime: StateView,
    metrics: Metrics,
    config: Config,
    *,
    owners: OwnerDirectory | None = None,
    topics: TopicQueries | None = None,
    access: AccessControl | None = None,
    hand_over: HandOver = hand_over_unavailable,
    expiry: Expiry | None = None,
    signals: SignalMonitor | None = None,
    history: HistoryProcess | None = None,
) -> FastAPI:
    """Create the application. Every response reads the current state of the runtime.

    `app.state.event_stream.end()` ends the open event streams. Without `topics`, topic names and end offsets
    are unknown. `hand_over` requests a hand-over from the group of coordinators. `expiry` lists abandoned
    state, and `signals` the problems of share groups. `history` reads delivery histories. If `runtime` is an
    observer, there are no write routes.
    Raises ConfigError for invalid access settings.
    """
    view = CoordinatorView(
        runtime,
        metrics,
        config,
        owners or OwnerDirectory(),
        ClusterInfoCache(topics),
        hand_over,
        expiry,
        signals,
        history,
    )
    event_stream = EventStream(view)
    access = access or AccessControl(config)
    app = FastAPI(
        title="Share coordinator",
        version=version("share-coordinator"),
        description="Health, metrics and the state of share groups. With http.writes=true also changes.",
        redirect_slashes=False,
        # FastAPI's documentation pages load scripts from the internet; /openapi.json has the same content.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    describe_access(app, access, login_required=config.http_requires_login)
    app.state.event_stream = event_stream
    app.include_router(health_routes(view))
    api = [state_routes(view), history_routes(view), expiry_routes(view), signal_routes(view)]
    api.append(event_routes(event_stream))
    if isinstance(runtime, Runtime):
        api.insert(1, write_routes(view))
    for routes in api:
        app.include_router(routes, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(page_routes())
    _add_error_responses(app, metrics)
    app.add_middleware(_EncodedPathMiddleware)
    app.add_middleware(AccessMiddleware, access=access, refused=metrics.http_refused)
    return app


def _add_error_responses(app: FastAPI, metrics: Metrics) -> None:
    async def access_denied(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AccessDenied)
        metrics.http_refused(error.status)
        return JSONResponse(
            {"status": error.status, "message": error.message}, error.status, headers=error.headers
        )

    app.add_exception_handler(AccessDenied, access_denied)
    app.add_exception_handler(HTTPException, _http_exception_response)
    app.add_exception_handler(RequestValidationError, _validation_error_response)
    app.add_exception_handler(Exception, _http_error_response)


_NO_ROUTE = {
    404: "there is no such path; /openapi.json lists all paths",
    405: "this path does not support this method; /openapi.json lists all methods",
}


class _EncodedPathMiddleware:
    """Keeps the path of a group percent-encoded until it is split.

    A server decodes a path as a whole, which would split the group `a/b` into two segments. Group ids may
    contain any character, so `coordinator.operate.admin.state_routes` splits the path first and then
    decodes each segment.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GROUPS_PATH + "/"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


async def _http_exception_response(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    problem: dict[str, Any] = {"status": error.status_code, "message": error.detail}
    # FastAPI's errors for unknown paths contain only the status phrase, so add a message with a remedy.
    if error.detail == HTTPStatus(error.status_code).phrase:
        problem["message"] = _NO_ROUTE.get(error.status_code, error.detail)
    # The message may quote the request. JSON may contain lone surrogates, which UTF-8 cannot encode.
    problem["message"] = str(problem["message"]).encode("utf-8", "backslashreplace").decode()
    if isinstance(error, OwnedElsewhereError) and error.owner is not None:
        problem["owner"] = error.owner.model_dump()
    return JSONResponse(problem, error.status_code, headers=error.headers)


async def _http_error_response(_: Request, error: Exception) -> JSONResponse:
    # The traceback is in the log.
    return JSONResponse(
        {"status": 500, "message": "internal error; the coordinator's log has the details"}, 500
    )


async def _validation_error_response(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"status": 422, "message": "; ".join(map(_describe_problem, error.errors()))}, 422)


def _describe_problem(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem['ctx']['error']}"
    return f"{problem['loc'][-1]}: {problem['msg']}, not {problem.get('input')!r}"
