"""Run the relay process: build it from the settings, handle signals, start and stop it."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from http import HTTPStatus

from coordinator.config import Config
from coordinator.config.admin import is_loopback
from coordinator.errors import CoordinatorError
from coordinator.process import event_loop
from coordinator.process.open_files import raise_open_file_limit
from coordinator.security.client_security import combine_settings
from coordinator.security.outgoing_tls import OutgoingTls
from coordinator.security.principals import AllowedPrincipals, MappingRules, parse_setting
from coordinator.security.tls import ServerTls
from coordinator.serve.relay.connection import UpstreamRoute
from coordinator.serve.relay.health_server import HealthServer
from coordinator.serve.relay.limits import RelayLimits
from coordinator.serve.relay.listener import Listener
from coordinator.serve.relay.metrics import RelayMetrics
from coordinator.serve.relay.streams import UpstreamServer

_logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1

# How often certificate files are checked for changes.
_TLS_WATCH_S = 10.0
# The connection of a persister uses two open files, and a third one during authentication.
_FILES_PER_CONNECTION = 3
_OTHER_OPEN_FILES = 128
# The first file descriptor that systemd passes (sd_listen_fds).
_FIRST_INHERITED_DESCRIPTOR = 3


def serve_relay(config: Config) -> int:
    """Run the relay until SIGTERM or SIGINT; return the exit code of the process. Raises ConfigError."""
    route = make_route(config)
    raise_open_file_limit(_FILES_PER_CONNECTION * config.relay_connections_max + _OTHER_OPEN_FILES)
    return event_loop.run(_Relay(config, route).run())


def make_route(config: Config) -> UpstreamRoute:
    """Return the route that the settings describe. Raises ConfigError."""
    config.check_relay()
    protocol = config.relay_security_protocol
    broker_tls = coordinator_tls = server_tls = None
    if config.relay_uses_tls:
        server_tls = ServerTls(config.relay_ssl, "relay")
        # The relay does not log in: it forwards the logins of peers.
        broker_tls = OutgoingTls(
            combine_settings("SSL", config.ssl, identification=config.ssl_endpoint_identification_algorithm),
            "ssl.",
        )
    if config.relay_coordinator_security_protocol == "SSL":
        coordinator_tls = OutgoingTls(
            combine_settings("SSL", config.relay_coordinator_ssl), "relay.coordinator.ssl."
        )
    elif not is_loopback(config.relay_coordinator.host):
        _logger.warning(
            "The connection to the coordinator at %s is not encrypted and not authenticated. Allow only "
            "relays to connect to that port, or set relay.coordinator.security.protocol=SSL.",
            config.relay_coordinator,
        )
    return UpstreamRoute(
        broker=UpstreamServer(config.relay_broker, broker_tls, config.relay_broker_server_name),
        coordinator=UpstreamServer(
            config.relay_coordinator, coordinator_tls, config.relay_coordinator_server_name
        ),
        check="sasl" if protocol.startswith("SASL") else "certificate" if config.relay_uses_tls else "none",
        allowed=parse_setting(
            AllowedPrincipals.parse, "relay.allowed.principals", config.relay_allowed_principals
        ),
        rules=parse_setting(
            MappingRules.parse, "relay.ssl.principal.mapping.rules", config.relay_ssl.principal_mapping_rules
        ),
        sub_claim=config.relay_sub_claim_name,
        tls=server_tls,
    )


class _Relay:
    """One relay process, from start to stop."""

    def __init__(self, config: Config, route: UpstreamRoute) -> None:
        self._config = config
        self._route = route
        self._metrics = RelayMetrics()
        self._stop_requested = asyncio.Event()

    async def run(self) -> int:
        config = self._config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_requested.set)
        listener = Listener(self._route, make_relay_limits(config), self._metrics)
        health = HealthServer(
            {
                "/livez": lambda: (HTTPStatus.OK, "ok\n"),
                "/readyz": self._readiness_response,
                "/metrics": lambda: (HTTPStatus.OK, self._metrics.exposition()),
            }
        )
        watch = asyncio.create_task(self._watch_files())
        try:
            await health.start(config.relay_http)
            await listener.start(config.relay_listen, inherited_socket(os.environ, os.getpid()))
            _logger.info(
                f"relay on {config.relay_listen._replace(port=listener.port)} "
                f"({config.relay_security_protocol}), broker at {config.relay_broker}, coordinator at "
                f"{config.relay_coordinator}, HTTP on http://{config.relay_http._replace(port=health.port)}"
            )
            await self._stop_requested.wait()
            _logger.info("stopping")
        except CoordinatorError as error:
            _logger.error("the relay cannot start: %s", error)
            return EXIT_FAILED
        finally:
            watch.cancel()
            await listener.stop()
            await health.stop()
        _logger.info("stopped")
        return EXIT_OK

    def _readiness_response(self) -> tuple[HTTPStatus, str]:
        if self._stop_requested.is_set():
            return HTTPStatus.SERVICE_UNAVAILABLE, "stopping\n"
        return HTTPStatus.OK, "ok\n"

    async def _watch_files(self) -> None:
        if self._route.tls is not None:
            await self._route.tls.watch(_TLS_WATCH_S)


def make_relay_limits(config: Config) -> RelayLimits:
    """Return the limits that the settings define, with defaults for the others."""
    return RelayLimits(
        connections_max=config.relay_connections_max,
        handshake_s=config.relay_handshake_timeout_ms / 1000,
        idle_s=config.relay_idle_max_ms / 1000,
        coordinator_wait_s=config.relay_coordinator_wait_ms / 1000,
        stop_s=config.relay_stop_timeout_ms / 1000,
    )


def inherited_socket(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """Return the listening socket that systemd passed to this process, or None.

    systemd keeps the socket open, so connections are queued while the relay restarts.
    """
    if environ.get("LISTEN_PID") != str(pid) or environ.get("LISTEN_FDS") != "1":
        return None
    return socket.socket(fileno=_FIRST_INHERITED_DESCRIPTOR)
