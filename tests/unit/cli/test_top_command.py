"""The command `top`: the most loaded share-partitions, on terminals of any width and as text."""

import re
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper

import pytest

from coordinator.cli.admin_client import AdminClient, Answer
from coordinator.cli.top_command import format_age
from coordinator.errors import CoordinatorError
from coordinator.observe.signals import GroupSignals, Problem
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import TopicsInMemory, serve_admin
from tests.unit.admin.test_signals import make_monitor
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.cli.command_line import CommandLine

KEY = ("GROUP", "TOPIC", "PARTITION")
LONG = ("payments-eu-west", "payments-eu-north", "payments-eu")


@pytest.fixture(scope="module")
def coordinator_url() -> Iterator[str]:
    """The URL of a coordinator with some state, served by another thread."""
    batches = pack_batches((100, 109, 0, 2), (110, 110, 4, 5), (112, 119, 2, 1))
    with serve_admin(
        [make_snapshot(batches=batches), *(make_snapshot(f"group-{number}") for number in range(4))]
    ) as it:
        yield it.url


def test_top_prints_one_refresh_if_output_is_no_terminal(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    out = share_coordinator("top", "--url", coordinator_url).out
    assert " ready" in out
    table = [line.split() for line in out.splitlines() if line.startswith("orders")]
    assert table[0][-5:-2] == ["-", "19", "5"]
    assert re.fullmatch(r"\d+d ago", " ".join(table[0][-2:]))


LONG = ("payments-eu-west", "payments-eu-north", "payments-eu")


@pytest.fixture(scope="module")
def long_names_url() -> Iterator[str]:
    """The URL of a coordinator whose group names differ only at the end."""
    names = {TOPIC_ID: "orders.dead-letter"}
    states = [make_snapshot(group, batches=pack_batches((100, 199, 0, 2))) for group in LONG]
    with serve_admin([*states, make_snapshot("日本")], lambda: TopicsInMemory(names)) as coordinator:
        yield coordinator.url


def test_top_prints_full_names_if_output_is_no_terminal(
    share_coordinator: CommandLine, long_names_url: str
) -> None:
    out = share_coordinator("top", "--url", long_names_url).out
    head, *shown = (re.split("  +", line) for line in out.splitlines()[4:])
    assert head == [*KEY, "START-OFFSET", "LAG", "IN-FLIGHT v", "DELIVERIES", "LAST-WRITE"]
    assert {tuple(row[:2]) for row in shown} == {(group, "orders.dead-letter") for group in (*LONG, "日本")}


def test_top_prints_a_dash_for_an_unknown_last_write(
    share_coordinator: CommandLine, long_names_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = AdminClient.get

    def return_answer(api: AdminClient, path: str, **query: object) -> Answer:
        answer = well(api, path, **query)
        if path == "/api/v1/share-partitions":
            answer["items"] = [{**item, "last_write": None, "last_write_ms": 0} for item in answer["items"]]
        return answer

    monkeypatch.setattr(AdminClient, "get", return_answer)
    out = share_coordinator("top", "--url", long_names_url).out
    assert [line.split()[-1] for line in out.splitlines()[5:]] == ["-"] * 4


@pytest.mark.parametrize(
    ("columns", "sort", "head"),
    [
        (120, "in-flight", [*KEY, "START-OFFSET", "LAG", "IN-FLIGHT v", "DELIVERIES", "LAST-WRITE"]),
        (80, "in-flight", [*KEY, "LAG", "IN-FLIGHT v", "LAST-WRITE"]),
        (80, "delivery-count", [*KEY, "LAG", "IN-FLIGHT", "DELIVERIES v"]),
        (40, "in-flight", [*KEY, "IN-FLIGHT v"]),
        (40, "last-write", [*KEY, "LAST-WRITE v"]),
    ],
)
def test_top_wraps_long_names_on_narrow_terminals(
    share_coordinator: CommandLine,
    long_names_url: str,
    wide_terminal: pytest.MonkeyPatch,
    columns: int,
    sort: str,
    head: list[str],
) -> None:
    wide_terminal.setenv("COLUMNS", str(columns))
    out = share_coordinator(
        "top", "--url", long_names_url, "--sort", sort, "-n", "1", "--interval", "0.1"
    ).out
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out).splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("GROUP"))
    assert re.split("  +", lines[at]) == head
    end = lines[at].index("TOPIC")
    # A name longer than its column continues on the next line.
    names = "".join(line[:end].strip() for line in lines[at + 1 :])
    assert all(name in names for name in LONG)
    assert max(map(len, lines[at:])) <= columns


@pytest.mark.parametrize("command", [("top",), ("groups", "list"), ("groups", "list", "-o", "yaml")])
def test_name_outside_the_output_encoding_is_escaped(
    share_coordinator: CommandLine,
    long_names_url: str,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    printed = BytesIO()
    with TextIOWrapper(printed, "latin-1", write_through=True) as out:
        monkeypatch.setattr(sys, "stdout", out)
        done = share_coordinator(*command, "--url", long_names_url)
        assert (done.exit_code, done.err) == (0, "")
        assert rb"\u65e5\u672c" in printed.getvalue()


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0s ago"),
        (59_000, "59s ago"),
        (60_000, "1min ago"),
        (7_200_000, "2h ago"),
        (3 * 86_400_000, "3d ago"),
    ],
)
def test_age_is_rounded_to_one_unit(ms: int, text: str) -> None:
    assert format_age(ms) == text


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.MonkeyPatch:
    """Make the output a terminal of 120 columns and 30 lines."""
    # During the test, sys.stdout is another object of the same class, so patch the class.
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "30")
    return monkeypatch


def test_top_continues_after_a_failed_refresh(
    share_coordinator: CommandLine, coordinator_url: str, wide_terminal: pytest.MonkeyPatch
) -> None:
    looks = iter((True, False, True))
    well = AdminClient.get

    def return_answer(api: AdminClient, path: str, **query: object) -> Answer:
        if path == "/healthz" and not next(looks):
            raise CoordinatorError("no coordinator answers\x1b[2J")
        return well(api, path, **query)

    wide_terminal.setattr(AdminClient, "get", return_answer)
    done = share_coordinator("top", "--url", coordinator_url, "--looks", "3", "--interval", "0.1")
    assert (done.exit_code, done.err) == (0, "")
    assert r"! no coordinator answers\x1b[2J. Last values:" in done.out
    assert done.out.count("share-partitions: 5") == 3


def test_top_ends_if_the_first_refresh_fails(
    share_coordinator: CommandLine, wide_terminal: pytest.MonkeyPatch
) -> None:
    done = share_coordinator("top", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.out) == (1, "")
    assert "no coordinator answers at http://127.0.0.1:1" in done.err


def test_top_on_a_dumb_terminal_prints_one_refresh(
    share_coordinator: CommandLine, coordinator_url: str, wide_terminal: pytest.MonkeyPatch
) -> None:
    wide_terminal.setenv("TERM", "dumb")
    done = share_coordinator("top", "--url", coordinator_url, "--looks", "1", "--interval", "0.1")
    assert done.exit_code == 0
    assert "share-partitions: 5" in done.out


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


def test_top_of_a_group_without_state_prints_only_the_table_header(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    done = share_coordinator("top", "--group", "nobody", "--url", coordinator_url)
    assert done.exit_code == 0
    assert "IN-FLIGHT v" in done.out
