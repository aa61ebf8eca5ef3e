"""The client against a secured listener: TLS, SASL and re-authentication."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import (
    AuthenticationFailed,
    ClientSecurity,
    Connection,
    ShareCoordinatorClient,
    ShareCoordinatorError,
)
from coordinator.security.jwks import open_key_source
from coordinator.security.tls import ServerTls
from coordinator.security.tokens import TokenExchange, TokenRules, TokenValidator
from coordinator.serve.server import ListenerSecurityConfig
from protocol.errors import ErrorCode
from tests.builders import KEY
from tests.certificates import CertificateAuthority
from tests.manual_clock import ManualClock
from tests.unit import clock_skipping
from tests.unit.clock_skipping import skip_time
from tests.unit.security.token_issuer import NOW_S, TokenIssuer
from tests.unit.server.sasl_clients import password_security
from tests.unit.server.wire import ServedCoordinator, serve_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

PLAIN = ClientSecurity("SASL_PLAINTEXT", "PLAIN", "alice", "alice-secret")


@asynccontextmanager
async def open_connection(
    security: ClientSecurity, to: ListenerSecurityConfig | None
) -> AsyncIterator[Connection]:
    """Open a connection to a listener with the given security configuration."""
    async with serve_coordinator(security=to) as coordinator:
        connection = await connect_to(coordinator, security)
        try:
            yield connection
        finally:
            await connection.close()


async def connect_to(coordinator: ServedCoordinator, security: ClientSecurity) -> Connection:
    return await Connection.open("localhost", coordinator.port, client_id="test", security=security)


def make_token_security(folder: Path, issuer: TokenIssuer) -> ListenerSecurityConfig:
    keys = open_key_source(issuer.write_keys(folder / "keys.json"), "setting", 3600)
    tokens = TokenValidator(keys, TokenRules(), ManualClock(NOW_S * 1000))
    return password_security(folder, mechanisms={"OAUTHBEARER": partial(TokenExchange, tokens)})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_client_logs_in_with_a_password(tmp_path: Path, mechanism: str) -> None:
    async with serve_coordinator(security=password_security(tmp_path)) as coordinator:
        security = PLAIN._replace(mechanism=mechanism)
        async with ShareCoordinatorClient(
            ("localhost", coordinator.port), direct=True, security=security
        ) as client:
            await client.initialize(KEY, state_epoch=1, start_offset=5)
            assert (await client.read(KEY, leader_epoch=1)).start_offset == 5


async def test_client_reads_the_token_file_for_each_login(tmp_path: Path) -> None:
    issuer = TokenIssuer()
    file = tmp_path / "token"
    security = ClientSecurity("SASL_PLAINTEXT", "OAUTHBEARER", token_file=str(file))

    async with serve_coordinator(security=make_token_security(tmp_path, issuer)) as coordinator:
        with pytest.raises(AuthenticationFailed, match=r"sasl.oauthbearer.token.file=.*cannot be used"):
            await connect_to(coordinator, security)
        file.write_text(issuer.token(exp=NOW_S - 60) + "\n")
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            await connect_to(coordinator, security)
        file.write_text(issuer.token() + "\n")
        await (await connect_to(coordinator, security)).close()


@pytest.mark.parametrize(
    ("security", "code", "words"),
    [
        (
            PLAIN._replace(password="wrong"),
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Invalid username or password",
        ),
        (
            PLAIN._replace(mechanism="SCRAM-SHA-256", username="mallory"),
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "invalid credentials",
        ),
        (
            PLAIN._replace(mechanism="OAUTHBEARER"),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "does not take OAUTHBEARER; it takes PLAIN, SCRAM-SHA-256",
        ),
    ],
)
async def test_refused_login_is_not_retried(
    tmp_path: Path, security: ClientSecurity, code: ErrorCode, words: str
) -> None:
    async with serve_coordinator(security=password_security(tmp_path)) as coordinator:
        async with ShareCoordinatorClient(
            ("localhost", coordinator.port), direct=True, security=security
        ) as client:
            with pytest.raises(ShareCoordinatorError, match=words) as raised:
                await client.read(KEY, leader_epoch=1)
        assert raised.value.error_code == code
        assert "alice-secret" not in str(raised.value)
        assert coordinator.metrics.counter_value("connections_opened") == 1


async def test_listener_without_sasl_raises_authentication_failed(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationFailed, match="does not use SASL on this port"):
        async with open_connection(PLAIN, None):
            pass


async def test_client_reauthenticates_before_its_session_expires(tmp_path: Path) -> None:
    async with serve_coordinator(security=password_security(tmp_path, reauth_max_ms=300_000)) as coordinator:
        logins = coordinator.metrics._requests
        async with ShareCoordinatorClient(
            ("localhost", coordinator.port), direct=True, security=PLAIN
        ) as client:
            await client.initialize(KEY, state_epoch=1, start_offset=5)
            # Reads continue while two sessions expire.
            for logged_in in (2, 3):
                skip_time(280)
                async with asyncio.timeout(60):
                    while logins[36, 0] < logged_in:
                        await asyncio.gather(*(client.read(KEY, leader_epoch=1) for _ in range(20)))
            await client.read(KEY, leader_epoch=1)
        assert logins[36, 0] == 3
        assert coordinator.metrics.counter_value("connections_opened") == 1


# TLS.


@pytest.fixture
def certificate_authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "tls")


def make_tls_security(authority: CertificateAuthority, **more: Any) -> ListenerSecurityConfig:
    files = authority.issue_certificate("coordinator").listener_tls(
        ca_location=str(authority.certificate), client_auth="required"
    )
    return ListenerSecurityConfig(tls=ServerTls(files, "listen"), **more)


async def test_client_sends_its_certificate(certificate_authority: CertificateAuthority) -> None:
    own = certificate_authority.issue_certificate("broker-1", key_password="let me in")
    security = ClientSecurity(
        "SSL",
        ca_file=str(certificate_authority.certificate),
        certificate_file=str(own.certificate),
        key_file=str(own.key),
        key_password="let me in",
    )

    async with open_connection(security, make_tls_security(certificate_authority)) as connection:
        assert connection.is_usable


async def test_client_verifies_authority_and_host_name(certificate_authority: CertificateAuthority) -> None:
    own = certificate_authority.issue_certificate("broker-1")
    security = ClientSecurity(
        "SSL", ca_file=str(certificate_authority.certificate), certificate_file=str(own.combined_file)
    )
    stranger = CertificateAuthority(certificate_authority.certificate.parent / "else", "stranger")

    async with serve_coordinator(security=make_tls_security(certificate_authority)) as coordinator:
        with pytest.raises(AuthenticationFailed, match=r"over TLS: .*certificate"):
            await connect_to(coordinator, security._replace(ca_file=str(stranger.certificate)))
        for unusable, setting in (
            (security._replace(ca_file="/nowhere"), "ssl.ca.location"),
            (security._replace(certificate_file="/nowhere"), "ssl.certificate.location"),
        ):
            with pytest.raises(AuthenticationFailed, match=f"over TLS: {setting}=/nowhere"):
                await connect_to(coordinator, unusable)

    elsewhere = certificate_authority.issue_certificate("elsewhere", hosts=("elsewhere",))
    tls = ServerTls(elsewhere.listener_tls(), "listen")
    async with serve_coordinator(security=ListenerSecurityConfig(tls=tls)) as coordinator:
        with pytest.raises(AuthenticationFailed, match="Hostname mismatch"):
            await connect_to(coordinator, security)
        await (await connect_to(coordinator, security._replace(check_hostname=False))).close()


def test_client_security_repr_hides_secrets() -> None:
    security = ClientSecurity("SASL_SSL", "PLAIN", "alice", "alice-secret", key_password="other-secret")
    assert repr(security) == "ClientSecurity(SASL_SSL, PLAIN, 'alice')"
