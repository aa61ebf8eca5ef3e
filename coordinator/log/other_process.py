"""Read the log of one state partition in another process than the one that writes it.

A `LogLocation` can be pickled and sent to that process, which calls `batches`.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from coordinator.client import ClientSecurity
from coordinator.config import Config
from coordinator.errors import LogUnavailable
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from coordinator.log.memory import MemoryLog
from coordinator.security.client_security import make_client_security

_CHANNELS = ("history",)
# Maximum size of a log in memory that is copied to the other process.
_MEMORY_BYTES_MAX = 64 << 20


class LogLocation(Protocol):
    """The location of a log, which is all that another process needs to read it."""

    def batches(self, state_partition: int) -> AsyncIterator[bytes]:
        """Yield the record batches of a state partition, from its start to its end. Raises LogError."""


class _MemoryLogLocation(NamedTuple):
    stored_batches: tuple[bytes, ...]

    async def batches(self, state_partition: int) -> AsyncIterator[bytes]:
        for batch in self.stored_batches:
            yield batch


class _TopicLocation(NamedTuple):
    bootstrap_servers: str
    topic: str
    security: ClientSecurity
    timeout_s: float

    async def batches(self, state_partition: int) -> AsyncIterator[bytes]:
        # Imported here, because aiokafka is an optional dependency.
        from coordinator.cluster.kafka.brokers import Brokers
        from coordinator.log.kafka.offsets import OffsetFinder
        from coordinator.log.kafka.replay import PartitionReader

        brokers = Brokers(
            self.bootstrap_servers,
            self.topic,
            security=self.security,
            client_id="share-coordinator-history",
            request_timeout_s=self.timeout_s,
        )
        try:
            await brokers.connect()
            starts = OffsetFinder(brokers, _CHANNELS, brokers.list_start_offsets, timeout_s=self.timeout_s)
            ends = OffsetFinder(brokers, _CHANNELS, brokers.list_end_offsets, timeout_s=self.timeout_s)
            start, end = await starts.find(state_partition), await ends.find(state_partition)
            reader = PartitionReader(brokers, timeout_s=self.timeout_s)
            async for chunk in reader.batches({state_partition: start}, {state_partition: end}):
                for logged in chunk:
                    yield logged.batch
            starts.close()
            ends.close()
        finally:
            await brokers.close()


@contextmanager
def locate_log(config: Config, log: StateLog | None, state_partition: int) -> Iterator[LogLocation]:
    """Return the location of the log, readable within the `with` block. `log` is None for an observer.

    Raises LogUnavailable if the log cannot be read from another process.
    """
    if isinstance(log, Journal):
        with log.files_for_reading() as files:
            yield files
    elif isinstance(log, MemoryLog):
        if log.size_bytes() > _MEMORY_BYTES_MAX:
            raise LogUnavailable("the log in memory is larger than 64 MiB; use log=journal")
        yield _MemoryLogLocation(tuple(log.batches(state_partition)))
    else:
        yield _TopicLocation(
            config.bootstrap_servers,
            config.state_topic,
            make_client_security(config),
            config.request_timeout_ms / 1000,
        )
