"""Monotonic time that includes suspension, and a wall clock that ignores changes of the system time."""

import time

import pytest

from coordinator.process.clock import SteadyClock, SystemClock, seconds_since_boot


def test_monotonic_time_includes_suspension_if_the_system_supports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)
    assert seconds_since_boot() == 7.0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    before_s = time.monotonic()
    assert before_s <= seconds_since_boot() <= time.monotonic()


def test_steady_clock_ignores_a_change_of_the_system_time(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_s, wall_ms = 7.0, 1_700_000_000_123
    monkeypatch.setattr(time, "clock_gettime", lambda _: boot_s)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ms * 1_000_000)
    clock = SteadyClock()
    assert clock.now_ms() == wall_ms
    boot_s += 1.5
    wall_ms -= 3_600_000
    assert clock.now_ms() == 1_700_000_001_623
    assert SystemClock().now_ms() == wall_ms
