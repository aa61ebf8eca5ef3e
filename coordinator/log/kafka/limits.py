"""Timeouts of a log in a topic, and the duration of its leases."""

from typing import NamedTuple


class KafkaLogLimits(NamedTuple):
    """Timeouts in seconds: for a response, an append, the start of the topic, and closing the log.

    When the log is closed, appends in flight get `close_timeout_s`; outcomes after that are not reported.
    `lease_s` is how long after an append an owner answers reads from memory, at most `LEASE_MAX_MS`.
    """

    request_timeout_s: float = 10.0
    append_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    close_timeout_s: float = 5.0
    lease_s: float = 3.0
