"""Configure logging: text on a terminal, one JSON object per line for log collectors.

A message is a constant; its values are fields, passed as `extra={"shard": 7}`, and appear as `shard=7` or
`"shard": 7`. ERROR means that an operator must act.
"""

import json
import logging
import re
import sys
import time
from typing import TextIO

from coordinator.printable import escape_json_unprintable, escape_unprintable
from coordinator.process.clock import format_utc

# The audit log of changes and refusals. Text lines include this name, so that they can be found.
AUDIT = "coordinator.audit"

_logger = logging.getLogger(__name__)

_IGNORED_EVERY_S = 10.0
_IGNORED_CHARS_MAX = 200

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}

_PLAIN = re.compile(r'[^\s"=]+')


def set_up_logging(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send all log records of `level` and above to `stream` (default stderr), replacing an earlier
    configuration.

    `style` is "text", "json", or "auto" (text if the stream is a terminal).
    """
    stream = stream or sys.stderr
    if style == "auto":
        style = "text" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if style == "text" else JsonFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    sys.unraisablehook = _IgnoredExceptionLog().log_exception
    # uvicorn logs its start and stop at INFO, which this program already logs. httpx logs each URL at INFO,
    # and the URL of a webhook may contain a secret.
    for name in ("uvicorn", "httpx"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class _IgnoredExceptionLog:
    """Logs exceptions that Python ignores, with a rate limit, because clients can cause some of them.

    The one known cause is a TLS server name that is not ASCII, which the ssl module cannot decode.
    """

    def __init__(self) -> None:
        self._logged_s = -_IGNORED_EVERY_S
        self._left_out = 0

    def log_exception(self, ignored: "sys.UnraisableHookArgs") -> None:
        now_s = time.monotonic()  # noqa: TID251
        if now_s - self._logged_s < _IGNORED_EVERY_S:
            self._left_out += 1
            return
        self._logged_s = now_s
        left_out, self._left_out = self._left_out, 0
        facts: dict[str, object] = {
            "error": f"{ignored.exc_type.__name__}: {ignored.exc_value}"[:_IGNORED_CHARS_MAX]
        }
        if left_out:
            facts["more_before"] = left_out
        if isinstance(ignored.exc_value, UnicodeDecodeError) and isinstance(ignored.object, bytes):
            _logger.warning("A TLS server name is not ASCII; the handshake was refused.", extra=facts)
            return
        # The traceback is not logged, because a log record with it would keep the exception's frames in
        # memory.
        where = repr(ignored.object)[:_IGNORED_CHARS_MAX]
        _logger.error("An exception was ignored.", extra={**facts, "where": where})


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that a call passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _format_field(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else escape_json_unprintable(json.dumps(text, ensure_ascii=False))


def _format_timestamp(record: logging.LogRecord) -> str:
    return format_utc(record.created)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: ts, level, logger, event, fields, error and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _format_timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **extra_fields(record),
        }
        if record.exc_info and record.exc_info[0]:
            entry["error"] = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
            entry["traceback"] = self.formatException(record.exc_info)
        return escape_json_unprintable(json.dumps(entry, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """Formats a record as time of day, level, event and fields; a traceback follows on indented lines.

    A value from outside, such as a group id, cannot imitate a line or a field: line breaks are escaped, and a
    value that is not a single plain word is quoted as in JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_format_field(value)}" for name, value in extra_fields(record).items())
        name = f"{AUDIT}: " if record.name == AUDIT else ""
        said = escape_unprintable(f"{name}{record.getMessage()}{fields}")
        lines = [f"{_format_timestamp(record)[11:23]} {record.levelname:<7} {said}"]
        if record.exc_info:
            lines += (
                f"    {escape_unprintable(line)}"
                for line in self.formatException(record.exc_info).split("\n")
            )
        return "\n".join(lines)
