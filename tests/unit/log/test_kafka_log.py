"""The log in a topic with faulty brokers, faulty networks and concurrent owners, on a Kafka in memory."""

import asyncio
from typing import Any

import pytest

from coordinator.errors import LogFenced, LogOutcomeUnknown, LogUnavailable
from coordinator.log.claims import encode_claim, owner_epoch_headers
from protocol.errors import ErrorCode
from protocol.record_batch import encode_batch
from tests.unit.log.environments import STATE_PARTITIONS, append, append_durably, append_error, read_all
from tests.unit.log.kafka_logs import ONE, KafkaLogs, read_values, run_simulated, wait_for_leases

pytestmark = pytest.mark.run_with(function=run_simulated)


async def test_deposed_owner_can_neither_append_nor_renew(kafka_logs: KafkaLogs) -> None:
    first = await kafka_logs.open_owned_log(0)
    await append_durably(first, 0, [(b"k", b"first")])
    second = await kafka_logs.open_owned_log(0)
    assert isinstance(await append_error(first, 0, []), LogFenced)
    assert isinstance(await append_error(first, 0, [(b"k", b"zombie")]), LogFenced)
    await append_durably(second, 0, [(b"k", b"second")])
    assert await read_values(second) == [b"first", b"second"]


async def test_record_of_a_deposed_owner_is_ignored_if_brokers_do_not_fence(kafka_logs: KafkaLogs) -> None:
    kafka_logs.kafka.transactional = False
    first = await kafka_logs.open_owned_log(0)
    await append_durably(first, 0, [(b"k", b"first")])
    second = await kafka_logs.open_owned_log(0)
    assert isinstance(await append_error(first, 0, [(b"k", b"zombie")]), LogFenced)
    assert kafka_logs.partition(0).end == 4
    assert await read_values(second) == [b"first"]
    # The zombie's record takes the offset that the new owner expects next. The new owner must claim and
    # read again.
    assert isinstance(await append_error(second, 0, [(b"k", b"second")]), LogOutcomeUnknown)
    assert await second.acquire_ownership(0) == 3
    assert await read_values(second) == [b"first", b"second"]
    await append_durably(second, 0, [(b"k", b"third")])
    assert await read_values(second) == [b"first", b"second", b"third"]


async def test_owner_that_detected_its_replacement_sends_nothing(kafka_logs: KafkaLogs) -> None:
    kafka_logs.kafka.transactional = False
    first = await kafka_logs.open_owned_log(0)
    second = kafka_logs.log()
    await second.open()
    await second.acquire_ownership(0)
    assert first.lease_left_s(0) > 0
    await append(first, 0, [])
    assert first.lease_left_s(0) == 0
    end = kafka_logs.partition(0).end
    for records in ([], ONE):
        assert isinstance(await append_error(first, 0, records), LogFenced)
    assert kafka_logs.partition(0).end == end


async def test_late_claim_of_an_earlier_owner_deposes_no_owner(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    assert await log.acquire_ownership(0) == 2
    assert await read_values(log) == []
    kafka_logs.append_without_producer_id(0, [encode_claim(0, "late")], owner_epoch=1)
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown), (
        "the owner must claim again, but is not fenced"
    )


async def test_claim_is_not_sent_if_the_shard_was_reassigned(kafka_logs: KafkaLogs) -> None:
    owner = await kafka_logs.open_owned_log(0)
    late = kafka_logs.log()
    await late.open()
    with pytest.raises(LogUnavailable, match="assigned to another process"):
        await late.acquire_ownership(0, 0.0, lambda: False)
    await append_durably(owner, 0, ONE)


async def test_append_before_the_claim_was_read_is_refused(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log()
    assert isinstance(await append_error(log, 0, ONE), LogFenced)
    await log.acquire_ownership(0)
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown)


async def test_last_of_concurrent_claims_determines_the_owner(kafka_logs: KafkaLogs) -> None:
    logs = [kafka_logs.log() for _ in range(5)]
    await asyncio.gather(*(log.open() for log in logs))
    for _ in range(3):
        await asyncio.gather(*(log.acquire_ownership(0) for log in logs), return_exceptions=True)
        await asyncio.gather(*(read_values(log) for log in logs), return_exceptions=True)
        await asyncio.gather(*(wait_for_leases(log, 0) for log in logs))
        errors = [error for _, error in [await append(log, 0, ONE) for log in logs]]
        assert errors.count(None) == 1


async def test_claim_with_an_owner_epoch_that_is_too_low_is_repeated(kafka_logs: KafkaLogs) -> None:
    kafka_logs.kafka.transactional = False
    log = await kafka_logs.open_owned_log(0)
    for _ in range(4):
        await log.acquire_ownership(0)
    # The last record has owner epoch 2. The next owner claims epoch 3, but epoch 5 exists.
    kafka_logs.append_without_producer_id(0, [(b"k", b"zombie")], owner_epoch=2)
    late = kafka_logs.log()
    await late.open()
    assert await late.acquire_ownership(0) == 3
    with pytest.raises(LogUnavailable, match="owner epoch 5"):
        await read_all(late)
    assert await late.acquire_ownership(0) == 6
    assert await read_values(late) == []
    assert isinstance(await append_error(late, 0, ONE), LogUnavailable), (
        "the previous owner may still answer reads"
    )
    await wait_for_leases(late, 0)
    await append_durably(late, 0, ONE)


async def test_owner_deposed_while_loading_cannot_append(kafka_logs: KafkaLogs) -> None:
    first = kafka_logs.log()
    await first.open()
    await first.acquire_ownership(0)
    await kafka_logs.open_owned_log(0)
    assert await read_values(first) == []
    _, error = await append(first, 0, ONE)
    assert isinstance(error, LogFenced)
    assert "owner epoch 2" in str(error)


@pytest.mark.parametrize("lost", ["requests", "responses"])
async def test_batch_is_resent_until_it_is_stored_once(kafka_logs: KafkaLogs, lost: str) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.lose_produce(**{lost: 3})
    assert await append_durably(log, 0, ONE) == 1
    assert await append_durably(log, 0, ONE) == 2
    assert await read_values(log) == [b"value", b"value"]


async def test_stored_batch_without_a_response_has_an_unknown_outcome(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.lose_produce(responses=1000)
    # Before Kafka 3.7, a batch is visible although a single replica has it, so a read proves nothing.
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown)
    assert len(kafka_logs.partition(0).batches) == 2
    kafka_logs.kafka.lose_produce()
    # The response to the next claim proves that the replicas have all earlier batches, too.
    await log.acquire_ownership(0)
    assert await read_values(log) == [b"value"]
    assert await append_durably(log, 0, ONE) == 3


async def test_batch_that_arrives_after_a_new_claim_is_ignored(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.lose_produce(requests=1000)
    assert isinstance(await append_error(log, 0, [(b"k", b"late")]), LogOutcomeUnknown)
    kafka_logs.kafka.lose_produce()
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown), (
        "no append may follow an append of unknown outcome"
    )
    owner_epoch = await log.acquire_ownership(0)
    kafka_logs.append_without_producer_id(0, [(b"k", b"late")], owner_epoch - 1)
    assert await read_values(log) == []
    await append_durably(log, 0, ONE)
    assert await read_values(log) == [b"value"]


@pytest.mark.parametrize("claims", [True, False])
async def test_foreign_record_at_the_expected_offset_is_not_taken_for_the_batch(
    kafka_logs: KafkaLogs, claims: bool
) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.lose_produce(requests=1000)
    kafka_logs.append_without_producer_id(
        0, [encode_claim(0, "rival") if claims else (b"k", b"foreign")], owner_epoch=2
    )
    _, error = await append(log, 0, ONE)
    assert isinstance(error, LogFenced if claims else LogOutcomeUnknown)


@pytest.mark.parametrize("refusal", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP])
async def test_batch_refused_by_the_broker_was_not_written(kafka_logs: KafkaLogs, refusal: ErrorCode) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.produce_errors = [refusal]
    assert isinstance(await append_error(log, 0, ONE), LogUnavailable)
    assert await append_durably(log, 0, ONE) == 1


async def test_append_was_not_written_if_brokers_return_not_enough_replicas(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
    assert isinstance(await append_error(log, 0, ONE), LogUnavailable)
    kafka_logs.kafka.produce_errors = []
    assert await append_durably(log, 0, ONE) == 1


async def test_batch_that_a_leader_may_have_stored_has_an_unknown_outcome(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    kafka_logs.kafka.produce_errors = [ErrorCode.REQUEST_TIMED_OUT] + [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
    assert isinstance(await append_error(log, 0, ONE), LogOutcomeUnknown)


async def test_appends_and_reads_follow_a_new_leader(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    for node in (2, 3, 1):
        kafka_logs.kafka.set_leader(0, node)
        await append_durably(log, 0, ONE)
        assert await append_error(log, 0, []) is None
    assert len(await read_values(log)) == 3


async def test_append_that_fails_at_its_deadline_refreshes_the_metadata(kafka_logs: KafkaLogs) -> None:
    log, cluster = kafka_logs.make_log_and_cluster(append_timeout_s=0)
    await log.open()
    await log.acquire_ownership(0)
    await read_all(log)
    kafka_logs.kafka.set_leader(0, 2)
    # A replaced leader returns this error, because its replicas no longer respond.
    kafka_logs.kafka.produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert isinstance(await append_error(log, 0, ONE), LogUnavailable)
    await asyncio.sleep(1)
    assert cluster.leader(0) == 2
    await append_durably(log, 0, ONE)


async def test_loss_of_acknowledged_records_is_detected(
    kafka_logs: KafkaLogs, caplog: pytest.LogCaptureFixture
) -> None:
    log = await kafka_logs.open_owned_log(0)
    for _ in range(3):
        await append_durably(log, 0, ONE)
    kafka_logs.partition(0).truncate(2)
    assert isinstance(await append_error(log, 0, []), LogOutcomeUnknown)
    assert "went back from 4 to 2" in caplog.text


async def test_lost_record_is_detected_if_another_process_has_written_as_many(kafka_logs: KafkaLogs) -> None:
    first = await kafka_logs.open_owned_log(0)
    await append_durably(first, 0, [(b"k", b"kept")])
    second = await kafka_logs.open_owned_log(0)
    lost_from = kafka_logs.partition(0).end
    await append_durably(second, 0, [(b"k", b"lost")])
    kafka_logs.partition(0).truncate(lost_from)
    kafka_logs.kafka.set_leader(0, 3)
    # The first owner does not know of the claim of the second.
    kafka_logs.partition(0).append(encode_batch(0, 1, [(b"k", b"foreign")], owner_epoch_headers(1)))
    _, error = await append(second, 0, [(b"k", b"invalid")])
    assert isinstance(error, LogOutcomeUnknown)
    assert "was not found" in str(error)


async def test_append_to_a_new_leader_succeeds_if_the_previous_record_is_kept(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0)
    for leader in (2, 3, 1):
        await append_durably(log, 0, ONE)
        kafka_logs.kafka.set_leader(0, leader)
    await append_durably(log, 0, ONE)


async def test_appends_to_partitions_of_one_broker_share_a_request(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(*range(STATE_PARTITIONS))
    for partition in range(STATE_PARTITIONS):
        kafka_logs.kafka.set_leader(partition, 1)
    # The first append finds the leaders; the first append to each leader also sends read requests.
    for _ in range(2):
        await asyncio.gather(*(append(log, partition, ONE) for partition in range(STATE_PARTITIONS)))
    kafka_logs.kafka.requests.clear()
    results = await asyncio.gather(*(append(log, partition, ONE) for partition in range(STATE_PARTITIONS)))
    assert [error for _, error in results] == [None] * STATE_PARTITIONS
    assert kafka_logs.kafka.requests == [("produce", 1)]
    kafka_logs.kafka.requests.clear()
    await asyncio.gather(*(append(log, partition, []) for partition in range(STATE_PARTITIONS)))
    assert kafka_logs.kafka.requests == [("produce", 1)]


async def test_owner_cannot_release_if_another_claim_may_have_its_owner_epoch(kafka_logs: KafkaLogs) -> None:
    log, cluster = kafka_logs.make_log_and_cluster()
    await log.open()
    produce = cluster.produce

    async def claim_as_rival_and_produce(*args: Any) -> Any:
        kafka_logs.append_without_producer_id(0, [encode_claim(0, "rival")], owner_epoch=1)
        return await produce(*args)

    cluster.produce = claim_as_rival_and_produce  # type: ignore[method-assign]
    assert await log.acquire_ownership(0) == 1
    cluster.produce = produce  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable, match="was not accepted"):
        await log.release(0)
    assert kafka_logs.partition(0).end == 2
    # Without a rival, the owner can release the state partition.
    assert await log.acquire_ownership(0) == 2
    await read_values(log)
    await wait_for_leases(log, 0)
    await log.release(0)
    assert kafka_logs.partition(0).end == 4


async def test_records_written_by_kafka_are_read_until_the_first_claim(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log()
    kafka_logs.append_without_producer_id(0, [(b"a", b"1"), (b"b", None)], owner_epoch=None)
    assert await read_values(log) == [b"1", None]
    await log.acquire_ownership(0)
    kafka_logs.append_without_producer_id(0, [(b"a", b"foreign")], owner_epoch=None)
    assert await read_values(log) == [b"1", None]


async def test_read_skips_claims_in_a_mixed_batch(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log()
    kafka_logs.append_without_producer_id(
        0, [encode_claim(0, "x"), (b"a", b"1"), (b"b", None)], owner_epoch=4
    )
    found = await read_all(log)
    assert found == {0: [(1, b"a", b"1"), (2, b"b", None)]}


async def test_append_without_a_leader_fails_and_does_not_block_others(kafka_logs: KafkaLogs) -> None:
    log = await kafka_logs.open_owned_log(0, 1)
    kafka_logs.kafka.set_down(1)
    # Wait until the connections are closed.
    await asyncio.sleep(1)
    broken, fine = await asyncio.gather(append(log, 0, ONE), append(log, 1, ONE))
    assert isinstance(broken[1], LogUnavailable)
    assert fine[1] is None
    kafka_logs.kafka.set_down()
    assert await append_durably(log, 0, ONE) == 1
