"""The settings of the relay, the process in front of a broker's inter-broker listener.

What begins with `relay.ssl.` is for those who connect to the relay; towards the broker it uses `ssl.*`, as
everything here does that connects to brokers.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from coordinator.config.fields import INT32_MAX, Address, Count, HostPort, Milliseconds, SettingInfo, upper
from coordinator.errors import ConfigError

_FILE = "a file"


class RelaySettings(BaseModel):
    """The part of `Config` that concerns the relay."""

    relay_listen: Annotated[
        Address,
        SettingInfo(
            "relay.listen", "Where the relay listens: the port that the broker advertises to brokers."
        ),
    ] = HostPort("0.0.0.0", 9094)
    relay_broker: Annotated[
        Address,
        SettingInfo("relay.broker", "Where the broker's inter-broker listener really is."),
    ] = HostPort("127.0.0.1", 19094)
    relay_broker_server_name: Annotated[
        str,
        SettingInfo(
            "relay.broker.server.name",
            "Whose certificate the broker shows, if that is not the host of relay.broker.",
            "the name of a host",
        ),
    ] = ""
    relay_coordinator: Annotated[
        Address,
        SettingInfo("relay.coordinator", "Where persisters are led to: listen of the share coordinator."),
    ] = HostPort("127.0.0.1", 9095)
    relay_http: Annotated[
        Address,
        SettingInfo("relay.http", "Where the relay answers /livez, /readyz and /metrics."),
    ] = HostPort("127.0.0.1", 9097)

    relay_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        BeforeValidator(upper),
        SettingInfo(
            "relay.security.protocol",
            "How the broker's inter-broker listener is secured. The relay is to peers what that listener is, "
            "and to it what peers are.",
        ),
    ] = "SASL_PLAINTEXT"
    relay_allowed_principals: Annotated[
        str,
        SettingInfo(
            "relay.allowed.principals",
            "Who may speak to the coordinator: the users that brokers log in as, User:a;User:b as in Kafka's "
            "super.users. With SSL: the owners of brokers' certificates, who alone may speak to the broker "
            "too. Empty: nobody.",
            "User:NAME;User:NAME",
        ),
    ] = ""
    relay_sub_claim_name: Annotated[
        str,
        Field(min_length=1),
        SettingInfo(
            "relay.sasl.oauthbearer.sub.claim.name",
            "The claim of a token that holds the user, as the broker's sasl.oauthbearer.sub.claim.name.",
            "the name of a claim",
        ),
    ] = "sub"
    relay_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.certificate.location",
            "The certificate that the relay shows to brokers, for the advertised host: a PEM file, read "
            "again when it changes.",
            _FILE,
        ),
    ] = ""
    relay_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.key.location",
            "The key of that certificate, if it is not in the same file: a PEM file.",
            _FILE,
        ),
    ] = ""
    relay_ssl_key_password: Annotated[
        str, SettingInfo("relay.ssl.key.password", "The password of that key, if it has one.", secret=True)
    ] = ""
    relay_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "relay.ssl.ca.location",
            "Who signs the certificates of brokers that connect: a PEM file, read again when it changes.",
            _FILE,
        ),
    ] = ""
    relay_ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        SettingInfo(
            "relay.ssl.client.auth",
            "Whether brokers that connect show a certificate. Must be required with SSL, where it is all "
            "that they are known by.",
        ),
    ] = "none"
    relay_ssl_principal_mapping_rules: Annotated[
        str,
        SettingInfo(
            "relay.ssl.principal.mapping.rules",
            "How the subject of a certificate becomes a principal, as Kafka's ssl.principal.mapping.rules.",
            "DEFAULT, or RULE:pattern/replacement/[LU], several with commas between",
        ),
    ] = "DEFAULT"

    relay_coordinator_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL"],
        BeforeValidator(upper),
        SettingInfo(
            "relay.coordinator.security.protocol",
            "How the relay speaks to the coordinator. PLAINTEXT: then nobody else must be able to, as over "
            "the loopback address. SSL: the coordinator knows the relay by its certificate.",
        ),
    ] = "PLAINTEXT"
    relay_coordinator_server_name: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.server.name",
            "Whose certificate the coordinator shows, if that is not the host of relay.coordinator.",
            "the name of a host",
        ),
    ] = ""
    relay_coordinator_ssl_ca_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.ca.location",
            "Who signs the coordinator's certificate: a PEM file. Empty: those whom the system trusts.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_certificate_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.certificate.location",
            "The certificate that the coordinator knows the relay by: a PEM file.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_key_location: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.key.location",
            "The key of that certificate, if it is not in the same file: a PEM file.",
            _FILE,
        ),
    ] = ""
    relay_coordinator_ssl_key_password: Annotated[
        str,
        SettingInfo(
            "relay.coordinator.ssl.key.password", "The password of that key, if it has one.", secret=True
        ),
    ] = ""

    relay_connections_max: Annotated[
        Count,
        SettingInfo(
            "relay.max.connections", "Connections to the relay at a time; one more is closed at once."
        ),
    ] = 4_000
    relay_idle_max_ms: Annotated[
        Milliseconds,
        SettingInfo(
            "relay.connections.max.idle.ms",
            "A connection over which nothing goes for this long is closed. Brokers do so themselves after "
            "connections.max.idle.ms (600000), and should be first.",
        ),
    ] = 1_200_000
    relay_handshake_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo("relay.handshake.timeout.ms", "How long a peer may take to show who it is."),
    ] = 30_000
    relay_coordinator_wait_ms: Annotated[
        int,
        Field(ge=0, le=INT32_MAX),
        SettingInfo(
            "relay.coordinator.wait.ms",
            "How long a persister is held while the coordinator cannot be reached. It gives up after 30000.",
        ),
    ] = 25_000
    relay_stop_timeout_ms: Annotated[
        Milliseconds,
        SettingInfo("relay.stop.timeout.ms", "How long a stop waits for the coordinator's last answers."),
    ] = 5_000

    def check_relay(self) -> None:
        """Raise ConfigError if what the relay needs is missing. Nobody else needs it."""
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
