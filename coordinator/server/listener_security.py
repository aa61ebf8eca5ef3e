"""The entrance of a listener: who is let in, and what those get who are not.

Without TLS and SASL everybody gets the API itself.  With them, a client gets it once it is known and its
principal is on the list; then its requests take the same way as everybody's, and cost the same.  Who is known
and not on the list is answered CLUSTER_AUTHORIZATION_FAILED, as a Kafka broker answers whoever may not do
CLUSTER_ACTION.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from coordinator.clock import Clock, SystemClock
from coordinator.metrics import Metrics
from coordinator.security.principals import (
    AllowedPrincipals,
    MappingRules,
    principal_of_certificate,
)
from coordinator.security.rate_limited_log import RateLimitedLog
from coordinator.security.sasl import Mechanism
from coordinator.security.tls import ServerTls
from coordinator.server.api import Api, Respond, undecodable
from coordinator.server.error_responses import decode_frame, error_response, read_api_key
from coordinator.server.large_requests import LargeOrigin, LargeRequests, Steps
from protocol.errors import DecodeError, ErrorCode
from protocol.messages import api_versions, sasl_authenticate, sasl_handshake

_APIS_BEFORE_LOGIN = (api_versions.API_KEY, sasl_handshake.API_KEY, sasl_authenticate.API_KEY)
_CLUSTER_AUTHORIZATION_FAILED = "Cluster authorization failed."


class ReloadableSource(Protocol):
    """Something that follows files, or a URL."""

    async def watch(self, interval_s: float) -> None:
        """Look whether they have changed every so often, until cancelled."""
        ...


class ListenerSecurityConfig(NamedTuple):
    """How a listener is secured. By default not at all: whoever can connect is let in.

    `allowed` None: everybody. `mechanisms` empty: no SASL. `reauth_max_ms` 0: a login holds as long as the
    connection, or what it was made with.
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


class Handler(Protocol):
    """What a connection gives its frames to; the API is one."""

    @property
    def is_authorized(self) -> bool:
        """Whether clients with this handler may use the RPCs; the others get the smallest limits."""
        ...

    def handle(self, frame: bytes, origin: Any, respond: Respond) -> None:
        """Answer a frame, as `Api.handle` does."""
        ...


class UnauthorizedHandler:
    """Answers a client that is known, and not on the list."""

    is_authorized = False

    def __init__(self, api: Api, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics
        # One request at a time, so that many refusals do not delay the clients that are on the list.
        self._refusals = LargeRequests()

    def handle(self, frame: bytes, origin: LargeOrigin, respond: Respond) -> None:
        """Answer with CLUSTER_AUTHORIZATION_FAILED, but say which versions there are."""
        if read_api_key(frame) in _APIS_BEFORE_LOGIN and not self._refusals.has(origin):
            self._api.handle(frame, origin, respond)
            return
        self._refusals.add(origin, lambda: self._steps(frame, origin, respond))

    def _steps(self, frame: bytes, origin: LargeOrigin, respond: Respond) -> Steps:
        if read_api_key(frame) in _APIS_BEFORE_LOGIN:
            self._api.handle(frame, origin, respond)
            return
        yield
        try:
            asked = decode_frame(frame)
        except DecodeError as error:
            raise undecodable(f"API key {read_api_key(frame)}", error) from None
        respond(error_response(asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _CLUSTER_AUTHORIZATION_FAILED))
        self._metrics.request_done(asked.api_key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0.0)


class ListenerSecurity:
    """What all connections of a listener share of its security."""

    def __init__(
        self, api: Api, security: ListenerSecurityConfig, metrics: Metrics, clock: Clock | None = None
    ) -> None:
        self.api = api
        self.security = security
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.rate_limited_log = RateLimitedLog()
        self._unauthorized = UnauthorizedHandler(api, metrics)

    def handler_for(self, principal: str, peer: str) -> Handler:
        """Return what answers a client that is known."""
        allowed = self.security.allowed
        if allowed is None or allowed.allows(principal):
            return self.api
        self.rate_limited_log.warn(
            "a client is not on the list listen.allowed.principals", principal=principal, peer=peer
        )
        return self._unauthorized

    def handler_for_certificate(self, certificate: Mapping[str, Any] | None, peer: str) -> Handler:
        """Return what answers a client by its certificate. Raises UnmappedCertificate."""
        return self.handler_for(principal_of_certificate(certificate, self.security.rules), peer)
