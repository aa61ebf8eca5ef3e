"""The command `top`: the busiest share-partitions, on a terminal and as text."""

import re
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper

import pytest

from coordinator.cli.admin_client import AdminClient, Answer
from coordinator.errors import CoordinatorError
from coordinator.observe.signals import GroupSignals, Problem
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import TopicsInMemory, serve_admin
from tests.unit.admin.test_signals import make_monitor
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.cli.command_line import CommandLine

HEAD = ["GROUP", "TOPIC", "PARTITION", "LAG", "IN-FLIGHT", "DELIVERIES", "LAST-WRITE"]
LONG = ("payments-eu-west", "payments-eu-north", "payments-eu")


@pytest.fixture(scope="module")
def coordinator_url() -> Iterator[str]:
    """The URL of a coordinator with long group names, served by another thread."""
    names = {TOPIC_ID: "orders.dead-letter"}
    states = [make_snapshot(group, batches=pack_batches((100, 199, 0, 2))) for group in LONG]
    with serve_admin([*states, make_snapshot("日本")], lambda: TopicsInMemory(names)) as coordinator:
        yield coordinator.url


@pytest.fixture
def fake_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.MonkeyPatch:
    """Make the output a terminal of 120 columns and 30 lines."""
    # During the test, sys.stdout is another object of the same class, so patch the class.
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "30")
    return monkeypatch


def test_top_prints_the_given_number_of_refreshes_without_a_terminal(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    out = share_coordinator("top", "--url", coordinator_url, "-n", "2", "--interval", "0.1").out
    assert out.count("share-partitions: 4") == 2


def test_top_prints_one_refresh_if_output_is_no_terminal(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    out = share_coordinator("top", "--url", coordinator_url).out
    assert " ready" in out.splitlines()[0]
    head, *shown = (re.split("  +", line) for line in out.splitlines()[4:])
    assert head == [name.replace("IN-FLIGHT", "IN-FLIGHT v") for name in HEAD]
    assert {tuple(row[:2]) for row in shown} == {(group, "orders.dead-letter") for group in (*LONG, "日本")}
    assert shown[0][2:6] == ["0", "-", "100", "2"]


@pytest.mark.parametrize("command", [("top",), ("groups", "list")])
def test_name_outside_the_output_encoding_is_escaped(
    share_coordinator: CommandLine,
    coordinator_url: str,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    printed = BytesIO()
    with TextIOWrapper(printed, "latin-1", write_through=True) as out:
        monkeypatch.setattr(sys, "stdout", out)
        done = share_coordinator(*command, "--url", coordinator_url)
        assert (done.exit_code, done.err) == (0, "")
        assert rb"\u65e5\u672c" in printed.getvalue()


def test_top_continues_after_a_failed_refresh(
    share_coordinator: CommandLine, coordinator_url: str, fake_terminal: pytest.MonkeyPatch
) -> None:
    is_reachable = iter((True, False, True))
    get = AdminClient.get

    def get_or_fail(api: AdminClient, path: str, **query: object) -> Answer:
        if path == "/healthz" and not next(is_reachable):
            raise CoordinatorError("no coordinator answers\x1b[2J")
        return get(api, path, **query)

    fake_terminal.setattr(AdminClient, "get", get_or_fail)
    done = share_coordinator(
        *(
            "top",
            "--url",
            coordinator_url,
            "--sort",
            "delivery-count",
            "--refreshes",
            "3",
            "--interval",
            "0.1",
        )
    )
    assert (done.exit_code, done.err) == (0, "")
    assert r"! no coordinator answers\x1b[2J. Last values:" in done.out
    assert done.out.count("share-partitions: 4") == 3
    assert done.out.count("DELIVERIES v") == 3


def test_sigint_ends_top_with_exit_code_0(
    share_coordinator: CommandLine, coordinator_url: str, fake_terminal: pytest.MonkeyPatch
) -> None:
    def raise_keyboard_interrupt(event: object, timeout_s: float) -> bool:
        raise KeyboardInterrupt

    fake_terminal.setattr("coordinator.cli.top_command.Event.wait", raise_keyboard_interrupt)
    assert share_coordinator("top", "--url", coordinator_url).exit_code == 0


def test_top_ends_if_the_first_refresh_fails(
    share_coordinator: CommandLine, fake_terminal: pytest.MonkeyPatch
) -> None:
    done = share_coordinator("top", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.out) == (1, "")
    assert "no coordinator answers at http://127.0.0.1:1: Connection refused" in done.err


def test_top_on_a_dumb_terminal_prints_one_refresh(
    share_coordinator: CommandLine, coordinator_url: str, fake_terminal: pytest.MonkeyPatch
) -> None:
    fake_terminal.setenv("TERM", "dumb")
    done = share_coordinator("top", "--url", coordinator_url, "--group", "nobody")
    assert done.exit_code == 0
    assert done.out.splitlines()[-1].split()[:3] == HEAD[:3]


def test_top_prints_the_most_severe_problems(share_coordinator: CommandLine) -> None:
    groups = [
        GroupSignals(group=f"g{number}", problem=Problem(number % 5 + 1), message=f"sentence {number}")
        for number in range(5)
    ]
    with serve_admin([], signals=make_monitor(*groups)) as coordinator:
        out = share_coordinator("top", "--url", coordinator.url).out
    assert [line for line in out.splitlines() if line.startswith("!")] == [
        "! lost-before-delivery: sentence 4",
        "! stuck: sentence 3",
        "! outage: sentence 2",
        "! and 2 more groups with a problem",
    ]
