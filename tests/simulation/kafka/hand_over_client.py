"""Send requests for hand-overs to the HTTP routes of a coordinator, without a socket."""

from collections.abc import Callable
from typing import Any

import httpx
from fastapi import FastAPI

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.operate.admin.access_control import HttpPrincipal
from coordinator.operate.admin.access_middleware import AUTHORIZE_WRITE, PRINCIPAL
from coordinator.operate.admin.cluster_info import ClusterInfoCache
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.hand_over_routes import hand_over_routes
from coordinator.operate.admin.owner_directory import OwnerDirectory
from coordinator.serve.runtime import Runtime
from tests.simulation.history import Violation

_OPERATOR = {
    AUTHORIZE_WRITE: lambda: None,
    PRINCIPAL: HttpPrincipal("token operator", "127.0.0.1", may_write=True),
}
# The documented HTTP statuses: done, unknown shard, refused, and owned by another coordinator.
_STATUSES = (200, 404, 409, 503)


class HandOverClient:
    """An HTTP client of the hand-over routes of a coordinator, with the permission to write."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: Metrics,
        owners: OwnerDirectory,
        hand_over: Callable[[int, str], None],
    ) -> None:
        config = Config(log="kafka", ownership="group", bootstrap_servers="broker-1:9092")
        view = CoordinatorView(runtime, metrics, config, owners, ClusterInfoCache(None), hand_over)
        app = FastAPI()
        app.include_router(hand_over_routes(view))

        async def call_as_operator(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(_OPERATOR)}, receive, send)

        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(call_as_operator), base_url="http://coordinator"
        )

    async def send(self, path: str, body: dict[str, object]) -> None:
        """Send a request. Raises Violation if the status of the response is not documented."""
        response = await self._client.post(f"/api/v1/{path}", json={**body, "execute": True})
        if response.status_code not in _STATUSES:
            raise Violation(f"{path} {body}: {response.status_code} {response.text}")
