"""Settings of the relay, a process in front of a broker's inter-broker listener.

Settings with the prefix `relay.ssl.` apply to connections to the relay. The relay's connections to the broker
use `ssl.*`, as all connections to brokers do.
"""

from typing import Annotated, Literal

from coordinator.config.fields import (
    UPPER_CASE,
    Address,
    ClaimName,
    Count,
    HostName,
    HostPort,
    Milliseconds,
    NonNegative,
    Principals,
    SecurityProtocol,
    SettingGroup,
    named_field,
    require_values,
)
from coordinator.config.security_groups import ListenerTlsSettings, TlsSettings
from coordinator.errors import ConfigError


class RelaySettings(SettingGroup):
    """The settings of `Config` for the relay."""

    relay_listen: Address = HostPort("0.0.0.0", 9094)
    """The address of the relay: the port that the broker advertises to other brokers."""

    relay_broker: Address = HostPort("127.0.0.1", 19094)
    """The broker's actual inter-broker listener."""

    relay_broker_server_name: HostName = ""
    """The host name in the broker's certificate, if it is not the host of relay.broker."""

    relay_coordinator: Address = HostPort("127.0.0.1", 9095)
    """The address of the share coordinator (its listen)."""

    relay_http: Address = HostPort("127.0.0.1", 9097)
    """The address of /livez, /readyz and /metrics of the relay."""

    relay_security_protocol: SecurityProtocol = "SASL_PLAINTEXT"
    """The security protocol of the broker's inter-broker listener."""

    relay_allowed_principals: Principals = ""
    """The brokers' principals, in the format of Kafka's super.users; only they may use the coordinator. With
    SSL, only these principals may connect, also to the broker."""

    relay_sub_claim_name: ClaimName = named_field("relay.sasl.oauthbearer.sub.claim.name", "sub")
    """The claim that contains the user name, as the broker's sasl.oauthbearer.sub.claim.name."""

    relay_ssl: ListenerTlsSettings = ListenerTlsSettings()
    """The certificate must be valid for the advertised host."""

    relay_coordinator_security_protocol: Annotated[Literal["PLAINTEXT", "SSL"], UPPER_CASE] = "PLAINTEXT"
    """The security protocol of connections to the coordinator. Use PLAINTEXT only if no other client can
    reach it, for example on loopback."""

    relay_coordinator_server_name: HostName = ""
    """The host name in the coordinator's certificate, if it is not the host of relay.coordinator."""

    relay_coordinator_ssl: TlsSettings = TlsSettings()
    """For connections to the coordinator."""

    relay_connections_max: Count = named_field("relay.max.connections", 4000)
    """The maximum number of connections; further ones are closed at once."""

    relay_idle_max_ms: Milliseconds = named_field("relay.connections.max.idle.ms", 1_200_000)
    """Connections without traffic for this time are closed. Use more than the brokers'
    connections.max.idle.ms (600000)."""

    relay_handshake_timeout_ms: Milliseconds = 30_000
    """The time limit for a TLS handshake and login."""

    relay_coordinator_wait_ms: NonNegative = 25_000
    """How long a persister's request waits for an unavailable coordinator. A persister gives up after 30000
    ms."""

    relay_stop_timeout_ms: Milliseconds = 5000
    """How long a stop waits for the coordinator's pending responses."""

    @property
    def relay_uses_tls(self) -> bool:
        return self.relay_security_protocol in ("SSL", "SASL_SSL")

    def check_relay(self) -> None:
        """Raise ConfigError if a setting of the relay is missing; only the relay calls this."""
        protocol = self.relay_security_protocol
        if protocol == "PLAINTEXT":
            return
        given = f"given with relay.security.protocol={protocol}"
        require_values({"relay.allowed.principals": self.relay_allowed_principals}, given)
        if self.relay_uses_tls:
            self.relay_ssl.check_files("relay.ssl", given)
        if protocol == "SSL" and self.relay_ssl.client_auth != "required":
            raise ConfigError(
                "relay.ssl.client.auth",
                self.relay_ssl.client_auth,
                "required with relay.security.protocol=SSL: to the broker every peer looks like the relay",
            )
