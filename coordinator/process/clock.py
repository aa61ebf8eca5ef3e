"""The wall clock as an interface, because the core and the runtime do not read the system's clock."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A wall clock, which may jump, also backwards. Use it only for timestamps."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""


class SystemClock:
    """The wall clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251


class SteadyClock:
    """A wall clock that does not jump: it reads the system time once and then adds the elapsed time."""

    def __init__(self) -> None:
        self._began_ms = SystemClock().now_ms()
        self._began_s = seconds_since_boot()

    def now_ms(self) -> int:
        return self._began_ms + round((seconds_since_boot() - self._began_s) * 1000)


# The clock of event loops, in seconds, which never jumps. The function is not wrapped, because it is called
# often.
monotonic_seconds = time.monotonic  # noqa: TID251


def seconds_since_boot() -> float:
    """Return monotonic seconds, which include suspension of the machine if the system supports it."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)  # noqa: TID251


def cpu_seconds() -> float:
    """Return the CPU time of this process in seconds, which does not depend on other processes."""
    return time.process_time()


def format_utc(seconds: float) -> str:
    """Format a Unix time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
