"""Probes and metrics: /livez, /readyz, /startupz, /healthz, /metrics.

Liveness depends only on the event loop; otherwise a full disk would cause a restart loop. Readiness means
that this coordinator serves all its shards. Startup is complete after the first load of all shards.
"""

import asyncio
import gzip
from collections import Counter
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder, gzip_accepted

from coordinator.metrics import render_exposition
from coordinator.operate.admin.api_models import Liveness, Readiness, Responses, Summary
from coordinator.operate.admin.coordinator_view import CoordinatorView

_UNREADY: Responses = {503: {"model": Readiness, "description": "Not ready; see the reasons."}}

_METRICS: Responses = {200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}}
# gzip's fastest level, which already makes a scrape 10 times smaller.
_GZIP_LEVEL = 1


def make_summary(view: CoordinatorView) -> Summary:
    """Return the summary of the coordinator. The cost is independent of the size of the state."""
    reasons = view.runtime.health()
    shards = view.runtime.shard_views()
    config = view.config
    return Summary(
        status="not ready" if reasons else "ready",
        reasons=reasons,
        version=version("share-coordinator"),
        observes=f"{config.state_topic} of {config.bootstrap_servers}" if view.is_observer else None,
        listen=str(config.listen),
        advertise=str(config.advertise),
        log=config.log,
        ownership=config.ownership,
        shards=dict(Counter(shard.status for shard in shards)),
        share_partitions=sum(shard.share_partitions for shard in shards),
        state_batches=sum(shard.state_batches for shard in shards),
        live_bytes=sum(shard.live_bytes for shard in shards),
        event_loop_lag_seconds=view.metrics.event_loop_lag_last_seconds,
        cluster_error=view.cluster.failure,
        missing_access=view.signals.missing_access.sentences if view.signals is not None else [],
    )


def probe_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    runtime = view.runtime
    routes = APIRouter(tags=["health"], **options)
    started = False

    @routes.get("/livez")
    async def livez() -> Liveness:
        """Respond; any response shows that the event loop runs."""
        return Liveness(status="alive", event_loop_lag_seconds=view.metrics.event_loop_lag_last_seconds)

    @routes.get("/readyz", responses=_UNREADY)
    async def readyz(response: Response) -> Readiness:
        """Return whether all shards are served."""
        reasons = runtime.health()
        response.status_code = 503 if reasons else 200
        return Readiness(status="not ready" if reasons else "ready", reasons=reasons)

    @routes.get("/startupz", responses=_UNREADY)
    async def startupz(response: Response) -> Readiness:
        """Return whether all shards have been loaded at least once since the process started."""
        nonlocal started
        started = started or runtime.initial_load_done
        response.status_code = 200 if started else 503
        return Readiness(
            status="started" if started else "starting", reasons=[] if started else runtime.health()
        )

    return routes


def health_routes(view: CoordinatorView, **options: Any) -> APIRouter:
    runtime, metrics, config = view.runtime, view.metrics, view.config
    routes = APIRouter(tags=["health"], **options)

    @routes.get("/healthz", responses={503: {"model": Summary}})
    async def healthz(response: Response) -> Summary:
        """Return the summary of the coordinator."""
        summary = make_summary(view)
        response.status_code = 503 if summary.reasons else 200
        return summary

    @routes.get("/metrics", response_class=Response, responses=_METRICS)
    async def metrics_text(request: Request) -> Response:
        """Return all metrics in Prometheus' text format or as OpenMetrics, compressed if accepted."""
        try:
            encoder, media_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):
            # The version of a media type in the Accept header is not numeric.
            encoder, media_type = choose_encoder("")
        states = runtime.share_partitions() if config.metrics_partition_level == "all" else None
        text = await render_exposition(metrics, states, config.metrics_partitions_max, encoder=encoder)
        headers = {"Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            # With metrics per share-partition, the text has megabytes, so a thread compresses it.
            text = await asyncio.to_thread(gzip.compress, text, _GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return Response(text, media_type=media_type, headers=headers)

    return routes
