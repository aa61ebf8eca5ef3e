"""Build broker settings for an inter-broker listener with SASL, TLS, or both."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-512"

_LOGIN_MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM: "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class LoginCredentials(NamedTuple):
    """A user name and a password."""

    user: str
    password: str


class BrokerSecurity(NamedTuple):
    """Broker settings for security, and the arguments of the storage tool that create SCRAM users."""

    overrides: Mapping[str, str]
    format_flags: Sequence[str] = ()


def sasl_between_brokers(
    mechanism: str,
    brokers: LoginCredentials,
    *others: LoginCredentials,
    tls: Mapping[str, str] | None = None,
    session_ms: int = 0,
) -> BrokerSecurity:
    """Return settings for SASL between brokers; `others` are additional SASL users.

    `tls` are the TLS settings of the listener, for SASL_SSL. A connection must authenticate again after
    `session_ms` (0: never).
    """
    module = _LOGIN_MODULES[mechanism]
    login = f'{module} required username="{brokers.user}" password="{brokers.password}"'
    users = (brokers, *others)
    format_flags: list[str] = []
    if mechanism == PLAIN:
        login += "".join(f' user_{user}="{password}"' for user, password in users)
    else:
        for user, password in users:
            format_flags += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
    protocol = "SASL_PLAINTEXT" if tls is None else "SASL_SSL"
    overrides = {
        "listener.security.protocol.map": f"CLIENT:PLAINTEXT,INTERNAL:{protocol},CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "listener.name.internal.sasl.enabled.mechanisms": mechanism,
        f"listener.name.internal.{mechanism.lower()}.sasl.jaas.config": login + ";",
        **(tls or {}),
    }
    if session_ms:
        overrides["connections.max.reauth.ms"] = str(session_ms)
    return BrokerSecurity(overrides, format_flags)


def tls_between_brokers(
    keystore: str, trusted: str, *, client_auth: str = "none", prefix: str = "listener.name.internal."
) -> dict[str, str]:
    """Return a listener's TLS settings.

    `keystore` is a PEM file of the certificate with its key, and `trusted` a PEM file of the authorities.
    """
    return {
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": keystore,
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": trusted,
        f"{prefix}ssl.client.auth": client_auth,
    }
