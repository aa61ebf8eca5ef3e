"""The demo prints the responses of the coordinator, and one line if it fails."""

import asyncio

import pytest

from coordinator.cli import demo
from coordinator.cli.demo import run_demo
from coordinator.client import ONCE
from coordinator.errors import ConfigError, CoordinatorError
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.kafka.ports import free_ports
from tests.unit import clock_skipping
from tests.unit.client.fake_coordinator import (
    DELETE,
    INITIALIZE,
    READ,
    VERSIONS,
    WRITE,
    Answer,
    FakeCoordinator,
    Request,
    answer_correctly,
    close_connection,
    encode_response,
    error_answer,
)

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


async def run_demo_against(fake: FakeCoordinator) -> None:
    """Run the demo in a thread, because it runs an event loop of its own."""
    async with fake:
        await asyncio.to_thread(run_demo, fake.address, retry=ONCE)


async def test_each_demo_step_shows_the_state_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    await run_demo_against(FakeCoordinator())
    printed = capsys.readouterr().out
    steps = [" ".join(step.split()) for step in printed.split("\n\n")]
    assert [step.partition(".")[0] for step in steps[1:]] == [str(number) for number in range(1, 12)]
    state = {number: step.partition("state epoch 1 ")[2] for number, step in enumerate(steps)}
    heads = "offsets delivery state delivery count"
    assert state[3] == f"{heads} 2-5 ACKNOWLEDGED 1"
    assert state[5] == f"{heads} 2-5 ACKNOWLEDGED 1 6 AVAILABLE 2 7 ARCHIVED 1"
    assert state[6] == state[7] == state[8] == f"{heads} 6 AVAILABLE 2 7 ARCHIVED 1"
    assert "refused with FENCED_LEADER_EPOCH: " in steps[8]
    assert "start offset 10, state epoch 1" in steps[9]
    assert "a Read is refused with INVALID_REQUEST: " in steps[11]


async def test_demo_shows_the_state_of_the_responses(capsys: pytest.CaptureFixture[str]) -> None:
    async def answer_with_another_state(fake: FakeCoordinator, request: Request) -> bytes:
        topic = request.message.topics[0]
        batches = pack([StateBatch(5, 6, 0, 7)])
        result = read_api.PartitionResult(topic.partitions[0].partition, 0, None, 1, 3, batches)
        return encode_response(
            request,
            read_api.ReadShareGroupStateResponse([read_api.ReadStateResult(topic.topic_id, [result])]),
        )

    fake = FakeCoordinator()
    fake.plan_answers(READ, answer_with_another_state)
    await run_demo_against(fake)
    printed = " ".join(capsys.readouterr().out.split())
    assert "start offset 3, state epoch 1 offsets delivery state delivery count 5-6 AVAILABLE 7 " in printed


async def accept_write(fake: FakeCoordinator, request: Request) -> bytes:
    topic = request.message.topics[0]
    result = write_api.PartitionResult(topic.partitions[0].partition)
    return encode_response(
        request,
        write_api.WriteShareGroupStateResponse([write_api.WriteStateResult(topic.topic_id, [result])]),
    )


@pytest.mark.parametrize(
    ("api_key", "answers", "error"),
    [
        (
            INITIALIZE,
            [error_answer(31, "Not you.")],
            "refused the first request: CLUSTER_AUTHORIZATION_FAILED",
        ),
        (WRITE, [answer_correctly, close_connection], "failed during the demo: "),
        # The sixth write comes from the old leader, which the coordinator must fence.
        (WRITE, [answer_correctly] * 5 + [accept_write], "accepted a write of a fenced leader"),
    ],
    ids=["refused", "disconnected", "not-fenced"],
)
async def test_demo_failure_is_reported_in_one_line(api_key: int, answers: list[Answer], error: str) -> None:
    fake = FakeCoordinator()
    fake.plan_answers(api_key, *answers)
    with pytest.raises(CoordinatorError, match=error) as raised:
        await run_demo_against(fake)
    assert "\n" not in str(raised.value)
    assert fake.count_requests(DELETE) == (api_key != INITIALIZE)


async def test_demo_deletes_its_state_if_its_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def print_line(line: str) -> None:
        if line.startswith("4."):
            raise BrokenPipeError

    monkeypatch.setattr(demo, "print_line", print_line)
    fake = FakeCoordinator()
    with pytest.raises(BrokenPipeError):
        await run_demo_against(fake)
    assert fake.count_requests(WRITE) == fake.count_requests(DELETE) == 1


async def test_server_without_share_coordinator_apis_is_reported() -> None:
    with pytest.raises(CoordinatorError, match="is not a share coordinator"):
        await run_demo_against(FakeCoordinator(served={VERSIONS: (0, 4)}))


def test_unreachable_coordinator_is_reported() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CoordinatorError) as raised:
        run_demo(f"127.0.0.1:{port}", retry=ONCE)
    assert str(raised.value) == (
        f"no share coordinator answers at 127.0.0.1:{port}: "
        f"Cannot connect to 127.0.0.1:{port}: Connection refused. "
        "Start one with share-coordinator serve, or give another address with --bootstrap HOST:PORT."
    )


def test_invalid_bootstrap_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        run_demo("somewhere")
