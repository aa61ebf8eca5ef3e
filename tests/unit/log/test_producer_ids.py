"""A claim of a shard gets a producer id even if its transaction coordinator does not respond."""

import asyncio
import logging
from typing import cast

import pytest

from coordinator.cluster.kafka.broker_results import NoResponse, ProducerId
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogUnavailable
from coordinator.log.kafka.ownership import ProducerIdAllocator
from protocol.errors import ErrorCode
from tests.kafka_in_memory.kafka import KafkaInMemory, register_for_close
from tests.unit.log.kafka_logs import run_simulated

pytestmark = pytest.mark.run_with(function=run_simulated)

TIMEOUT_S = 30.0


class FakeTransactionCoordinators:
    """A fake of the part of `Brokers` that allocates producer ids.

    `behaviour` applies to requests with a transactional id: refuses, hangs, is missing or answers. `failing`
    is the error of all other requests.
    """

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.failing = int(ErrorCode.NONE)
        self.names: list[str | None] = []

    async def init_producer_id(self, transactional_id: str | None) -> ProducerId:
        self.names.append(transactional_id)
        await asyncio.sleep(0.001)
        if transactional_id is None:
            return ProducerId(self.failing, 7, 0)
        if self.behaviour == "refuses":
            raise NoResponse("nobody listens", sent=False)
        if self.behaviour == "hangs":
            await asyncio.sleep(3600.0)
        if self.behaviour == "is missing":
            # Kafka's response while a partition of __transaction_state has no leader, or cannot be created.
            return ProducerId(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        return ProducerId(ErrorCode.NONE, 8, 3)


def make_allocator(coordinators: FakeTransactionCoordinators) -> ProducerIdAllocator:
    return ProducerIdAllocator(cast(Brokers, coordinators), "state", timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("behaviour", ["refuses", "hangs", "is missing"])
async def test_claim_omits_the_transactional_id_if_no_coordinator_is_available(
    behaviour: str, caplog: pytest.LogCaptureFixture
) -> None:
    coordinators = FakeTransactionCoordinators(behaviour)
    ids = make_allocator(coordinators)
    began_s = asyncio.get_running_loop().time()
    found = await asyncio.gather(ids.get(4), ids.get(5))
    assert found == [ProducerId(ErrorCode.NONE, 7, 0)] * 2
    # The wait gives Kafka time to move the transactional id to another broker.
    assert 10.0 < asyncio.get_running_loop().time() - began_s < TIMEOUT_S
    # The next claim uses a transactional id again.
    coordinators.behaviour = "answers"
    assert await ids.get(4) == ProducerId(ErrorCode.NONE, 8, 3)
    assert coordinators.names[-1] == "share-coordinator.state.4"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sorted(sentence.split(":")[0] for sentence in said) == [
        "state partition 4 is claimed without its transactional id",
        "state partition 5 is claimed without its transactional id",
    ]


async def test_claim_waits_for_a_broker_that_returns_a_retriable_error() -> None:
    coordinators = FakeTransactionCoordinators("is missing")
    coordinators.failing = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(LogUnavailable, match=r"Kafka's error COORDINATOR_LOAD_IN_PROGRESS \(14\)"):
        await make_allocator(coordinators).get(4)
    asyncio.get_running_loop().call_later(TIMEOUT_S / 2 - 1.0, setattr, coordinators, "behaviour", "answers")
    assert (await make_allocator(coordinators).get(4)).producer_id == 8


async def test_transactional_id_is_used_again_after_its_coordinator_has_hung() -> None:
    """The request timeout is longer than the wait for the coordinator, so no request fails."""
    kafka = KafkaInMemory(nodes=2)
    kafka.new_client("state")
    brokers = kafka.brokers("state")
    servers = ",".join(f"{host}:{port}" for host, port in brokers.addresses.values())
    client = register_for_close(Brokers(servers, "state", request_timeout_s=TIMEOUT_S))
    await client.connect()
    ids = ProducerIdAllocator(client, "state", timeout_s=TIMEOUT_S)
    first = await ids.get(4)
    _, hung = brokers.find_coordinator(1, "share-coordinator.state.4")
    brokers.silent = {hung}
    brokers.find_coordinator = lambda node, key: (ErrorCode.NONE, 3 - hung)  # type: ignore[method-assign]
    assert (await ids.get(4)).producer_id != first.producer_id
    assert (await ids.get(4)).producer_id == first.producer_id
