"""Retries of the client: error codes, number of attempts, backoff and coordinator lookup."""

import pytest

from coordinator.client import (
    ONCE,
    CoordinatorUnavailable,
    Disconnected,
    InvalidRequest,
    RetryPolicy,
    ShareCoordinatorClient,
    ShareCoordinatorError,
)
from protocol.errors import ErrorCode
from tests.builders import KEY
from tests.kafka.ports import free_ports
from tests.unit import clock_skipping
from tests.unit.client.fake_coordinator import (
    DELETE,
    FIND,
    SUMMARY,
    Answer,
    FakeCoordinator,
    close_after_execution,
    close_connection,
    error_answer,
    lookup_error_answer,
    send_empty_lookup_response,
    send_negative_frame_size,
    send_no_results,
    send_oversized_frame_size,
    send_truncated_response,
    send_wrong_correlation_id,
)
from tests.unit.coroutine_tests import FakeSleep

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


def make_client(address: str, waits: FakeSleep, *, direct: bool = False) -> ShareCoordinatorClient:
    """Return a client that records its backoff in `waits`; the jitter is zero, because chance() is 0.5."""
    return ShareCoordinatorClient(address, direct=direct, sleep=waits, chance=lambda: 0.5)


@pytest.mark.parametrize("error_code", [3, 14, 15, 16])
async def test_retriable_code_is_retried_after_a_new_lookup(error_code: int) -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.plan_answers(DELETE, error_answer(error_code), error_answer(error_code))
        await client.delete(KEY)
        assert waits == [2.0, 4.0]
        assert fake.count_requests(DELETE) == 3
        assert fake.count_requests(FIND) == 3


@pytest.mark.parametrize("error_code", [-1, 7, 31, 42, 74, 124, 9_999])
async def test_non_retriable_code_is_not_retried(error_code: int) -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.plan_answers(DELETE, error_answer(error_code, "said so"))
        with pytest.raises(ShareCoordinatorError, match="said so"):
            await client.delete(KEY)
        assert waits == []
        assert fake.count_requests(DELETE) == 1


async def test_unknown_error_code_is_shown_by_number() -> None:
    async with FakeCoordinator() as fake, make_client(fake.address, FakeSleep()) as client:
        fake.plan_answers(DELETE, error_answer(9_999, "new"))
        with pytest.raises(ShareCoordinatorError, match="9999: new") as caught:
            await client.delete(KEY)
        assert caught.value.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert not caught.value.retriable


async def test_last_error_is_raised_after_five_attempts() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.plan_answers(DELETE, *[error_answer(15)] * 4, error_answer(16, "not me"), error_answer(-1))
        with pytest.raises(CoordinatorUnavailable, match="not me") as caught:
            await client.delete(KEY)
        assert caught.value.error_code is ErrorCode.NOT_COORDINATOR
        assert caught.value.key == KEY
        assert waits == [2.0, 4.0, 8.0, 16.0]
        assert fake.count_requests(DELETE) == 5


async def test_response_without_a_result_is_an_error() -> None:
    async with FakeCoordinator() as fake, make_client(fake.address, FakeSleep()) as client:
        fake.plan_answers(DELETE, send_no_results)
        with pytest.raises(ShareCoordinatorError, match="no result for this share-partition"):
            await client.delete(KEY)


def test_backoff_grows_to_a_bound_with_jitter() -> None:
    policy = RetryPolicy(attempts_max=20, first_s=1.0, multiplier=2.0, wait_max_s=30.0, jitter=0.2)
    assert [policy.wait_s(failed, 0.5) for failed in (1, 2, 3, 4, 5, 1_000)] == [2, 4, 8, 16, 30, 30]
    assert [policy.wait_s(1, chance) for chance in (0.0, 1.0)] == [1.6, 2.4]


async def test_coordinator_is_looked_up_once() -> None:
    async with FakeCoordinator() as fake, make_client(fake.address, FakeSleep()) as client:
        for _ in range(3):
            await client.summary(KEY)
        assert fake.count_requests(FIND) == 1
        assert fake.connections == 2


async def test_not_coordinator_leads_to_a_new_lookup() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as old, FakeCoordinator() as new, make_client(old.address, waits) as client:
        await client.summary(KEY)
        old.plan_answers(SUMMARY, error_answer(16))
        old.set_coordinator(new)
        await client.summary(KEY)
        assert waits == [2.0]
        assert (old.count_requests(SUMMARY), new.count_requests(SUMMARY)) == (2, 1)


async def test_client_reconnects_if_a_node_id_has_a_new_address() -> None:
    async with (
        FakeCoordinator() as old,
        FakeCoordinator() as new,
        make_client(old.address, FakeSleep()) as client,
    ):
        old.set_coordinator(old, node_id=7)
        await client.summary(KEY)
        old.set_coordinator(new, node_id=7)
        old.plan_answers(SUMMARY, error_answer(16))
        await client.summary(KEY)
        assert new.count_requests(SUMMARY) == 1


BROKEN: list[Answer] = [
    close_connection,
    close_after_execution,
    send_truncated_response,
    send_wrong_correlation_id,
    send_oversized_frame_size,
    send_negative_frame_size,
]


@pytest.mark.parametrize("answer", BROKEN)
async def test_broken_connection_is_replaced_and_the_request_is_resent(answer: Answer) -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        await client.initialize(KEY, 1, 5)
        fake.plan_answers(SUMMARY, answer)
        assert (await client.summary(KEY)).start_offset == 5
        assert waits == [2.0]
        # Three connections: one for the lookup, the broken one, and its replacement.
        assert fake.connections == 3
        assert fake.count_requests(FIND) == 2


async def test_failed_lookup_is_retried() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.plan_answers(FIND, close_connection, lookup_error_answer(15), lookup_error_answer(14))
        await client.summary(KEY)
        assert waits == [2.0, 4.0, 8.0]
        assert fake.count_requests(SUMMARY) == 1


async def test_lookup_with_a_non_retriable_error_is_not_retried() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.coordinator_of = lambda text: (-1, "", -1, 42, "")
        with pytest.raises(InvalidRequest) as caught:
            await client.summary(KEY)
        assert caught.value.key == KEY
        assert waits == []


@pytest.mark.parametrize(
    "nonsense", [(1, "", 9095), (1, "127.0.0.1", 0), (1, "127.0.0.1", 65_536), (-1, "127.0.0.1", 9095)]
)
async def test_invalid_coordinator_address_is_refused(nonsense: tuple[int, str, int]) -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.coordinator_of = lambda text: (*nonsense, 0, "")
        with pytest.raises(CoordinatorUnavailable, match="FindCoordinator answered node"):
            await client.summary(KEY)
        assert len(waits) == 4


async def test_lookup_response_without_the_key_is_retried() -> None:
    waits = FakeSleep()

    async with FakeCoordinator() as fake, make_client(fake.address, waits) as client:
        fake.plan_answers(FIND, send_empty_lookup_response)
        await client.summary(KEY)
        assert waits == [2.0]


async def test_next_bootstrap_address_is_used_if_one_is_unreachable() -> None:
    (dead_port,) = free_ports(1)
    waits = FakeSleep()
    async with FakeCoordinator() as fake:
        async with make_client(f"127.0.0.1:{dead_port}, {fake.address}", waits) as client:
            await client.summary(KEY)
        assert waits == []


async def test_last_working_bootstrap_address_is_used_first() -> None:
    async with FakeCoordinator() as failing, FakeCoordinator() as fake:
        failing.plan_answers(FIND, close_connection)
        async with make_client(f"{failing.address},{fake.address}", FakeSleep()) as client:
            await client.summary(KEY)
            await client.summary(KEY._replace(partition=1))
        assert (failing.count_requests(FIND), fake.count_requests(FIND)) == (1, 2)


async def test_unreachable_address_raises_disconnected() -> None:
    (dead_port,) = free_ports(1)
    async with ShareCoordinatorClient(f"127.0.0.1:{dead_port}", retry=ONCE) as client:
        with pytest.raises(Disconnected, match=f"Cannot connect to 127.0.0.1:{dead_port}"):
            await client.summary(KEY)


async def test_direct_client_makes_no_lookup() -> None:
    waits = FakeSleep()
    async with FakeCoordinator() as fake, make_client(fake.address, waits, direct=True) as client:
        fake.plan_answers(SUMMARY, close_connection, error_answer(14))
        await client.summary(KEY)
        assert fake.count_requests(FIND) == 0
        assert waits == [2.0, 4.0]
