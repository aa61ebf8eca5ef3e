"""Create the Kafka listener from the configuration.

The files of certificates, users and keys are read here, so errors in them are reported at startup.
"""

from functools import partial

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.process.clock import Clock, SystemClock
from coordinator.process.open_files import connection_limit
from coordinator.security.jwks import open_key_source
from coordinator.security.passwords import PlainExchange, ScramExchange
from coordinator.security.principals import AllowedPrincipals, MappingRules, parse_setting
from coordinator.security.sasl import OAUTHBEARER, PLAIN, Mechanism
from coordinator.security.tls import ServerTls
from coordinator.security.tokens import TokenExchange, TokenRules, TokenValidator
from coordinator.security.users import Users
from coordinator.serve.server.api import Api
from coordinator.serve.server.find_coordinator import CoordinatorDirectory
from coordinator.serve.server.limits import ServerLimits
from coordinator.serve.server.listener import Listener
from coordinator.serve.server.listener_security import ListenerSecurityConfig, ReloadableSource
from coordinator.serve.service import Service

_PREFIX = "listen."


def make_listener(
    config: Config, service: Service, directory: CoordinatorDirectory, metrics: Metrics
) -> Listener:
    """Create the listener. Raises ConfigError for invalid settings and files."""
    security = make_listener_security(config, SystemClock())
    api = Api(service, directory, metrics, sasl=bool(security.mechanisms))
    limits = ServerLimits(
        connections_max=connection_limit(config.connections_max),
        frame_bytes_max=config.frame_bytes_max,
        requests_in_flight_max=config.requests_in_flight_max,
        queued_bytes_max=config.queued_bytes_max,
        connection_idle_s=config.connections_idle_max_ms / 1000,
    )
    return Listener(api, metrics, limits, security)


def make_listener_security(config: Config, clock: Clock) -> ListenerSecurityConfig:
    """Return the listener's security settings. Raises ConfigError with the setting and the file."""
    if config.listen_security_protocol == "PLAINTEXT":
        return ListenerSecurityConfig()
    watched: list[ReloadableSource] = []
    tls = None
    if config.listen_uses_tls:
        tls = ServerTls(config.listen_ssl, "listen")
        watched.append(tls)
    return ListenerSecurityConfig(
        tls=tls,
        mechanisms=_make_mechanisms(config, clock, watched),
        allowed=parse_setting(
            AllowedPrincipals.parse, _PREFIX + "allowed.principals", config.listen_allowed_principals
        ),
        rules=parse_setting(
            MappingRules.parse,
            _PREFIX + "ssl.principal.mapping.rules",
            config.listen_ssl.principal_mapping_rules,
        ),
        reauth_max_ms=config.listen_reauth_max_ms,
        failed_delay_s=config.listen_failed_authentication_delay_ms / 1000,
        handshake_s=config.listen_handshake_timeout_ms / 1000,
        watched=tuple(watched),
        reload_s=config.listen_reload_interval_ms / 1000,
    )


def _make_mechanisms(config: Config, clock: Clock, watched: list[ReloadableSource]) -> dict[str, Mechanism]:
    names = config.listen_mechanisms
    mechanisms: dict[str, Mechanism] = {}
    if set(names) - {OAUTHBEARER}:
        users = Users(config.listen_sasl_users_file, _PREFIX + "sasl.users.file", names)
        watched.append(users)
        for name in names:
            mechanisms[name] = (
                partial(PlainExchange, users) if name == PLAIN else partial(ScramExchange, name, users)
            )
    if OAUTHBEARER in names:
        keys = open_key_source(
            config.listen_jwks_url,
            _PREFIX + "sasl.oauthbearer.jwks.endpoint.url",
            config.listen_jwks_refresh_ms / 1000,
            ca_file=config.listen_jwks_ca_location,
        )
        watched.append(keys)
        audiences = tuple(filter(None, (name.strip() for name in config.listen_token_audience.split(","))))
        rules = TokenRules(
            audiences,
            config.listen_token_issuer,
            config.listen_token_sub_claim,
            config.listen_token_clock_skew_s,
        )
        mechanisms[OAUTHBEARER] = partial(TokenExchange, TokenValidator(keys, rules, clock))
    # In the order of the setting; SaslHandshake responses use the same order.
    return {name: mechanisms[name] for name in names}
