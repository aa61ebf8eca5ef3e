"""The times after which a log in a topic gives up waiting, and the length of its leases."""

from typing import NamedTuple


class KafkaLogLimits(NamedTuple):
    """How long a broker may take for an answer, an append for its outcome, the start for the topic, and the
    appends under way for their outcome when the log is closed (their clients are not told then).

    `lease_s` is how long after an append an owner answers reads from memory, at most `LEASE_MAX_MS`.
    """

    request_timeout_s: float = 10.0
    append_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    close_timeout_s: float = 5.0
    lease_s: float = 3.0
