"""Authenticate and authorize the clients of a listener.

Without TLS and SASL, every client may use the API. With them, a client may use the API after authentication
if its principal is allowed. Otherwise the client's requests get CLUSTER_AUTHORIZATION_FAILED, as those of a
principal without CLUSTER_ACTION do in a Kafka broker.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from coordinator.metrics import Metrics
from coordinator.process.clock import Clock, SystemClock
from coordinator.security.principals import (
    AllowedPrincipals,
    MappingRules,
    principal_of_certificate,
)
from coordinator.security.rate_limited_log import RateLimitedLog
from coordinator.security.sasl import Mechanism
from coordinator.security.tls import ServerTls
from coordinator.serve.server.api import Api
from coordinator.serve.server.error_responses import decode_frame, error_response, read_api_key
from coordinator.serve.server.large_requests import LargeRequestOrigin, Respond
from protocol.errors import ErrorCode
from protocol.messages import api_versions, sasl_authenticate, sasl_handshake

_APIS_BEFORE_LOGIN = (api_versions.API_KEY, sasl_handshake.API_KEY, sasl_authenticate.API_KEY)


class ReloadableSource(Protocol):
    """A value that is loaded from files or a URL and reloaded when these change."""

    async def watch(self, interval_s: float) -> None:
        """Check periodically for changes until cancelled."""


class ListenerSecurityConfig(NamedTuple):
    """The security settings of a listener. The default has no authentication.

    If `allowed` is None, every principal is allowed. If `mechanisms` is empty, SASL is disabled. If
    `reauth_max_ms` is 0, a session lasts as long as the connection, or until the credential expires.
    """

    tls: ServerTls | None = None
    mechanisms: Mapping[str, Mechanism] = {}
    allowed: AllowedPrincipals | None = None
    rules: MappingRules = MappingRules.parse("")
    reauth_max_ms: int = 0
    failed_delay_s: float = 0.1
    handshake_s: float = 30.0
    watched: tuple[ReloadableSource, ...] = ()
    reload_s: float = 5.0


class FrameHandler(Protocol):
    """Handler for the frames of a connection, such as `Api`."""

    @property
    def is_authorized(self) -> bool:
        """Whether its clients may use the RPCs; other clients get smaller frame and element limits."""

    def handle(self, frame: bytes, origin: Any, respond: Respond) -> None:
        """Handle a frame, as `Api.handle` does."""


class UnauthorizedHandler:
    """Handler for authenticated clients whose principal is not allowed."""

    is_authorized = False

    def __init__(self, api: Api, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics

    def handle(self, frame: bytes, origin: LargeRequestOrigin, respond: Respond) -> None:
        """Respond with CLUSTER_AUTHORIZATION_FAILED; ApiVersions and SASL requests go to the API."""
        if read_api_key(frame) in _APIS_BEFORE_LOGIN:
            self._api.handle(frame, origin, respond)
            return
        request = decode_frame(frame)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        respond(error_response(request, code, "Cluster authorization failed."))
        self._metrics.record_request(request.api_key, code)


class ListenerSecurity:
    """The security state that all connections of a listener share."""

    def __init__(
        self, api: Api, security: ListenerSecurityConfig, metrics: Metrics, clock: Clock | None = None
    ) -> None:
        self.api = api
        self.security = security
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.rate_limited_log = RateLimitedLog()
        self._unauthorized = UnauthorizedHandler(api, metrics)

    def choose_handler(self, principal: str, peer: str) -> FrameHandler:
        allowed = self.security.allowed
        if allowed is None or allowed.allows_principal(principal):
            return self.api
        self.rate_limited_log.warn(
            "A client is not allowed by listen.allowed.principals.", principal=principal, peer=peer
        )
        return self._unauthorized

    def handler_for_certificate(self, certificate: Mapping[str, Any] | None, peer: str) -> FrameHandler:
        """Return the handler for the principal of a certificate. Raises UnmappedCertificate."""
        return self.choose_handler(principal_of_certificate(certificate, self.security.rules), peer)
