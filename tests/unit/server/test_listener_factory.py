"""The listener takes its security from the configuration."""

from pathlib import Path

from coordinator.config import Config
from coordinator.serve.server import make_listener_security
from protocol.errors import ErrorCode
from tests.certificates import CertificateAuthority
from tests.manual_clock import ManualClock
from tests.unit.security.handshakes import client_context
from tests.unit.security.token_issuer import NOW_S, TokenIssuer
from tests.unit.server.sasl_clients import USERS, find_coordinator_error_code, log_in
from tests.unit.server.wire import serve_coordinator


async def test_only_listed_principals_may_use_a_configured_listener(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(USERS)
    own = CertificateAuthority(tmp_path).issue_certificate("coordinator")
    config = Config(
        listen_security_protocol="SASL_SSL",
        listen_ssl=own.listener_tls(),
        listen_sasl_enabled_mechanisms="PLAIN",
        listen_sasl_users_file=str(tmp_path / "users"),
        listen_allowed_principals="User:alice",
    )
    context = client_context(str(tmp_path / "authority.pem"))
    async with serve_coordinator(security=make_listener_security(config, ManualClock())) as served:
        for user, error in (("alice", 0), ("bob", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)):
            client = await served.connect(context)
            await log_in(client, user)
            assert await find_coordinator_error_code(client) == error


async def test_listener_takes_times_and_files_from_the_configuration(tmp_path: Path) -> None:
    issuer = TokenIssuer()
    (tmp_path / "users").write_text(USERS)
    config = Config(
        listen_security_protocol="SASL_PLAINTEXT",
        listen_sasl_enabled_mechanisms="OAUTHBEARER,SCRAM-SHA-256",
        listen_sasl_users_file=str(tmp_path / "users"),
        listen_jwks_url=issuer.write_keys(tmp_path / "keys"),
        listen_token_audience="one, two",
        listen_token_issuer="https://issuer",
        listen_token_sub_claim="azp",
        listen_token_clock_skew_s=60,
        listen_allowed_principals="User:client",
        listen_reauth_max_ms=1_000,
        listen_failed_authentication_delay_ms=2_000,
        listen_handshake_timeout_ms=3_000,
        listen_reload_interval_ms=4_000,
    )
    security = make_listener_security(config, ManualClock((NOW_S + 3_659) * 1000))
    assert list(security.mechanisms) == ["OAUTHBEARER", "SCRAM-SHA-256"]
    assert (security.tls, len(security.watched)) == (None, 2)
    times = (security.reauth_max_ms, security.failed_delay_s, security.handshake_s, security.reload_s)
    assert times == (1_000, 2.0, 3.0, 4.0)
    token = issuer.token(aud="two", iss="https://issuer", azp="client")
    step = await security.mechanisms["OAUTHBEARER"]().process_token(
        f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    )
    assert step.identity is not None
    assert step.identity.principal == "User:client"


def test_plaintext_listener_has_no_authentication() -> None:
    security = make_listener_security(Config(), ManualClock())
    assert (security.tls, security.mechanisms, security.allowed) == (None, {}, None)
