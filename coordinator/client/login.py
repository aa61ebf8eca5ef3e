"""Log in over a connection: SaslHandshake, then the mechanism's tokens in SaslAuthenticate (KIP-43)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from coordinator.client.errors import AuthenticationFailed
from coordinator.client.security import ClientSecurity
from coordinator.errors import ConfigError
from protocol.errors import ErrorCode
from protocol.messages import sasl_authenticate, sasl_handshake

# Sends a message of a module of `protocol.messages` in a version, and returns the response.
SendMessage = Callable[[Any, Any, int], Awaitable[Any]]


async def log_in(
    name: str, versions: Mapping[int, tuple[int, int]], security: ClientSecurity, send_message: SendMessage
) -> int:
    """Log in to a server; return the session lifetime in ms, 0 if it is unlimited.

    `versions` has the server's API versions. Raises AuthenticationFailed and the exceptions of
    `send_message`.
    """
    mechanism = security.mechanism
    if sasl_handshake.API_KEY not in versions:
        message = f"{name} does not use SASL on this port."
        raise AuthenticationFailed(ErrorCode.ILLEGAL_SASL_STATE, message)
    handshake = await send_message(sasl_handshake, sasl_handshake.SaslHandshakeRequest(mechanism), 1)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms) or "none"
        message = f"{name} does not take {mechanism}; it takes {offered}."
        raise AuthenticationFailed(_to_error_code(handshake.error_code), message)
    newest = versions.get(sasl_authenticate.API_KEY, (0, 0))[1]
    version = min(newest, sasl_authenticate.MAX_VERSION)
    lifetime_ms = 0

    async def send_token(token: bytes) -> bytes:
        nonlocal lifetime_ms
        response = await send_message(
            sasl_authenticate, sasl_authenticate.SaslAuthenticateRequest(token), version
        )
        if response.error_code:
            message = f"{name} refuses the login: {response.error_message}."
            raise AuthenticationFailed(_to_error_code(response.error_code), message)
        lifetime_ms = response.session_lifetime_ms
        auth_bytes: bytes = response.auth_bytes
        return auth_bytes

    try:
        await security.log_in(send_token)
    except (ConfigError, ValueError) as error:
        message = f"Cannot log in to {name}: {error}."
        raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, message) from None
    return lifetime_ms


def _to_error_code(error_code: int) -> ErrorCode:
    try:
        return ErrorCode(error_code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
