"""The commands `groups`, `state` and `shards` against a running coordinator: tables and JSON."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from protocol.state_records import topic_id_text
from tests.builders import OTHER_TOPIC_ID, TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import serve_admin
from tests.unit.admin.test_state_routes import make_snapshot
from tests.unit.cli.command_line import CommandLine

TOPIC, OTHER_TOPIC = topic_id_text(TOPIC_ID), topic_id_text(OTHER_TOPIC_ID)
KEY = ("GROUP", "TOPIC", "PARTITION")
WRITTEN = "2023-11-14T22:13:20.123Z"
EVIL = "\x1b[2J\u202eevil"
# A C1 control character, DEL, a noncharacter, a line break, and a character above U+FFFF.
EVIL_BEYOND = "\x9b31m\x7f\ufffe\x85\U000e0061"


@pytest.fixture(scope="module")
def coordinator_url() -> Iterator[str]:
    """The URL of a coordinator with some state, served by another thread."""
    records = [
        make_snapshot(batches=pack_batches((100, 109, 0, 2), (110, 110, 4, 5), (112, 119, 2, 1))),
        make_snapshot(topic_id=OTHER_TOPIC_ID, partition=10),
        make_snapshot(topic_id=OTHER_TOPIC_ID, partition=9),
        make_snapshot(EVIL),
        make_snapshot(".."),
    ]
    with serve_admin(records) as coordinator:
        yield coordinator.url


def test_groups_list_prints_a_table(share_coordinator: CommandLine, coordinator_url: str) -> None:
    done = share_coordinator("groups", "list", "--url", coordinator_url)
    assert (done.exit_code, done.err) == (0, "")
    assert done.rows == [
        ["GROUP", "PROBLEM", "LAG", "IN-FLIGHT", "SHARE-PARTITIONS", "LAST-WRITE"],
        [r"\x1b[2J\u202eevil", "-", "-", "-", "1", WRITTEN],
        ["..", "-", "-", "-", "1", WRITTEN],
        ["orders", "-", "-", "-", "3", WRITTEN],
    ]


@pytest.mark.parametrize("output", ["table", "json"])
def test_groups_list_prints_why_the_coordinator_is_not_ready(
    share_coordinator: CommandLine, output: str
) -> None:
    with serve_admin() as server:
        server.run_in_loop(server.coordinator.runtime.mark_not_ready)
        done = share_coordinator("groups", "list", "--url", server.url, "-o", output)
    assert (done.exit_code, done.err) == (0, "share-coordinator: The coordinator is stopping.\n")


def test_groups_list_filters_by_contains(share_coordinator: CommandLine, coordinator_url: str) -> None:
    done = share_coordinator("groups", "list", "--url", coordinator_url, "--contains", "ORD", "-o", "json")
    assert [group["group"] for group in done.json] == ["orders"]


def test_groups_describe_prints_columns_like_kafka(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    done = share_coordinator("groups", "describe", "orders", "--url", coordinator_url)
    assert (done.exit_code, done.err) == (0, "")
    assert done.rows == [
        [*KEY, "START-OFFSET", "LAG", "IN-FLIGHT", "MAX-DELIVERY-COUNT", "LAST-WRITE"],
        ["orders", TOPIC, "0", "100", "-", "19", "5", WRITTEN],
        ["orders", OTHER_TOPIC, "9", "100", "-", "0", "-", WRITTEN],
        ["orders", OTHER_TOPIC, "10", "100", "-", "0", "-", WRITTEN],
    ]


def test_groups_describe_verbose_adds_epochs_and_end_offset(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    head, first, *_ = share_coordinator(
        "groups", "describe", "orders", "--verbose", "--url", coordinator_url
    ).rows
    shown = dict(zip(head, first, strict=True))
    assert (shown["LEADER-EPOCH"], shown["STATE-EPOCH"], shown["STATE-BATCHES"]) == ("7", "5", "3")
    assert shown["END-OFFSET"] == "-"


def test_control_characters_are_escaped_in_json(share_coordinator: CommandLine) -> None:
    with serve_admin([make_snapshot(EVIL), make_snapshot(EVIL_BEYOND), make_snapshot("日本")]) as coordinator:
        out = share_coordinator("groups", "list", "--url", coordinator.url, "-o", "json").out
    assert all(line.isprintable() for line in out.split("\n"))
    assert {group["group"] for group in json.loads(out)} == {EVIL, EVIL_BEYOND, "日本"}
    assert "日本" in out


@pytest.mark.parametrize("group", ["..", EVIL])
def test_group_with_special_characters_is_described(
    share_coordinator: CommandLine, coordinator_url: str, group: str
) -> None:
    done = share_coordinator("groups", "describe", group, "--url", coordinator_url)
    assert len(done.rows) == 2
    assert "\x1b" not in done.out
    shown = share_coordinator("state", "show", group, TOPIC, "0", "--url", coordinator_url, "-o", "json")
    assert shown.json["group"] == group


def test_state_show_prints_state_and_in_flight_records(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    done = share_coordinator("state", "show", "orders", TOPIC, "0", "--url", coordinator_url)
    assert (done.exit_code, done.err) == (0, "")
    shown = done.rows
    assert shown[:2] == [
        ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG", "END-OFFSET", "IN-FLIGHT"],
        ["orders", TOPIC, "0", "7", "100", "-", "-", "19"],
    ]
    assert ["oldest", "incomplete", "record:", "100"] in shown
    assert shown[-4:] == [
        ["FIRST-OFFSET", "LAST-OFFSET", "RECORDS", "DELIVERY-STATE", "DELIVERY-COUNT"],
        ["100", "109", "10", "AVAILABLE", "2"],
        ["110", "110", "1", "ARCHIVED", "5"],
        ["112", "119", "8", "ACKNOWLEDGED", "1"],
    ]


def test_state_history_prints_events_of_a_record(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    command = ("state", "history", "orders", TOPIC, "0", "110", "--url", coordinator_url)
    done = share_coordinator(*command)
    assert (done.exit_code, done.err) == (0, "")
    head, event, summary = done.rows
    assert head[:4] == ["LOG-OFFSET", "TIME", "RECORD", "OWNER-EPOCH"]
    assert " ".join(event[2:]).endswith("rejected or given up (ARCHIVED) at delivery 5")
    assert summary[:3] == ["now:", "record", "110:"]
    found = share_coordinator(*command, "-o", "json").json
    assert found["events"][0]["delivery_state"] == "ARCHIVED"


def test_shards_prints_a_table(share_coordinator: CommandLine, coordinator_url: str) -> None:
    head, *shards = share_coordinator("shards", "--url", coordinator_url).rows
    assert head[:5] == ["SHARD", "STATUS", "OWNER", "OWNER-EPOCH", "SHARE-PARTITIONS"]
    assert [(row[0], row[1]) for row in shards] == [(str(number), "ACTIVE") for number in range(4)]
    assert sum(int(row[4]) for row in shards) == 5


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("groups", "describe", "nobody"), 1, "group 'nobody' has no state here"),
        (("state", "show", "orders", TOPIC, "7"), 1, f"share-partition orders:{TOPIC}:7 has no state here"),
        (
            ("state", "show", "orders", "parcels", "0"),
            1,
            "'parcels' is not a topic id, and names are unknown",
        ),
        (("state", "show", "orders", TOPIC, "one"), 2, "valid integer"),
        (("groups", "describe", "orders", "--no-such", "1"), 2, "No such option"),
        (("groups", "list", "-o", "xml"), 2, "xml"),
        (("top", "--interval", "0"), 2, "interval"),
        (("top", "--interval", "inf"), 2, "interval"),
    ],
)
def test_invalid_request_prints_one_error_line(
    share_coordinator: CommandLine, coordinator_url: str, words: tuple[str, ...], exit_code: int, said: str
) -> None:
    done = share_coordinator(*words, "--url", coordinator_url)
    assert (done.exit_code, done.out) == (exit_code, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("groups", "describe", "nobody"), {"error": "group 'nobody' has no state here", "status": 404}),
        (
            ("hand-over", "99"),
            {"error": "there is no shard 99; shards are numbered from 0 to 3", "status": 404},
        ),
        (
            ("config", "show", "--log", "x"),
            {"error": "log=x cannot be used: it must be memory, journal or kafka (flag --log)"},
        ),
        (
            ("recovery", "audit", "--from", "x"),
            {
                "error": "--from=x cannot be used: it must be kafka:TOPIC, segments:DIR, journal:DIR or "
                "archive:DIR"
            },
        ),
    ],
)
def test_error_is_json_if_json_is_requested(
    share_coordinator: CommandLine,
    coordinator_url: str,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    error: dict[str, object],
) -> None:
    monkeypatch.setenv("SHARE_COORDINATOR_URL", coordinator_url)
    done = share_coordinator(*words, "-o", "json")
    assert (done.exit_code != 0, done.out, json.loads(done.err)) == (True, "", error)


@pytest.mark.parametrize(
    ("given", "exit_code"),
    [("127.0.0.1:9096", 2), ("ftp://x", 2), ("http://127.0.0.1:1", 1), ("http://xn--", 1)],
)
def test_unreachable_url_is_an_error(share_coordinator: CommandLine, given: str, exit_code: int) -> None:
    done = share_coordinator("groups", "list", "--url", given)
    assert done.exit_code == exit_code
    assert given in done.err


@contextmanager
def serve_bytes(*pieces: bytes) -> Iterator[str]:
    """Send the same bytes, piece by piece, to each HTTP client; yield the URL."""
    ended = threading.Event()

    def serve_responses(listener: socket.socket) -> None:
        while not ended.is_set():
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)
                    if len(pieces) > 1 and ended.wait(0.05):
                        break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve_responses, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            ended.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


COMMANDS = (("groups", "list"), ("top",), ("expiry",), ("state", "show", "a", TOPIC, "0"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            b"503 Service Unavailable",
            b"<html>Busy</html>",
            "status 503: the server is not a share coordinator, or is",
        ),
        (
            b"503 Service Unavailable",
            b"{}",
            "status 503: the server is not a share coordinator, or is",
        ),
        (b"503 Service Unavailable", b'{"message": "no", "owner": "x"}', "share-coordinator: no\n"),
        (b"200 OK", b"{}", "the server is not a share coordinator, or has another release"),
        (b"200 OK", b"[]", "no coordinator answers at http://127"),
        (b"200 OK", b"null", "the response is not a JSON object"),
    ],
)
def test_response_of_another_server_prints_one_error_line(
    share_coordinator: CommandLine, words: tuple[str, ...], status: bytes, body: bytes, said: str
) -> None:
    head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
    with serve_bytes(head + body) as url:
        done = share_coordinator(*words, "--url", url)
    assert (done.exit_code, done.out) == (1, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_error_message_of_the_server_is_escaped(share_coordinator: CommandLine) -> None:
    body = b'{"message": "x\\u001b[31mred\\u0007"}'
    with serve_bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as url:
        done = share_coordinator("shards", "--url", url)
    assert done == (1, "", "share-coordinator: x\\x1b[31mred\\x07\n")


@pytest.mark.parametrize(
    "given",
    [
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://eve:secret@[::1",
        "http://eve:secret@127.0.0.1:1",
        "eve:secret@x",
    ],
)
def test_invalid_url_is_refused_without_showing_its_password(
    share_coordinator: CommandLine, given: str
) -> None:
    done = share_coordinator("shards", "--url", given)
    assert (done.exit_code, done.out) == (2, "")
    assert "must be http://HOST:PORT or https://HOST:PORT" in done.err
    assert "secret" not in done.err
