"""Write migrated state to a coordinator through its RPCs, because brokers reject writes to their state topic.

For each share-partition, the target first sends Delete and Initialize. The target then sends Read with the
highest leader epoch of the source, because only Read raises that epoch. Finally, the target sends Write with
the state batches and the delivery complete count.

After a second initialisation, the leader epoch of a state can be lower than its highest leader epoch. The
RPCs cannot create a state whose leader epoch is below its highest leader epoch. Before Kafka 4.2,
coordinators store no delivery complete count. A lookup changes nothing, because Read is only sent with the
leader epoch that the Summary returned.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from coordinator.client import (
    ClientSecurity,
    Connection,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
)
from coordinator.client.addresses import parse_addresses
from coordinator.operate.migration import requests
from coordinator.operate.migration.fold import ComparableState, MigrationRefused
from coordinator.operate.migration.plan import (
    LookupResult,
    MigrationAction,
    MigrationDifference,
    MigrationPlan,
    MigrationTarget,
)
from coordinator.operate.migration.readers import Progress, TopicReader
from coordinator.operate.migration.requests import NO_COMPLETE_COUNT, Failures
from coordinator.shard import ShareState
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey

# Maximum number of share-partitions and bytes in one request, and of concurrent requests.
CHUNK_KEYS_MAX = 200
CHUNK_BYTES_MAX = 1 << 20
CONCURRENT_CHUNKS_MAX = 8

# Delays of about 0.5, 1, 2, 4 and 8 s. Retries are needed because a broker creates its state topic at the
# first request.
RETRY = RetryPolicy(attempts_max=6, first_s=0.25)

# Delivery states that every release since 4.1 understands: available, acknowledged, archived.
_OLD_DELIVERY_STATES = frozenset((0, 2, 4))
_METADATA_API_KEY = 3


class _ServerFeatures(NamedTuple):
    """The features of a share coordinator. `is_broker` is False for coordinators of this project."""

    stores_complete_count: bool
    is_broker: bool


class CoordinatorTarget(MigrationTarget):
    """A share coordinator that is found with FindCoordinator at its bootstrap addresses.

    If the addresses are those of brokers, `topic` reads the topic of Kafka's own coordinator. This topic, if
    it exists, may have share-partitions that the source does not have.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: TopicReader,
        *,
        retry: RetryPolicy = RETRY,
        security: ClientSecurity | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._topic = topic
        self._retry = retry
        self._server = _ServerFeatures(stores_complete_count=True, is_broker=False)

    async def query_features(self) -> None:
        """Query the API versions. Raises MigrationRefused if no address answers."""
        why: object = "no address is given"
        for host, port in parse_addresses(self._bootstrap):
            try:
                connection = await Connection.open(
                    host, port, client_id="share-coordinator", security=self._security
                )
                versions = connection.versions
                await connection.close()
            except ShareCoordinatorError as error:
                why = error
                continue
            if write_api.API_KEY not in versions:
                raise MigrationRefused(f"{host}:{port} is no share coordinator: it does not serve its RPCs")
            self._server = _ServerFeatures(
                stores_complete_count=versions[write_api.API_KEY][1] >= 1,
                is_broker=_METADATA_API_KEY in versions,
            )
            return
        raise MigrationRefused(f"the target cannot be reached: {why}")

    def storable_state(self, state: ShareState) -> ComparableState:
        held = ComparableState.from_state(state)._replace(leader_epoch=state.leader_epoch_max)
        if self._server.stores_complete_count:
            return held
        return held._replace(delivery_complete_count=NO_COMPLETE_COUNT)

    def describe_losses(self, states: Mapping[SharePartitionKey, ShareState]) -> list[str]:
        """Return one sentence for each part of the states that the target cannot store."""
        notes = []
        counted = sum(state.delivery_complete_count > 0 for state in states.values())
        if counted and not self._server.stores_complete_count:
            notes.append(
                f"the target does not store delivery complete counts (Kafka before 4.2), so the counts of "
                f"{counted} share-partitions are not copied; they only affect the displayed lag"
            )
        raised = sum(state.leader_epoch != state.leader_epoch_max for state in states.values())
        if raised:
            notes.append(
                f"{raised} share-partitions were initialised again after a leader had read them: the target "
                f"shows their highest leader epoch, the source shows 0"
            )
        newer = sum(
            not all(batch.delivery_state in _OLD_DELIVERY_STATES for batch in unpack(state.batches))
            for state in states.values()
        )
        if newer:
            notes.append(
                f"{newer} share-partitions have records in a delivery state that brokers before Kafka 4.3 "
                f"do not support, such as ARCHIVING"
            )
        return notes

    # Lookup.

    async def lookup(
        self, wanted: Mapping[SharePartitionKey, ComparableState], progress: Progress
    ) -> LookupResult:
        """Read the state of each wanted share-partition, and the other states in a broker's state topic."""
        others: dict[SharePartitionKey, ComparableState] = {}
        if self._server.is_broker:
            folded = await self._topic.fold(progress)
            if folded is None:
                # Looking up a coordinator would make the broker create the topic.
                return LookupResult({})
            others = {key: held for key, held in folded.comparable_states().items() if key not in wanted}
        held: dict[SharePartitionKey, ComparableState] = {}
        unknown: set[SharePartitionKey] = set()
        done = 0

        async def read_held_states(client: ShareCoordinatorClient, keys: list[SharePartitionKey]) -> None:
            nonlocal done
            await requests.read_held_states(
                client,
                {key: wanted[key] for key in keys},
                held,
                unknown,
                stores_complete_count=self._server.stores_complete_count,
            )
            done += len(keys)
            progress("reading the target", done, len(wanted))

        await self._for_each_chunk(wanted, wanted, read_held_states)
        return LookupResult({**held, **others}, frozenset(unknown))

    # Write.

    async def apply_plan(
        self,
        states: Mapping[SharePartitionKey, ShareState],
        plan_for: Callable[[LookupResult], MigrationPlan],
        progress: Progress,
    ) -> list[MigrationDifference]:
        """Apply the plan. If a share-partition fails, the other share-partitions are still written."""
        wanted = {key: self.storable_state(state) for key, state in states.items()}
        plan = plan_for(await self.lookup(wanted, progress))
        failures: Failures = {}
        deleted = plan.keys_with_action(MigrationAction.DELETE)
        written = plan.keys_with_action(MigrationAction.COPY, MigrationAction.REPLACE)
        done = 0

        async def delete(client: ShareCoordinatorClient, keys: list[SharePartitionKey]) -> None:
            await requests.delete_states(client, keys, failures)

        async def write(client: ShareCoordinatorClient, keys: list[SharePartitionKey]) -> None:
            nonlocal done
            await requests.replace_states(
                client,
                {key: wanted[key] for key in keys},
                failures,
                stores_complete_count=self._server.stores_complete_count,
            )
            done += len(keys)
            progress("writing", done, len(written))

        await self._for_each_chunk(deleted, wanted, delete)
        await self._for_each_chunk(written, wanted, write)
        return [MigrationDifference(key, why) for key, why in failures.items()]

    async def _for_each_chunk(
        self,
        keys: Iterable[SharePartitionKey],
        wanted: Mapping[SharePartitionKey, ComparableState],
        work: Callable[[ShareCoordinatorClient, list[SharePartitionKey]], Awaitable[None]],
    ) -> None:
        """Call `work` with chunks of keys of one group, several chunks concurrently."""
        at_a_time = asyncio.Semaphore(CONCURRENT_CHUNKS_MAX)

        async def run_chunk(chunk: list[SharePartitionKey]) -> None:
            async with at_a_time:
                await work(client, chunk)

        async with ShareCoordinatorClient(
            self._bootstrap,
            client_id="share-coordinator-migrate",
            retry=self._retry,
            security=self._security,
        ) as client:
            await asyncio.gather(*map(run_chunk, _split_into_chunks(keys, wanted)))


def _split_into_chunks(
    keys: Iterable[SharePartitionKey], wanted: Mapping[SharePartitionKey, ComparableState]
) -> Iterator[list[SharePartitionKey]]:
    by_group: defaultdict[str, list[SharePartitionKey]] = defaultdict(list)
    for key in keys:
        by_group[key.group_id].append(key)
    for of_group in by_group.values():
        chunk: list[SharePartitionKey] = []
        chunk_bytes = 0
        for key in of_group:
            key_bytes = len(wanted[key].batches or b"") if key in wanted else 0
            if chunk and (len(chunk) == CHUNK_KEYS_MAX or chunk_bytes + key_bytes > CHUNK_BYTES_MAX):
                yield chunk
                chunk, chunk_bytes = [], 0
            chunk.append(key)
            chunk_bytes += key_bytes
        yield chunk
