"""The wall clock, as a fact that is handed in: the core and the runtime never ask the system."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the wall-clock time. It may jump, also backwards: nothing but timestamps may hang on it."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


class SteadyClock:
    """A wall clock that is read once and then goes on by itself: it does not jump when somebody sets it."""

    def __init__(self) -> None:
        self._began_ms = SystemClock().now_ms()
        self._began_s = seconds_since_boot()

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return self._began_ms + round((seconds_since_boot() - self._began_s) * 1000)


# Seconds of a clock that nobody sets, which event loops count by. Called often: not wrapped in a function.
monotonic_seconds = time.monotonic


def seconds_since_boot() -> float:
    """Return a time that only grows, and where the system can tell, also while the machine is suspended."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


def cpu_seconds() -> float:
    """Return how long this process has kept a processor busy: how fast it is, whoever else is at work."""
    return time.process_time()
