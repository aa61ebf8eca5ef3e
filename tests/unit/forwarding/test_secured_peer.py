"""Connections between coordinators with TLS certificates or SASL."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.client import ClientSecurity, ShareCoordinatorError
from coordinator.config import Config
from coordinator.config.security_groups import SaslSettings
from coordinator.security.client_security import make_peer_connection_security
from coordinator.security.principals import AllowedPrincipals
from coordinator.security.tls import ServerTls
from coordinator.serve.forwarding import ForwardingLimits
from coordinator.serve.forwarding.peer_connections import PeerConnections
from coordinator.serve.server import ListenerSecurityConfig
from protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.unit import clock_skipping
from tests.unit.server.sasl_clients import password_security
from tests.unit.server.wire import serve_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)

KEY = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"


async def find_coordinator_error_code(security: ListenerSecurityConfig, ours: ClientSecurity) -> int:
    """Send FindCoordinator to a secured listener as a peer does; return the error code."""
    async with serve_coordinator(security=security) as one:
        peer = PeerConnections(f"localhost:{one.port}", "me", ForwardingLimits(), ours)
        try:
            async with peer.connection(1) as connection:
                request = FindCoordinatorRequest(key_type=2, coordinator_keys=[KEY])
                return int((await connection.request(request)).coordinators[0].error_code)
        finally:
            await peer.close()


def make_config(
    own: IssuedCertificate, authority: CertificateAuthority, client_auth: str = "none", **more: Any
) -> Config:
    """Return the settings of a coordinator that listens with the given certificate."""
    tls = own.listener_tls(ca_location=str(authority.certificate), client_auth=client_auth)
    return Config(listen_security_protocol="SSL", listen_ssl=tls, **more)


async def test_coordinators_use_their_listener_certificate_as_client_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    own = authority.issue_certificate("coordinator")
    config = make_config(
        own,
        authority,
        client_auth="required",
        listen_allowed_principals="User:CN=coordinator",
    )
    security = ListenerSecurityConfig(
        tls=ServerTls(config.listen_ssl, "listen"),
        allowed=AllowedPrincipals.parse(config.listen_allowed_principals),
    )

    assert await find_coordinator_error_code(security, make_peer_connection_security(config)) == 0


@pytest.mark.parametrize(("among_us", "to_brokers"), [("https", "none"), ("none", "https")])
async def test_host_name_check_of_peers_has_its_own_setting(
    tmp_path: Path, among_us: str, to_brokers: str
) -> None:
    authority = CertificateAuthority(tmp_path)
    own = authority.issue_certificate("coordinator", hosts=("another.example",))
    config = make_config(
        own,
        authority,
        listen_allowed_principals="User:ANONYMOUS",
        forwarding_endpoint_identification=among_us,
        ssl_endpoint_identification_algorithm=to_brokers,
    )
    tls = ServerTls(own.listener_tls(), "listen")

    connection = find_coordinator_error_code(
        ListenerSecurityConfig(tls=tls), make_peer_connection_security(config)
    )
    if among_us == "https":
        with pytest.raises(ShareCoordinatorError, match="certificate"):
            await connection
    else:
        assert await connection == 0


async def test_coordinators_log_in_to_each_other_with_sasl(tmp_path: Path) -> None:
    config = Config(
        log="kafka",
        bootstrap_servers="k:1",
        ownership="group",
        listen_security_protocol="SASL_PLAINTEXT",
        listen_sasl_enabled_mechanisms="SCRAM-SHA-256",
        listen_sasl_users_file="users",
        listen_allowed_principals="User:alice",
        forwarding_sasl=SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password="alice-secret"),
    )

    assert (
        await find_coordinator_error_code(password_security(tmp_path), make_peer_connection_security(config))
        == 0
    )
