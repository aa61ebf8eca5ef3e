"""Settings of the relay, a process in front of a broker's inter-broker listener.

Settings with the prefix `relay.ssl.` apply to connections to the relay. The relay's connections to the broker
use `ssl.*`, as all connections to brokers do.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from coordinator.config.fields import INT32_MAX, Address, Count, HostPort, Milliseconds, SettingInfo, to_upper
from coordinator.errors import ConfigError

_FILE = "a file"


class RelaySettings(BaseModel):
    """The settings of `Config` for the relay."""

    relay_listen: Annotated[
        Address,
        SettingInfo(
            "relay.listen", "The address of the relay: the port that the broker advertises to other brokers."
        ),
    ] = HostPort("0.0.0.0", 9094)
    relay_broker: Annotated[
        Address,
        SettingInfo("relay.broker", "The broker's actual inter-broker listener."),
    ] = HostPort("127.0.0.1", 19094)
    relay_broker_server_name: Annotated[
        str,
        SettingInfo(
            "relay.broker.server.name",
            "The host name in the broker's certificate, if it is not the host of relay.broker.",
            "the name of a host",
        ),
    ] = ""
    relay_coordinator: Annotated[
        Address,
        SettingInfo("relay.coordinator", "The address of the share coordinator (its listen)."),
    ] = HostPort("127.0.0.1", 9095)
    relay_http: Annotated[
        Address,
        SettingInfo("relay.http", "The address of /livez, /readyz and /metrics of the relay."),
    ] = HostPort("127.0.0.1", 9097)

    relay_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        BeforeValidator(to_upper),
        SettingInfo(
            "relay.security.protocol",
            "The security protocol of the broker's inter-broker listener.",
        ),
    ] = "SASL_PLAINTEXT"
    relay_allowed_principals: Annotated[
        str,
        SettingInfo(
            "relay.allowed.principals",
            "The brokers' principals, in the format of Kafka's super.users; only they may use the "
            "coordinator. With SSL, only they may connect, also to the broker.",
            "User:NAME;User:NAME",
        ),
    ] = ""
    relay_sub_claim_name: Annotated[
        str,
        Field(min_length=1),
        SettingInfo(
            "relay.sasl.oauthbearer.sub.claim.name",
            "The claim that contains the user name, as the broker's sasl.oauthbearer.sub.claim.name.",
            "the name of a claim",
        ),
    ] = "sub"
    relay_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.certificate.location",
            "A PEM file with the relay's server certificate for the advertised host, reloaded when it "
            "changes.",
            _FILE,
        ),
    ] = ""
    relay_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.key.location",
            "A PEM file with the key, if it is not in that of the certificate.",
            _FILE,
        ),
    ] = ""
    relay_ssl_key_password: Annotated[
        str, SettingInfo("relay.ssl.key.password", "The password of the key.", secret=True)
    ] = ""
    relay_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.ca.location",
            "A PEM file with the authorities of the brokers' client certificates, reloaded when it changes.",
            _FILE,
        ),
    ] = ""
    relay_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        SettingInfo(
            "relay.ssl.client.auth",
            "Whether brokers present a client certificate. Must be required with SSL.",
        ),
    ] = "none"
    relay_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "relay.ssl.principal.mapping.rules",
            "As Kafka's ssl.principal.mapping.rules.",
            "DEFAULT, or RULE:pattern/replacement/[LU], several with commas between",
        ),
    ] = "DEFAULT"

    relay_coordinator_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL"],
        BeforeValidator(to_upper),
        SettingInfo(
            "relay.coordinator.security.protocol",
            "The security protocol of connections to the coordinator. Use PLAINTEXT only if no other "
            "client can reach it, for example on loopback.",
        ),
    ] = "PLAINTEXT"
    relay_coordinator_server_name: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.server.name",
            "The host name in the coordinator's certificate, if it is not the host of relay.coordinator.",
            "the name of a host",
        ),
    ] = ""
    relay_coordinator_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.ca.location",
            "A PEM file with the coordinator's authority. Empty: the system's authorities.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.certificate.location",
            "A PEM file with the relay's client certificate for the coordinator.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.key.location",
            "A PEM file with the key, if it is not in that of the certificate.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_key_password: Annotated[
        str,
        SettingInfo("relay.coordinator.ssl.key.password", "The password of the key.", secret=True),
    ] = ""

    relay_connections_max: Annotated[
        Count,
        SettingInfo(
            "relay.max.connections", "The maximum number of connections; further ones are closed at once."
        ),
    ] = 4_000
    relay_idle_max_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "relay.connections.max.idle.ms",
            "Connections without traffic for this time are closed. Use more than the brokers' "
            "connections.max.idle.ms (600000).",
        ),
    ] = 1_200_000
    relay_handshake_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo("relay.handshake.timeout.ms", "The time limit for a TLS handshake and login."),
    ] = 30_000
    relay_coordinator_wait_ms: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "relay.coordinator.wait.ms",
            "How long a persister's request waits for an unavailable coordinator. A persister gives "
            "up after 30000.",
        ),
    ] = 25_000
    relay_stop_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "relay.stop.timeout.ms", "How long a stop waits for the coordinator's pending responses."
        ),
    ] = 5_000

    def check_relay(self) -> None:
        """Raise ConfigError if a setting of the relay is missing; only the relay calls this."""
        protocol = self.relay_security_protocol
        if protocol == "PLAINTEXT":
            return
        if not self.relay_allowed_principals:
            raise ConfigError(
                "relay.allowed.principals", "", f"given with relay.security.protocol={protocol}"
            )
        if protocol in ("SSL", "SASL_SSL") and not self.relay_ssl_certificate_location:
            raise ConfigError(
                "relay.ssl.certificate.location", "", f"given with relay.security.protocol={protocol}"
            )
        if protocol == "SSL" and self.relay_ssl_client_auth != "required":
            raise ConfigError(
                "relay.ssl.client.auth",
                self.relay_ssl_client_auth,
                "required with relay.security.protocol=SSL: to the broker every peer looks like the relay",
            )
