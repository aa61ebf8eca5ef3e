"""Authenticate a connection with SASL; after the login, the API handles its frames.

Source: SaslServerAuthenticator of Kafka 4.4. Responses, reasons to close a connection, and the delay after a
failed login are Kafka's.  After the login, the connection passes its frames to the API.  If the client
re-authenticates or its session has expired (KIP-368), the authenticator handles the frames again.

::

    INITIAL_REQUEST ──ApiVersions──> HANDSHAKE_REQUEST ──SaslHandshake──> AUTHENTICATE
      └────────────────────────SaslHandshake─────────────────────────────────┘
    AUTHENTICATE ──SaslAuthenticate──> COMPLETE ──SaslHandshake (re-authentication)──> AUTHENTICATE
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from coordinator.security.sasl import AuthenticationFailed, Identity, SaslExchange, SaslStep
from coordinator.serve.server.error_responses import (
    CloseConnection,
    DecodedRequest,
    decode_frame,
    error_response,
    read_api_key,
)
from coordinator.serve.server.large_requests import Respond
from coordinator.serve.server.listener_security import ListenerSecurity
from protocol.errors import ErrorCode
from protocol.messages import api_versions, sasl_authenticate, sasl_handshake
from protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from protocol.messages.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from coordinator.serve.server.connection import Connection

_logger = logging.getLogger(__name__)

# As in Kafka, a client that re-authenticates more often is refused.
REAUTH_INTERVAL_MIN_S = 1.0


class _SaslState(Enum):
    INITIAL_REQUEST = auto()
    HANDSHAKE_REQUEST = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslAuthenticator:
    """SASL state of one connection; it exists until the connection closes."""

    is_authorized = False

    def __init__(self, listener_security: ListenerSecurity) -> None:
        self._listener_security = listener_security
        self._security = listener_security.security
        self._loop = asyncio.get_running_loop()
        self._state = _SaslState.INITIAL_REQUEST
        self._deadline_s = self._loop.time() + self._security.handshake_s
        self._mechanism = ""
        # After SaslHandshake v0, tokens arrive without a request header.
        self._with_headers = True
        self._exchange: SaslExchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._identity: Identity | None = None
        self._is_valid: Callable[[], bool] = lambda: True
        self._session_ends_s: float | None = None
        self._reauthenticated_s = -REAUTH_INTERVAL_MIN_S

    # Called by the connection.

    def handle(self, frame: bytes, origin: "Connection", respond: Respond) -> None:
        """Handle a frame of a client that is not authenticated. Raises CloseConnection."""
        if self._task is not None:
            raise CloseConnection("illegal_sasl_state", "a frame arrived before the response to a token")
        if self._state is _SaslState.COMPLETE:
            self.handle_authenticated(frame, origin, respond)
        elif self._state is not _SaslState.AUTHENTICATE:
            self._handle_before_mechanism(frame, origin, respond)
        elif self._with_headers:
            self._handle_authenticate(frame, origin, respond)
        else:
            self._process_token(None, frame, origin, respond)

    def handle_authenticated(self, frame: bytes, origin: "Connection", respond: Respond) -> None:
        """Handle a SASL frame of an authenticated client, or any frame after its session has expired."""
        now_s = self._loop.time()
        if (
            read_api_key(frame) == sasl_handshake.API_KEY
            and self._session_ends_s is not None
            and now_s - self._reauthenticated_s >= REAUTH_INTERVAL_MIN_S
        ):
            self._reauthenticated_s = now_s
            self._deadline_s = now_s + self._security.handshake_s
            origin.set_handler(self)
            self._handle_before_mechanism(frame, origin, respond)
            return
        if self._session_expired(now_s):
            raise CloseConnection("session_expired", "the session expired without re-authentication")
        request = decode_frame(frame)
        message = "SaslAuthenticate request received after successful authentication"
        respond(error_response(request, ErrorCode.ILLEGAL_SASL_STATE, message))
        self._count_request(request.api_key, ErrorCode.ILLEGAL_SASL_STATE)

    def timeout_reason(self, now_s: float, origin: "Connection") -> str | None:
        """Return the reason for closing a timed-out connection, or None; called periodically."""
        if self._identity is not None and not self._is_valid():
            self._listener_security.rate_limited_log.warn(
                "The user or token key of a connection was removed or changed. The connection is closed.",
                principal=self._identity.principal,
                peer=origin.peer,
            )
            return "credentials_revoked"
        if self._state is _SaslState.COMPLETE:
            if self._session_expired(now_s):
                # As in Kafka, the connection stays open, because the client may still re-authenticate.
                origin.set_handler(self)
            return None
        return "authentication_timeout" if now_s > self._deadline_s else None

    def _session_expired(self, now_s: float) -> bool:
        return self._session_ends_s is not None and now_s > self._session_ends_s

    # Before authentication.

    def _handle_before_mechanism(self, frame: bytes, origin: "Connection", respond: Respond) -> None:
        api_key = read_api_key(frame)
        if api_key == api_versions.API_KEY and self._state is _SaslState.INITIAL_REQUEST:
            if self._listener_security.api.answer_api_versions(frame, respond):
                self._state = _SaslState.HANDSHAKE_REQUEST
        elif api_key == sasl_handshake.API_KEY and self._state is not _SaslState.FAILED:
            self._handle_handshake(decode_frame(frame), origin, respond)
        else:
            self._listener_security.rate_limited_log.warn(
                "A client sent a request before its login.", api_key=api_key, peer=origin.peer
            )
            raise CloseConnection("illegal_sasl_state", f"API key {api_key} during the SASL handshake")

    def _handle_handshake(self, request: DecodedRequest, origin: "Connection", respond: Respond) -> None:
        mechanism_name = request.message.mechanism
        response = SaslHandshakeResponse(mechanisms=list(self._security.mechanisms))
        mechanism = self._security.mechanisms.get(mechanism_name)
        if mechanism is None:
            response.error_code = int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            self._reject_login(
                origin, respond, request.answer(response), "a mechanism that is not enabled", mechanism_name
            )
        else:
            self._state = _SaslState.AUTHENTICATE
            self._with_headers = request.version >= 1
            self._exchange = mechanism()
            if self._identity is not None and mechanism_name != self._mechanism:
                self._exchange = _MechanismChangeRefusal(mechanism_name, self._mechanism)
            else:
                self._mechanism = mechanism_name
            respond(request.answer(response))
        self._count_request(request.api_key, response.error_code)

    # Authentication.

    def _handle_authenticate(self, frame: bytes, origin: "Connection", respond: Respond) -> None:
        request = decode_frame(frame)
        if request.api_key == sasl_authenticate.API_KEY:
            self._process_token(request, request.message.auth_bytes, origin, respond)
            return
        message = "Request is not valid given the current SASL state."
        response = error_response(request, ErrorCode.ILLEGAL_SASL_STATE, message)
        self._count_request(request.api_key, ErrorCode.ILLEGAL_SASL_STATE)
        self._reject_login(
            origin, respond, response, "a request other than SaslAuthenticate", self._mechanism
        )

    def _process_token(
        self, request: DecodedRequest | None, token: bytes, origin: "Connection", respond: Respond
    ) -> None:
        # Process each token in a task, because a mechanism may wait for a file, a URL or another thread.
        self._task = self._loop.create_task(self._authenticate(request, token, origin, respond))

    async def _authenticate(
        self, request: DecodedRequest | None, token: bytes, origin: "Connection", respond: Respond
    ) -> None:
        assert self._exchange is not None
        response = SaslAuthenticateResponse()
        try:
            step = await self._exchange.process_token(token)
            if step.identity is not None and self._identity is not None:
                _check_same_principal(self._identity, step.identity)
            if step.refusal:
                # The exchange continues, so that the client receives the reason.
                self._log_failed_login(step.refusal, self._mechanism, origin)
                await asyncio.sleep(self._security.failed_delay_s)
        except AuthenticationFailed as error:
            response.error_code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
            response.error_message = str(error)
            # Without request headers, no error response can be sent.
            answer = request.answer(response) if request is not None else None
            self._reject_login(origin, respond, answer, str(error), self._mechanism)
        except Exception:
            # An error in this program or a library; the connection closes without authentication.
            _logger.exception("Internal error during a login.")
            origin.close("internal_error")
            return
        else:
            self._continue_exchange(step, response, request, origin, respond)
            if step.refusal:
                self._count_request(sasl_authenticate.API_KEY, ErrorCode.SASL_AUTHENTICATION_FAILED)
                return
        finally:
            self._task = None
        self._count_request(sasl_authenticate.API_KEY, response.error_code)

    def _continue_exchange(
        self,
        step: SaslStep,
        response: SaslAuthenticateResponse,
        request: DecodedRequest | None,
        origin: "Connection",
        respond: Respond,
    ) -> None:
        if origin.disconnected:
            return
        if step.identity is not None:
            response.session_lifetime_ms = self._begin_session(step.identity)
            self._is_valid = step.is_valid
            origin.set_handler(self._listener_security.choose_handler(step.identity.principal, origin.peer))
        response.auth_bytes = step.response
        if request is not None:
            respond(request.answer(response))
        else:
            respond(len(step.response).to_bytes(4, "big") + step.response)

    def _begin_session(self, identity: Identity) -> int:
        """Store the client's identity; return the session lifetime in ms, 0 if unlimited."""
        self._state = _SaslState.COMPLETE
        self._identity = identity
        self._exchange = None
        ends_ms = [self._security.reauth_max_ms] if self._security.reauth_max_ms else []
        if identity.expires_ms is not None:
            ends_ms.append(max(0, identity.expires_ms - self._listener_security.clock.now_ms()))
        self._session_ends_s = self._loop.time() + min(ends_ms) / 1000 if ends_ms else None
        return min(ends_ms, default=0)

    # Failure.

    def _reject_login(
        self, origin: "Connection", respond: Respond, response: bytes | None, reason: str, mechanism: str
    ) -> None:
        """Send the response after a delay, which slows down password guessing, and close the connection."""
        self._state = _SaslState.FAILED
        self._exchange = None
        self._log_failed_login(reason, mechanism, origin)
        origin.stop_reading()
        self._loop.call_later(self._security.failed_delay_s, _respond_and_close, origin, respond, response)

    def _log_failed_login(self, reason: str, mechanism: str, origin: "Connection") -> None:
        self._listener_security.rate_limited_log.warn(
            "A login failed.", reason=reason, mechanism=mechanism, peer=origin.peer
        )

    def _count_request(self, api_key: int, error_code: int) -> None:
        self._listener_security.metrics.record_request(api_key, error_code)


class _MechanismChangeRefusal:
    """Exchange that refuses re-authentication with another mechanism at the first token, as Kafka does."""

    def __init__(self, mechanism_name: str, before: str) -> None:
        self._message = (
            f"SASL mechanism '{mechanism_name}' requested by client is not supported for "
            f"re-authentication of mechanism '{before}'"
        )

    async def process_token(self, token: bytes) -> SaslStep:
        raise AuthenticationFailed(self._message)


def _check_same_principal(before: Identity, now: Identity) -> None:
    if now.name != before.name:
        raise AuthenticationFailed(
            f"Cannot change principals during re-authentication from User.{before.name}: User.{now.name}"
        )


def _respond_and_close(origin: "Connection", respond: Respond, response: bytes | None) -> None:
    if origin.disconnected:
        return
    if response is not None:
        respond(response)
    origin.close("authentication_failed")
