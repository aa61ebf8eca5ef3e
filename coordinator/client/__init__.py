"""An asyncio client of a share coordinator: this project's, or the one inside a Kafka cluster.

The client is intended for other broker implementations, proxies, tests and tools. The leader of a
share-partition reads the state once, and then writes the delivery progress of records::

    import asyncio
    import os

    from coordinator.client import ShareCoordinatorClient, SharePartitionKey, StateBatch, Uninitialised


    async def main() -> None:
        key = SharePartitionKey("my-share-group", topic_id=os.urandom(16), partition=0)
        async with ShareCoordinatorClient("127.0.0.1:9095") as coordinator:
            await coordinator.initialize(key, state_epoch=1, start_offset=0)
            state = await coordinator.read(key, leader_epoch=1)

            # Records 0 to 2 were acknowledged (state 2) at their first delivery.
            await coordinator.write(
                key,
                state_epoch=state.state_epoch,
                leader_epoch=1,
                start_offset=0,
                delivery_complete_count=3,
                batches=[StateBatch(0, 2, delivery_state=2, delivery_count=1)],
            )
            print(await coordinator.summary(key))

            await coordinator.delete(key)
            try:
                await coordinator.read(key, leader_epoch=1)
            except Uninitialised as error:
                print(error)


    asyncio.run(main())

After a retriable error, the client retries like Kafka's own persister (`RetryPolicy`). After the last
attempt, it raises a `ShareCoordinatorError`; `coordinator.client.errors` documents the subclasses.
`ClientSecurity` configures TLS and SASL with Kafka's terms. `Connection` is the lower layer: one connection,
no lookup, no retries, the exact response.
"""

from coordinator.client.client import ReadState, ShareCoordinatorClient, StateSummary
from coordinator.client.connection import Connection, ConnectionLimits
from coordinator.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    CoordinatorUnavailable,
    Disconnected,
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRequest,
    ShareCoordinatorError,
    TimedOut,
    Uninitialised,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from coordinator.client.retry import ONCE, RetryPolicy
from coordinator.client.security import ClientSecurity
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey

__all__ = [
    "ONCE",
    "AuthenticationFailed",
    "ClientClosed",
    "ClientSecurity",
    "Connection",
    "ConnectionLimits",
    "CoordinatorUnavailable",
    "Disconnected",
    "FencedLeaderEpoch",
    "FencedStateEpoch",
    "InvalidRequest",
    "ReadState",
    "RetryPolicy",
    "ShareCoordinatorClient",
    "ShareCoordinatorError",
    "SharePartitionKey",
    "StateBatch",
    "StateSummary",
    "TimedOut",
    "Uninitialised",
    "UnknownTopicOrPartition",
    "UnsupportedVersion",
]
