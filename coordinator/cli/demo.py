"""Act as a share-partition leader of a running coordinator, and print each step with the state after it.

The requests are fixed. The states are printed as the coordinator returns them.
"""

import asyncio
from contextlib import suppress
from uuid import uuid4  # noqa: TID251

from coordinator.cli.output import format_table, print_line
from coordinator.client import (
    ClientSecurity,
    ConnectionLimits,
    CoordinatorUnavailable,
    Disconnected,
    FencedLeaderEpoch,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
    SharePartitionKey,
    StateBatch,
    Uninitialised,
    UnsupportedVersion,
)
from coordinator.errors import ConfigError, CoordinatorError
from protocol.state_batches import delivery_state_name
from protocol.state_records import topic_id_text

_AVAILABLE, _ACKNOWLEDGED, _ARCHIVED = 0, 2, 4
_STATE_EPOCH = 1

# A user waits for the result, so failed requests are given up after seconds instead of minutes.
_RETRY = RetryPolicy(attempts_max=3, first_s=0.25)
_LIMITS = ConnectionLimits(connect_s=5.0, request_s=10.0)
# After an error, the maximum time for the deletion of the state.
_CLEAN_UP_S = 2.0


def run_demo(bootstrap: str, security: ClientSecurity | None = None, *, retry: RetryPolicy = _RETRY) -> None:
    """Run the demo on a share group of its own, and delete the state of this group at the end.

    Raises ConfigError for an invalid address, and CoordinatorError if a request fails.
    """
    asyncio.run(_run_demo(bootstrap, security, retry))


async def _run_demo(bootstrap: str, security: ClientSecurity | None, retry: RetryPolicy) -> None:
    unique = uuid4()
    key = SharePartitionKey(f"demo-{unique.hex[:8]}", unique.bytes, 0)
    try:
        client = ShareCoordinatorClient(
            bootstrap, client_id="share-coordinator-demo", retry=retry, limits=_LIMITS, security=security
        )
    except ValueError:
        raise ConfigError("bootstrap", bootstrap, "HOST:PORT of a running coordinator") from None
    async with client:
        try:
            await client.initialize(key, _STATE_EPOCH, 0)
        except ShareCoordinatorError as error:
            raise CoordinatorError(_explain_first_error(error, bootstrap)) from None
        try:
            await _run_steps(client, key)
        except BaseException as error:
            # Also after Ctrl-C, and if the reader of the output is gone.
            with suppress(Exception):
                async with asyncio.timeout(_CLEAN_UP_S):
                    await client.delete(key)
            if not isinstance(error, ShareCoordinatorError):
                raise
            raise CoordinatorError(
                f"the coordinator at {bootstrap} failed during the demo: {_describe_error(error)}"
            ) from None


async def _run_steps(client: ShareCoordinatorClient, key: SharePartitionKey) -> None:
    broker_a, broker_b = _Leader(client, key, leader_epoch=1), _Leader(client, key, leader_epoch=2)
    print_line("The broker that leads a partition tracks the delivery of each record to each share group.")
    print_line("The share coordinator stores this state. This command acts as the leader of a partition:")
    print_line(f"group {key.group_id}, topic id {topic_id_text(key.topic_id)}, partition {key.partition}.")

    _print_step("1. A share group subscribes to a topic: Initialize")
    _print_step("2. Broker A becomes the leader of the partition: Read with leader epoch 1")
    await broker_a.show_state()
    print_line("   Broker A delivers records 0 to 9. First deliveries are not stored.")

    _print_step("3. Consumers accept records 2 to 5: Write")
    await broker_a.write(StateBatch(2, 5, _ACKNOWLEDGED, 1), complete=4)
    await broker_a.show_state()

    _print_step("4. Two consumers, one after the other, release record 6: Write, twice")
    await broker_a.write(StateBatch(6, 6, _AVAILABLE, 1), complete=4)
    await broker_a.write(StateBatch(6, 6, _AVAILABLE, 2), complete=4)
    await broker_a.show_state()

    _print_step("5. A consumer rejects record 7, which is not delivered again: Write")
    await broker_a.write(StateBatch(7, 7, _ARCHIVED, 1), complete=5)
    await broker_a.show_state()

    _print_step("6. Consumers accept records 0 and 1, and the start offset moves to 6: Write")
    await broker_a.write(StateBatch(0, 1, _ACKNOWLEDGED, 1), complete=1, start_offset=6)
    await broker_a.show_state()

    _print_step("7. Broker A stops responding, and broker B becomes the leader: Read with leader epoch 2")
    await broker_b.show_state()

    _print_step("8. Broker A was only paused, and rejects record 8: Write with leader epoch 1")
    try:
        await broker_a.write(StateBatch(8, 8, _ARCHIVED, 1), complete=2, start_offset=6)
    except FencedLeaderEpoch as error:
        print_line(f"   refused with {_describe_error(error)}")
    else:
        raise CoordinatorError("the coordinator accepted a write of a fenced leader")
    await broker_b.show_state()

    _print_step("9. Consumers of broker B accept records 6, 8 and 9: Write")
    accepted = StateBatch(6, 6, _ACKNOWLEDGED, 3), StateBatch(8, 9, _ACKNOWLEDGED, 1)
    await broker_b.write(*accepted, complete=0, start_offset=10)
    await broker_b.show_state()

    _print_step("10. A tool requests the start offset, from which it computes the lag: ReadSummary")
    summary = await client.summary(key)
    print_line(f"   start offset {summary.start_offset}, leader epoch {summary.leader_epoch}")

    _print_step("11. The group is deleted: Delete")
    await client.delete(key)
    try:
        await client.read(key, 2)
    except Uninitialised as error:
        print_line(f"   a Read is refused with {_describe_error(error)}")
    else:
        raise CoordinatorError("the coordinator returned a state that was deleted")


class _Leader:
    """A broker that leads the partition, with its leader epoch."""

    def __init__(self, client: ShareCoordinatorClient, key: SharePartitionKey, leader_epoch: int) -> None:
        self._client, self._key, self._leader_epoch = client, key, leader_epoch

    async def write(self, *batches: StateBatch, complete: int, start_offset: int = 0) -> None:
        """Write state batches, the start offset, and the number of completed records above it."""
        await self._client.write(
            self._key,
            state_epoch=_STATE_EPOCH,
            leader_epoch=self._leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete,
            batches=list(batches),
        )

    async def show_state(self) -> None:
        state = await self._client.read(self._key, self._leader_epoch)
        print_line(f"   start offset {state.start_offset}, state epoch {state.state_epoch}")
        rows = [
            (str(first) if first == last else f"{first}-{last}", delivery_state_name(number), delivery_count)
            for first, last, number, delivery_count in state.batches
        ]
        for line in format_table(("offsets", "delivery state", "delivery count"), rows) if rows else ():
            print_line(f"   {line}")


def _print_step(title: str) -> None:
    print_line("")
    print_line(title)


def _describe_error(error: ShareCoordinatorError) -> str:
    return error.message if isinstance(error, Disconnected) else f"{error.error_code.name}: {error.message}"


def _explain_first_error(error: ShareCoordinatorError, bootstrap: str) -> str:
    reason = _describe_error(error)
    if isinstance(error, UnsupportedVersion):
        return f"{bootstrap} is not a share coordinator: {reason}"
    if isinstance(error, CoordinatorUnavailable):
        return (
            f"no share coordinator answers at {bootstrap}: {reason} "
            "Start one with share-coordinator serve, or give another address with --bootstrap HOST:PORT."
        )
    return f"the coordinator at {bootstrap} refused the first request: {reason}"
