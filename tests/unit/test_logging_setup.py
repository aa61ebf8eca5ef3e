"""Log formats: one JSON object per record, or one readable line."""

import io
import json
import logging
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.process.logging_setup import set_up_logging
from coordinator.security.tls import ServerTls
from tests.certificates import CertificateAuthority


@pytest.fixture(autouse=True)
def _restore_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_line_has_extra_values_as_fields() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "json", stream)
    logging.getLogger("coordinator.serve.runtime").info(
        "shard %s loaded", 7, extra={"shard": 7, "group": "é\n\x9b\u202e"}
    )
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    entry = json.loads(line)
    assert entry.pop("ts").endswith("Z")
    assert entry == {
        "level": "INFO",
        "logger": "coordinator.serve.runtime",
        "event": "shard 7 loaded",
        "shard": 7,
        "group": "é\n\x9b\u202e",
    }


def test_json_line_includes_error_and_traceback() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "json", stream)
    try:
        raise OSError("disk is full")
    except OSError:
        logging.getLogger("x").exception("append failed")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["error"] == "OSError: disk is full"
    assert "Traceback" in entry["traceback"]


def test_text_line_has_level_message_and_fields() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "text", stream)
    logging.getLogger("x").warning("slow append", extra={"shard": 7})
    assert stream.getvalue()[13:] == "WARNING slow append shard=7\n"


def test_control_characters_cannot_forge_a_log_line() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "text", stream)
    forged = "x\n12:00:00.000 INFO    coordinator.audit: write request executed\x1b[2J"
    logging.getLogger("x").info("group %s expired", forged, extra={"group": forged})
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("x").exception("no")
    first, *others = stream.getvalue().splitlines()
    written = r"x\n12:00:00.000 INFO    coordinator.audit: write request executed\x1b[2J"
    quoted = r'"x\n12:00:00.000 INFO    coordinator.audit: write request executed\u001b[2J"'
    assert first[13:] == f"INFO    group {written} expired group={quoted}"
    assert [line for line in others if not line.startswith("    ")] == [others[0]]
    assert others[-1].endswith(r"write request executed\x1b[2J")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, "7"),
        ("orders", "orders"),
        ("", '""'),
        ("a b", '"a b"'),
        ("a who=root", '"a who=root"'),
        ('say "no"', r'"say \"no\""'),
        ("a=b", '"a=b"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("a\u202eb", r"a\u202eb"),
        (None, "None"),
    ],
)
def test_field_values_are_quoted_if_ambiguous(value: object, shown: str) -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "text", stream)
    logging.getLogger("x").info("up", extra={"group": value, "shard": 7})
    assert stream.getvalue()[13:] == f"INFO    up group={shown} shard=7\n"


def test_text_line_of_the_audit_log_has_the_logger_name() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "text", stream)
    logging.getLogger("coordinator.audit").warning("refused", extra={"who": "eve"})
    assert stream.getvalue()[13:] == "WARNING coordinator.audit: refused who=eve\n"


def test_log_format_auto_is_text_on_a_terminal_and_json_otherwise() -> None:
    terminal, pipe = TerminalStream(), io.StringIO()
    for stream in (terminal, pipe):
        set_up_logging("INFO", "auto", stream)
        logging.getLogger("x").info("up")
    assert "INFO    up" in terminal.getvalue()
    assert json.loads(pipe.getvalue())["event"] == "up"


def test_log_level_filters_log_lines() -> None:
    stream = io.StringIO()
    set_up_logging("WARNING", "text", stream)
    logging.getLogger("x").info("chatter")
    assert stream.getvalue() == ""


def test_tls_exceptions_in_callbacks_are_logged_once_in_an_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without this limit, a TLS server name that is not ASCII causes five raw lines for each handshake."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    stream = io.StringIO()
    issued = CertificateAuthority(tmp_path / "authority").issue_certificate("server")
    tls = ServerTls(issued.listener_tls(), "listen")
    set_up_logging("INFO", "json", stream)
    for _ in range(3):
        incoming, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        with pytest.raises(ssl.SSLWantReadError):
            client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        incoming.write(hello.read().replace(b"localhost", b"loc\xe4lhost"))
        with pytest.raises(ssl.SSLError):
            tls.context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "A TLS server name is not ASCII; the handshake was refused."


def test_urls_of_requests_are_not_logged() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", "json", stream)
    logging.getLogger("httpx").info("HTTP Request: POST https://hooks.example/secret")
    assert stream.getvalue() == ""
