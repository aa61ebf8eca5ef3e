"""Create the objects of a coordinator process and connect them; choose the implementations.

A coordinator is one process with one event loop for the Kafka listener, the shards and the HTTP server.
"""

import asyncio
import gc
import logging
import signal
import uuid
from collections.abc import Callable
from functools import partial

from coordinator.cluster.ownership import Assignment, Ownership, Replica, StaticOwnership
from coordinator.cluster.ownership.group import GroupOwnership
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.topics import EveryTopicExists
from coordinator.config import Config, HostPort
from coordinator.errors import ConfigError, CoordinatorError
from coordinator.log.assembly import describe_log, make_log
from coordinator.log.base import AppendReporter, StateLog
from coordinator.log.other_process import locate_log
from coordinator.metrics import Metrics, membership_families
from coordinator.observe.signals.append_sample import AppendSampler
from coordinator.observe.signals.assembly import SignalService
from coordinator.operate.admin import (
    ClusterInfoCache,
    CoordinatorView,
    HttpService,
    OwnerDirectory,
    make_user_topics,
)
from coordinator.operate.expiry import Expiry, make_expiry
from coordinator.operate.history import HistoryProcess
from coordinator.process import event_loop
from coordinator.process.clock import SteadyClock, SystemClock, seconds_since_boot
from coordinator.security.client_security import make_client_security, make_peer_connection_security
from coordinator.serve.forwarding import KAFKA_STATE_TOPIC, Forwarder, ForwardingMode
from coordinator.serve.runtime import LogOpener, Runtime, RuntimeLimits
from coordinator.serve.server import CoordinatorDirectory, Listener, make_listener
from coordinator.serve.service import Service, ServiceLimits
from coordinator.shard import SnapshotPolicy

_logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_SETTING = 2

# Allocations between two garbage collections of young objects. Reference counts free the objects of a
# request; the collector is only needed for rare cycles.
_GC_THRESHOLD = 50_000

# The fraction of the stop timeout for handing shards over. The rest is for answering accepted requests.
_HAND_OVER_SHARE = 0.6


def serve(config: Config) -> int:
    """Run a coordinator until SIGTERM or SIGINT; return the exit code of the process."""
    if not __debug__:
        # Assertions check conditions that must hold before anything is acknowledged.
        raise CoordinatorError("the coordinator does not run under python -O, which disables its assertions")
    if (risk := config.listener_exposure_warning(config.listen)) is not None:
        _logger.warning(risk)
    gc.set_threshold(_GC_THRESHOLD, 50, 100)
    return event_loop.run(_Coordinator(config).run(_logger.info))


class _OwnershipHandler:
    """Applies changes of ownership; see `OwnershipListener`."""

    def __init__(
        self,
        runtime: Runtime,
        directory: CoordinatorDirectory,
        forwarder: Forwarder | None,
        owner_directory: OwnerDirectory,
        *,
        one_owner: bool,
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._forwarder = forwarder
        self._owner_directory = owner_directory
        self._one_owner = one_owner

    def on_assignment_changed(self, assignment: Assignment | None) -> None:
        if not self._one_owner:
            self._directory.set_assignment(assignment)
        if self._forwarder is not None:
            self._forwarder.set_assignment(assignment)
        self._owner_directory.set_assignment(assignment)

    def on_elected(self, state_partition: int, *, release_expected: bool) -> None:
        self._runtime.elect(state_partition, release_expected=release_expected)

    def on_resigned(self, state_partition: int) -> None:
        self._runtime.resign(state_partition)

    def is_ready_to_serve(self) -> bool:
        return self._runtime.can_serve

    def is_resigning(self) -> bool:
        return bool(self._runtime.resigning_shards)


def _make_service(config: Config, runtime: Runtime, forwarder: Forwarder | None) -> Service:
    limits = ServiceLimits(
        elements_max=config.request_elements_max,
        response_bytes_max=config.response_bytes_max,
        decoded_bytes_max=config.decoded_bytes_max,
        batches_per_write_max=config.write_batches_max,
    )
    return Service(runtime, forwarder, limits)


class _Coordinator:
    """One coordinator process, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._one_owner = config.ownership == "static"
        self._stop_requested = asyncio.Event()
        self._force_stop_requested = asyncio.Event()
        self._metrics = Metrics()
        self._ownership: Ownership | None = None
        self._forwarding: ForwardingMode | None = None
        self._expiry: Expiry | None = None
        self._signals: SignalService | None = None
        self._append_sample = AppendSampler()
        self._owners = OwnerDirectory()

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Run until a signal; `on_ready` is called with a sentence when both listeners accept connections."""
        self._install_signal_handlers()
        config, metrics = self._config, self._metrics
        log = self._make_log()
        runtime = make_runtime(
            config, log, metrics, may_claim=self._may_claim_shards, on_fenced=self._on_fenced
        )
        directory = CoordinatorDirectory(
            _find_advertised_address(config, config.listen.port),
            node_id_first=config.node_id_first,
            node_ids=config.node_ids,
            state_partitions=config.state_partitions,
        )
        instance = uuid.uuid4().hex  # noqa: TID251
        self._forwarding = make_forwarding(config, runtime, metrics, instance)
        forwarder = self._forwarding.forwarder if self._forwarding is not None else None
        listener = make_listener(config, _make_service(config, runtime, forwarder), directory, metrics)
        runtime.add_health_source(listener.health)
        http = self._make_http(runtime, log)
        try:
            # Start HTTP first, so that a long recovery of the journal is visible.
            await http.start()
            if not await self._start_runtime(runtime):
                await self._stop(runtime, listener, http)
                return EXIT_OK
            await listener.start(config.listen)
            advertised = _find_advertised_address(config, listener.port)
            self._ownership = make_ownership(
                config, instance, advertised, config.http._replace(port=http.port)
            )
            if self._one_owner:
                directory.advertise(advertised)
            else:
                directory.set_assignment(None)
            runtime.add_health_source(self._ownership.health)
            if isinstance(self._ownership, GroupOwnership):
                metrics.add_families(partial(membership_families, self._ownership))
            if self._forwarding is not None:
                self._forwarding.start()
            shards = _OwnershipHandler(runtime, directory, forwarder, self._owners, one_owner=self._one_owner)
            await self._ownership.start(shards)
            for service in (self._expiry, self._signals):
                if service is not None:
                    service.start()
        except CoordinatorError as error:
            _logger.error("The coordinator cannot start: %s", error)
            await self._stop(runtime, listener, http)
            # Some invalid settings are detected only when the cluster is queried.
            return EXIT_BAD_SETTING if isinstance(error, ConfigError) else EXIT_FAILED
        address = config.listen._replace(port=listener.port)
        served = f"share coordinator on {address}, advertised as {advertised}"
        on_ready(f"{served}, HTTP on {http.url}, log: {describe_log(config)}")
        await self._stop_requested.wait()
        _logger.info("Stopping; accepted requests are finished first.")
        runtime.mark_not_ready()
        await event_loop.run_until_set(self._drain(listener), self._force_stop_requested)
        await self._stop(runtime, listener, http)
        _logger.info("stopped")
        return EXIT_OK

    def _make_log(self) -> StateLog:
        log = make_log(self._config, self._metrics)
        if isinstance(log, AppendReporter):
            log.observe_appends(self._append_sample.add)
        return log

    def _make_http(self, runtime: Runtime, log: StateLog) -> HttpService:
        config, metrics = self._config, self._metrics
        self._expiry = make_expiry(
            config, runtime, metrics, clock=SteadyClock(), has_fresh_lease=self._may_claim_shards
        )
        topics = make_user_topics(config)
        history = HistoryProcess(lambda state_partition: locate_log(config, log, state_partition))
        self._signals = SignalService(
            config, runtime, metrics, topics, sample=self._append_sample, read_skips=history.read_skips
        )
        runtime.observe_loads(self._signals.monitor.on_shard_loaded)
        return HttpService(
            CoordinatorView(
                runtime,
                metrics,
                config,
                self._owners,
                ClusterInfoCache(topics),
                self._hand_over,
                self._expiry,
                self._signals.monitor,
                history,
            )
        )

    async def _start_runtime(self, runtime: Runtime) -> bool:
        """Start the runtime; return False if a stop is requested before the log is open."""
        if self._config.log != "kafka":
            start = runtime.start(elect_all=self._one_owner)
            return await event_loop.run_until_set(start, self._stop_requested)
        log_opener = LogOpener(lambda: runtime.start(elect_all=self._one_owner), SystemClock())
        runtime.add_health_source(log_opener.health)
        return await log_opener.run(self._stop_requested)

    async def _drain(self, listener: Listener) -> None:
        """Hand the shards over, then answer the accepted requests."""
        timeout_s = self._config.stop_timeout_ms / 1000
        began_s = asyncio.get_running_loop().time()
        if self._forwarding is not None:
            self._forwarding.forwarder.freeze_assignment()
        if self._ownership is not None:
            await self._ownership.drain(timeout_s * _HAND_OVER_SHARE)
        await listener.drain(timeout_s - (asyncio.get_running_loop().time() - began_s))

    def _hand_over(self, state_partition: int, to_instance: str) -> None:
        if self._ownership is not None:
            self._ownership.hand_over(state_partition, to_instance)

    def _may_claim_shards(self) -> bool:
        # Static ownership has no group to wait for, so shards load before ownership begins.
        return self._one_owner or (self._ownership is not None and self._ownership.lease_is_fresh())

    def _on_fenced(self, state_partition: int) -> None:
        self._metrics.count("fenced")
        if self._ownership is not None:
            self._ownership.on_fenced(state_partition)

    async def _stop(self, runtime: Runtime, listener: Listener, http: HttpService) -> None:
        for service in (self._expiry, self._signals, self._ownership):
            if service is not None:
                await service.stop()
        await listener.stop()
        if self._forwarding is not None:
            await self._forwarding.stop()
        await runtime.stop()
        await http.stop()

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop_requested.is_set():
            self._force_stop_requested.set()
        self._stop_requested.set()


def make_forwarding(
    config: Config, runtime: Runtime, metrics: Metrics, instance: str
) -> ForwardingMode | None:
    """Return the forwarding to other coordinators, None with static ownership."""
    if config.ownership == "static":
        return None
    from coordinator.cluster.kafka.topic_existence import topic_exists

    security = make_client_security(config)
    return ForwardingMode(
        Forwarder(
            runtime, instance=instance, metrics=metrics, security=make_peer_connection_security(config)
        ),
        config.forwarding,
        partial(topic_exists, config.bootstrap_servers, KAFKA_STATE_TOPIC, security=security),
    )


def make_ownership(config: Config, instance: str, advertised: HostPort, http: HostPort) -> Ownership:
    """Return the configured ownership; `instance` identifies this process in its group."""
    replica = Replica(
        instance=instance,
        wire=str(advertised),
        http=f"https://{http}" if config.http_uses_tls else str(http),
        broker_id=config.broker_id,
        connections=config.node_ids,
    )
    if config.ownership == "static":
        return StaticOwnership(replica, config.state_partitions)
    from coordinator.cluster.kafka.group_client import KafkaGroupClient

    limits = _make_group_limits(config)

    def make_group_client() -> KafkaGroupClient:
        return KafkaGroupClient(
            config.bootstrap_servers,
            config.group_id,
            config.state_topic,
            security=make_client_security(config),
            session_timeout_s=limits.session_timeout_s,
            rebalance_timeout_s=limits.rebalance_timeout_s,
        )

    return GroupOwnership(
        make_group_client,
        replica=replica,
        state_topic=config.state_topic,
        state_partitions=config.state_partitions,
        group_id=config.group_id,
        group_instance_id=config.group_instance_id,
        limits=limits,
        monotonic=seconds_since_boot,
    )


def _make_group_limits(config: Config) -> GroupLimits:
    return GroupLimits(
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        rebalance_timeout_s=config.rebalance_timeout_ms / 1000,
    )


def make_runtime(
    config: Config,
    log: StateLog,
    metrics: Metrics,
    *,
    may_claim: Callable[[], bool] = lambda: True,
    on_fenced: Callable[[int], None] = lambda state_partition: None,
) -> Runtime:
    runtime = Runtime(
        log=log,
        clock=SystemClock(),
        topics=EveryTopicExists(),
        metrics=metrics,
        policy=SnapshotPolicy(updates_max=config.snapshot_updates_max),
        limits=RuntimeLimits(
            queued_operations_max=config.queued_operations_max,
            write_timeout_s=config.write_timeout_ms / 1000,
            load_wait_s=config.load_wait_ms / 1000,
            request_age_max_s=config.request_age_max_ms / 1000,
        ),
        state_partitions=config.state_partitions,
        cold_interval_ms=config.cold_snapshot_interval_ms,
        prune_interval_ms=config.prune_interval_ms,
        may_claim=may_claim,
        on_fenced=on_fenced,
    )
    metrics.attach_runtime(runtime, config.log, log.size_bytes)
    return runtime


def _find_advertised_address(config: Config, listening_port: int) -> HostPort:
    """Return the address that brokers connect to. If its port is 0, use the bound port of the listener."""
    return config.advertise if config.advertise.port else config.advertise._replace(port=listening_port)
