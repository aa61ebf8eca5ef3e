"""The demo shows the responses of the coordinator, and prints one line when it fails."""

import asyncio
import io
import re

import pytest

from coordinator.cli.demo import run
from coordinator.client import ONCE
from coordinator.errors import ConfigError
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack
from tests.kafka.ports import free_ports
from tests.unit import clock_skipping
from tests.unit.client.fake_coordinator import (
    INITIALIZE,
    READ,
    VERSIONS,
    WRITE,
    FakeCoordinator,
    Request,
    answer_normally,
    close_connection,
    encode_response,
    error_answer,
)
from tests.unit.client.our_coordinator import serve_real_coordinator

pytestmark = pytest.mark.run_with(function=clock_skipping.run)


class AsciiStream(io.StringIO):
    """A text stream of a terminal that supports only ASCII."""

    encoding = "ascii"


class TerminalStream(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


async def run_demo(bootstrap: str, out: io.StringIO) -> tuple[int, str]:
    """Run the demo in a thread against a coordinator; return exit code and stderr."""
    err = io.StringIO()
    code = await asyncio.to_thread(run, bootstrap, out=out, err=err, retry=ONCE)
    return code, err.getvalue()


async def run_successful_demo(out: io.StringIO) -> None:
    async with serve_real_coordinator() as address:
        assert await run_demo(address, out) == (0, "")


def labelled_rows(told: str, label: str) -> list[str]:
    """Return the rows with the given label, cells joined."""
    return ["".join(line.split()[1:]) for line in told.splitlines() if line.split()[:1] == [label]]


async def test_rows_show_the_states_of_the_records() -> None:
    out = io.StringIO()
    await run_successful_demo(out)
    assert labelled_rows(out.getvalue(), "state") == [
        "··········",
        "··········",
        "··········",
        "··✓✓✓✓····",
        "··✓✓✓✓↺···",
        "··✓✓✓✓↺✗··",
        "──────↺✗··",
        "──────↺✗··",
        "──────↺✗··",
        "──────────",
        "──────────",
    ]
    assert labelled_rows(out.getvalue(), "deliveries")[4:7] == ["11112", "111121", "21"]
    assert "refused, FENCED_LEADER_EPOCH" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


async def test_marks_are_letters_without_unicode() -> None:
    out = AsciiStream()
    await run_successful_demo(out)
    assert out.getvalue().isascii()
    assert labelled_rows(out.getvalue(), "state")[6] == "------rx.."


async def test_terminal_output_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = TerminalStream()
    await run_successful_demo(out)
    assert re.search("\x1b\\[1;32m *✓", out.getvalue())


async def test_shown_state_comes_from_the_responses() -> None:
    async def answer_with_another_state(fake: FakeCoordinator, request: Request) -> bytes:
        topic = request.message.topics[0]
        batches = pack([StateBatch(5, 6, 0, 7)])
        result = read_api.PartitionResult(topic.partitions[0].partition, 0, None, 1, 3, batches)
        return encode_response(
            request,
            read_api.ReadShareGroupStateResponse([read_api.ReadStateResult(topic.topic_id, [result])]),
        )

    out = io.StringIO()
    async with FakeCoordinator() as fake:
        fake.plan_answers(READ, answer_with_another_state)
        assert await run_demo(fake.address, out) == (0, "")
    assert labelled_rows(out.getvalue(), "state")[0] == "───··↺↺···"
    assert labelled_rows(out.getvalue(), "deliveries")[0] == "77"


async def error_line(fake: FakeCoordinator, out: io.StringIO | None = None) -> str:
    """Run the demo, assert that it fails, and return its error line."""
    code, said = await run_demo(fake.address, out or io.StringIO())
    assert code == 1
    assert said.startswith("share-coordinator demo: ")
    assert len(said.splitlines()) == 1
    return said


def test_unreachable_coordinator_is_reported() -> None:
    (port,) = free_ports(1)
    out, err = io.StringIO(), io.StringIO()
    assert run(f"127.0.0.1:{port}", out=out, err=err, retry=ONCE) == 1
    assert err.getvalue() == (
        f"share-coordinator demo: no share coordinator answers at 127.0.0.1:{port}. "
        f"Cannot connect to 127.0.0.1:{port}: Connection refused. "
        "To start one: share-coordinator serve. To name another: --bootstrap HOST:PORT.\n"
    )
    assert out.getvalue() == ""


async def test_other_server_is_reported() -> None:
    async with FakeCoordinator(served={VERSIONS: (0, 4)}) as fake:
        assert "is not a share coordinator" in await error_line(fake)


async def test_refused_initialize_is_reported() -> None:
    async with FakeCoordinator() as fake:
        fake.plan_answers(INITIALIZE, error_answer(31, "Not you."))
        assert "refused the first request: Not you. (CLUSTER_AUTHORIZATION_FAILED)" in await error_line(fake)


async def test_failure_during_the_demo_is_reported() -> None:
    out = io.StringIO()
    async with FakeCoordinator() as fake:
        fake.plan_answers(WRITE, answer_normally, close_connection)
        assert "failed during the demo" in await error_line(fake, out)
    assert len(labelled_rows(out.getvalue(), "state")) == 4


async def test_coordinator_that_does_not_fence_is_reported() -> None:
    async def accept_write(fake: FakeCoordinator, request: Request) -> bytes:
        topic = request.message.topics[0]
        result = write_api.PartitionResult(topic.partitions[0].partition)
        return encode_response(
            request,
            write_api.WriteShareGroupStateResponse([write_api.WriteStateResult(topic.topic_id, [result])]),
        )

    async with FakeCoordinator() as fake:
        # The sixth write comes from the old leader.
        fake.plan_answers(WRITE, *[answer_normally] * 5, accept_write)
        assert "accepted a write that it must refuse (FencedLeaderEpoch)" in await error_line(fake)


def test_invalid_bootstrap_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        run("somewhere")
