"""SASL frames as Kafka's clients send them, and requests that follow a login."""

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.security.passwords import PlainExchange, ScramExchange
from coordinator.security.principals import AllowedPrincipals
from coordinator.security.sasl import Mechanism
from coordinator.security.users import Users
from coordinator.serve.server import ListenerSecurityConfig
from coordinator.serve.server.connection import Connection
from protocol.messages import api_versions, find_coordinator, sasl_authenticate, sasl_handshake
from protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.unit.server.wire import ServedCoordinator, WireClient, request_frame

# The type of the fixture `serve_with_sasl` (conftest.py).
ServeWithSasl = Callable[..., AbstractAsyncContextManager[ServedCoordinator]]

USERS = "alice=alice-secret\nbob=bob-secret\n"
FIND_BODY = find_coordinator.encode_request(
    find_coordinator.FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"]), 6
)


def password_security(folder: Path, **more: Any) -> ListenerSecurityConfig:
    """Configure PLAIN and SCRAM without failure delay; alice is an allowed principal, bob is not."""
    file = folder / "users.properties"
    file.write_text(USERS)
    users = Users(str(file), "listen.sasl.users.file", ("SCRAM-SHA-256",))
    mechanisms: dict[str, Mechanism] = {
        "PLAIN": partial(PlainExchange, users),
        "SCRAM-SHA-256": partial(ScramExchange, "SCRAM-SHA-256", users),
    }
    whole = {
        "mechanisms": mechanisms,
        "allowed": AllowedPrincipals.parse("User:alice"),
        "failed_delay_s": 0.0,
        **more,
    }
    return ListenerSecurityConfig(**whole)


async def send_handshake(client: WireClient, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    """Send SaslHandshake; return the response."""
    body = sasl_handshake.encode_request(SaslHandshakeRequest(mechanism), version)
    client.send(request_frame(17, version, 1, body, flexible=False))
    _, rest = await client.read_frame()
    return sasl_handshake.decode_response(rest, 0, version)


async def send_authenticate(client: WireClient, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
    """Send SaslAuthenticate; return the response."""
    client.send(authenticate_frame(token, version))
    _, rest = await client.read_frame()
    return sasl_authenticate.decode_response(rest, 1 if version >= 2 else 0, version)


def authenticate_frame(token: bytes, version: int = 2) -> bytes:
    body = sasl_authenticate.encode_request(SaslAuthenticateRequest(token), version)
    return request_frame(36, version, 2, body, flexible=version >= 2)


async def log_in(client: WireClient, name: str = "alice", password: str = "") -> SaslAuthenticateResponse:
    """Log in with PLAIN. If `password` is empty, use the correct password."""
    assert (await send_handshake(client, "PLAIN")).error_code == 0
    return await send_authenticate(client, f"\0{name}\0{password or name + '-secret'}".encode())


async def find_coordinator_error_code(client: WireClient) -> int:
    """Send FindCoordinator; return the error code of the response."""
    client.send(request_frame(10, 6, 3, FIND_BODY))
    _, rest = await client.read_frame()
    (coordinator,) = find_coordinator.decode_response(rest, 1, 6).coordinators
    return coordinator.error_code


async def fetch_api_versions(client: WireClient) -> dict[int, tuple[int, int]]:
    """Send ApiVersions; return the version range of each API."""
    body = api_versions.encode_request(api_versions.ApiVersionsRequest(), 0)
    client.send(request_frame(18, 0, 0, body, flexible=False))
    _, rest = await client.read_frame()
    response = api_versions.decode_response(rest, 0, 0)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


async def get_only_connection(served: ServedCoordinator) -> Connection:
    """Return the server side of the only connection."""
    await served.wait_until(lambda: served.listener.connection_count == 1)
    (connection,) = served.listener._connections
    return connection


def receive_buffer_bytes(connection: Connection) -> int:
    """Return the size of the receive buffer of the server's socket; Linux doubles the requested size."""
    assert connection._transport is not None
    own_socket = connection._transport.get_extra_info("socket")
    return own_socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)  # type: ignore[no-any-return]
