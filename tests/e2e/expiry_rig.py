"""Run a real broker with a coordinator in the test's process, whose expiry clock a test advances.

Except for this clock, the coordinator has the same components as a coordinator process.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from coordinator.app import make_log, make_runtime
from coordinator.config import Config, HostPort
from coordinator.metrics import Metrics
from coordinator.operate.expiry import Expiry, ExpiryForecast, ExpiryRoundResult, make_expiry
from coordinator.process.clock import SystemClock
from coordinator.serve.server import Api, CoordinatorDirectory, Listener, ServerLimits
from coordinator.serve.service import Service
from protocol.state_records import SharePartitionKey
from tests.kafka import (
    RELEASES,
    Broker,
    HAProxy,
    KafkaClient,
    KafkaJars,
    ShareConsumer,
    ShareGroupTool,
    fetch_jars,
    free_ports,
    wait_until,
)
from tests.kafka.broker import new_cluster

RETENTION_MINUTES = 600
GRACE_MINUTES = 60
# The default interval between two expiry checks of a coordinator process, in minutes.
CHECK_INTERVAL_MINUTES = 10

# The maximum number of seconds of an expiry round. A round may wait for a consumer that
# joins during the round.
_CALL_TIMEOUT_S = 300

T = TypeVar("T")


class OffsetClock:
    """A clock that a test advances; otherwise it shows the system time."""

    def __init__(self) -> None:
        self._offset_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self._offset_ms

    def advance(self, minutes: float) -> None:
        self._offset_ms += round(minutes * 60_000)


class ThreadedCoordinator:
    """A coordinator in a thread with its own event loop. Tests call its methods from their thread."""

    def __init__(self, port: int, bootstrap: str, directory: Path) -> None:
        self.port = port
        self.clock = OffsetClock()
        self.config = Config(
            listen=HostPort("127.0.0.1", port),
            data_dir=directory,
            bootstrap_servers=bootstrap,
            state_retention_minutes=RETENTION_MINUTES,
            state_missing_grace_minutes=GRACE_MINUTES,
            state_retention_check_interval_ms=CHECK_INTERVAL_MINUTES * 60_000,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinator")
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the coordinator's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def start(self, **settings: object) -> None:
        """Start a coordinator with the existing journal, and wait until it has loaded the state."""
        self.run(self._start(self.config.model_copy(update=settings)))
        wait_until(lambda: self.runtime.initial_load_done, seconds=120, what="the journal is loaded")

    async def _start(self, config: Config) -> None:
        self.metrics = Metrics()
        runtime = self.runtime = make_runtime(config, make_log(config, self.metrics), self.metrics)
        directory = CoordinatorDirectory(
            config.listen,
            node_id_first=config.node_id_first,
            node_ids=config.node_ids,
            state_partitions=config.state_partitions,
        )
        self._listener = Listener(
            Api(Service(runtime), directory, self.metrics), self.metrics, ServerLimits()
        )
        await runtime.start()
        await self._listener.start(config.listen)
        expiry = make_expiry(config, runtime, self.metrics, clock=self.clock, has_fresh_lease=lambda: True)
        assert expiry is not None
        self.expiry: Expiry = expiry

    def stop(self) -> None:
        self.run(self._stop())

    async def _stop(self) -> None:
        await self.expiry.stop()
        await self._listener.stop()
        await self.runtime.stop()

    def run_round(self) -> ExpiryRoundResult:
        """Run one expiry round, which a coordinator process does periodically."""
        return self.run(self.expiry.run_round())

    def advance_with_rounds(self, minutes: int) -> None:
        """Advance the clock, and run an expiry round after each check interval."""
        for _ in range(minutes // CHECK_INTERVAL_MINUTES):
            self.clock.advance(CHECK_INTERVAL_MINUTES)
            self.run_round()

    def forecast(self, retention_minutes: int | None = None) -> ExpiryForecast:
        """Return the abandoned state and its expiry times, by default for the configured retention time."""
        return self.run(self.expiry.forecast(retention_minutes))

    def expiry_statuses(self, group: str) -> dict[str | None, tuple[str, str]]:
        """Return (reason, expiry status) of the abandoned state of a group, by topic name."""
        items = self.forecast().items
        return {each.topic: (each.reason, each.status) for each in items if each.group_id == group}

    def list_share_partitions(self, group: str) -> set[SharePartitionKey]:
        async def list_keys() -> set[SharePartitionKey]:
            return {key async for key, _ in self.runtime.share_partitions() if key.group_id == group}

        return self.run(list_keys())

    def count_expired_share_partitions(self, reason: str) -> float:
        """Return the number of share-partitions that expired for a reason."""
        name = "share_coordinator_expired_share_partitions_total"
        return self.metrics.registry.get_sample_value(name, {"reason": reason}) or 0


class ExpiringRig:
    """A broker whose share-group state is stored in a coordinator of this process."""

    def __init__(self, broker: Broker, client: KafkaClient, coordinator: ThreadedCoordinator) -> None:
        self.broker = broker
        self.client = client
        self.coordinator = coordinator
        self.tool = ShareGroupTool(broker.jars, broker.bootstrap)

    def delete_topic(self, topic: str) -> None:
        delete_topic(self.broker, self.client, topic)

    def join(self, group: str, topic: str) -> ShareConsumer:
        """Join a group and accept the records of a topic; return the consumer."""
        self.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
        self.client.produce(topic, 1)
        consumer = self.client.share_consumer(group, topic)
        records = wait_until(lambda: consumer.poll(200), seconds=120, what=f"{group} gets records of {topic}")
        consumer.acknowledge(["ACCEPT"] * len(records))
        return consumer

    def consume_and_leave(self, group: str, topic: str) -> None:
        """Join a group, accept the records of a topic, and leave."""
        self.join(group, topic).close()


def delete_topic(broker: Broker, client: KafkaClient, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    # The tool needs a class that the newest release does not have.
    done = fetch_jars(RELEASES[-2]).run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", broker.bootstrap, "--delete", "--topic", topic),
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: topic not in client.topics(), seconds=120, what="the topic is gone")


@contextmanager
def expiring_rig(jars: KafkaJars, directory: Path) -> Iterator[ExpiringRig]:
    """Start a coordinator, HAProxy and a broker that uses the coordinator."""
    with ExitStack() as stack:
        port, haproxy_port = free_ports(2)
        broker = Broker(jars, directory, interbroker_port=haproxy_port, cluster=new_cluster(), node_id=1)
        haproxy = HAProxy(
            directory, port=haproxy_port, broker_port=broker.internal_port, coordinator_port=port
        )
        coordinator = ThreadedCoordinator(port, broker.bootstrap, directory / "state")
        stack.callback(coordinator.close)
        coordinator.start()
        stack.callback(coordinator.stop)
        stack.callback(haproxy.kill)
        haproxy.start()
        stack.callback(broker.kill)
        broker.start()
        client = KafkaClient(jars, broker.bootstrap, directory)
        stack.callback(client.close)
        yield ExpiringRig(broker, client, coordinator)


def run_before_call(owner: Any, name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Run `action` before each call of a coroutine method; return a function that restores the method."""
    method = getattr(owner, name)

    async def run_action_and_call(*args: Any) -> Any:
        await asyncio.to_thread(action)
        return await method(*args)

    setattr(owner, name, run_action_and_call)
    return lambda: delattr(owner, name)
