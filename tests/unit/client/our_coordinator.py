"""The real coordinator in the event loop of a test: listener, service and runtime with a memory log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.config import HostPort
from coordinator.log.memory import MemoryLog
from coordinator.metrics import Metrics
from coordinator.serve.runtime import Runtime
from coordinator.serve.server import Api, CoordinatorDirectory, Listener, ServerLimits
from coordinator.serve.service import Service
from tests.kafka.ports import free_ports
from tests.unit.runtime.runtime_without_jobs import make_runtime

STATE_PARTITIONS = 5
NODE_IDS = 4


def make_memory_runtime(metrics: Metrics) -> Runtime:
    """Return a runtime with a memory log. The runtime is not started."""
    return make_runtime(MemoryLog(STATE_PARTITIONS), STATE_PARTITIONS, metrics=metrics)


@asynccontextmanager
async def serve_real_coordinator() -> AsyncIterator[str]:
    """Serve on a free port; yield the address."""
    (port,) = free_ports(1)
    metrics = Metrics()
    runtime = make_memory_runtime(metrics)
    address = HostPort("127.0.0.1", port)
    directory = CoordinatorDirectory(
        address, node_id_first=1_000_000, node_ids=NODE_IDS, state_partitions=STATE_PARTITIONS
    )
    listener = Listener(Api(Service(runtime), directory, metrics), metrics, ServerLimits())
    await runtime.start()
    await listener.start(address)
    try:
        yield str(address)
    finally:
        await listener.stop()
        await runtime.stop()
