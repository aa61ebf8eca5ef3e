"""Pruning of the log in a topic: the records that must stay, and errors of DeleteRecords."""

import asyncio

import pytest

from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from tests.unit.log.environments import STATE_PARTITIONS, append_durably, append_error, prune_log
from tests.unit.log.kafka_logs import ONE, KafkaLogs, read_values, run_simulated, wait_for_leases

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_pruning_keeps_a_record_with_the_owner_epoch(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    for _ in range(5):
        await append_durably(log, 0, ONE)
    await prune_log(log, 0, 6)
    await log.close()
    # The renewal record contains the owner epoch and the lease.
    assert kafka_logs.partition(0).start == 6
    late = kafka_logs.log()
    await late.open()
    assert await late.acquire_ownership(0) == 2


async def test_pruned_log_does_not_begin_with_a_record_of_a_deposed_owner(kafka_logs: KafkaLogs) -> None:
    kafka_logs.kafka.transactional = False
    log = await kafka_logs.open_owned_log(0)
    await append_durably(log, 0, [(b"k", None)])
    second = await kafka_logs.open_owned_log(0)
    await append_durably(second, 0, [(b"k", None)])
    # The first owner has not detected its replacement, and the broker does not fence it.
    kafka_logs.append_without_producer_id(0, [(b"k", b"of a zombie")], owner_epoch=1)
    third = kafka_logs.log()
    await third.open()
    # The zombie's record also misleads the next owner about the owner epoch.
    await third.acquire_ownership(0)
    with pytest.raises(LogUnavailable, match="was not accepted"):
        await read_values(third)
    await third.acquire_ownership(0)
    assert await read_values(third) == [None, None]
    # No state is left, so no record below the zombie's record is needed.
    await wait_for_leases(third, 0)
    await prune_log(third, 0, 4)
    await third.close()
    assert kafka_logs.partition(0).start == 6
    assert await read_values(await kafka_logs.open_owned_log(0)) == []


async def test_claims_do_not_wait_for_a_deletion_in_progress(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    for _ in range(3):
        await append_durably(log, 0, ONE)
    # The leader answers a deletion when all live replicas have made it, possibly at its timeout.
    kafka_logs.kafka.deletions_delayed = asyncio.get_running_loop().create_future()
    kafka_logs.kafka.requests.clear()
    await prune_log(log, 0, 3)
    await asyncio.sleep(0.1)
    ((_, busy),) = [each for each in kafka_logs.kafka.requests if each[0] == "delete"]
    async with asyncio.timeout(0.5):
        for partition in range(1, STATE_PARTITIONS):
            await log.acquire_ownership(partition)
    assert ("producer id", busy) in kafka_logs.kafka.requests


async def test_pruning_waits_until_a_renewal_detects_lost_records(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    for _ in range(5):
        await append_durably(log, 0, ONE)
    # The newest record supersedes the older ones, and is then lost.
    kafka_logs.partition(0).truncate(5)
    log.prune(0, 5)
    assert await read_values(log) == [b"value"] * 4
    # DeleteRecords waits for a renewal, and the renewal detects the loss.
    assert log.renewal_due(0, read=False)
    assert isinstance(await append_error(log, 0, []), LogOutcomeUnknown)
    await log.close()
    assert kafka_logs.partition(0).start == 0


async def test_failed_pruning_is_not_retried_after_the_log_was_truncated(kafka_logs: KafkaLogs) -> None:
    log, cluster = kafka_logs.make_log_and_cluster()
    await log.open()
    await log.acquire_ownership(0)
    await read_values(log)
    for _ in range(5):
        await append_durably(log, 0, ONE)

    async def raise_no_response(node: int, offsets: dict[int, int]) -> dict[int, int]:
        raise NoResponse("the broker hangs", sent=True)

    delete, cluster.delete_records = cluster.delete_records, raise_no_response  # type: ignore[method-assign]
    await prune_log(log, 0, 5)
    await asyncio.sleep(0.1)
    cluster.delete_records = delete  # type: ignore[method-assign]
    # Load the rest of the log again, and then prune another shard.
    kafka_logs.partition(0).truncate(4)
    await log.acquire_ownership(0)
    assert await read_values(log) == [b"value"] * 3
    await log.acquire_ownership(1)
    async for _ in log.read((1,)):
        pass
    for _ in range(3):
        await append_durably(log, 1, ONE)
    await prune_log(log, 1, 2)
    await log.close()
    assert (kafka_logs.partition(0).start, kafka_logs.partition(1).start) == (0, 2)


async def test_broker_without_delete_records_disables_pruning(
    kafka_logs: KafkaLogs, caplog: pytest.LogCaptureFixture
) -> None:
    kafka_logs.kafka.deletes_records = False
    log = await kafka_logs.open_owned_log(0)
    for turn in range(5):
        await append_durably(log, 0, ONE)
        await prune_log(log, 0, turn + 1)
        await append_durably(log, 0, ONE)
    assert kafka_logs.pruning_failed == ["unsupported"]
    assert caplog.text.count("pruning is off") == 1
    assert "delete" not in dict(kafka_logs.kafka.requests)


@pytest.mark.parametrize(
    ("error", "counted"), [(LogUnavailable("no token"), ["unreachable"]), (RuntimeError("a defect"), [])]
)
async def test_pruning_error_is_counted_and_the_log_closes(
    kafka_logs: KafkaLogs, error: Exception, counted: list[str]
) -> None:
    log = await kafka_logs.open_owned_log(0)
    for _ in range(5):
        await append_durably(log, 0, ONE)

    async def raise_error(node: int, offsets: object) -> dict[int, int]:
        raise error

    log._cluster.delete_records = raise_error  # type: ignore[method-assign, assignment]
    await prune_log(log, 0, 6)
    await log.close()
    assert kafka_logs.pruning_failed == counted
