"""Measurements from /proc and from Kafka's tools that the benchmarks use."""

import os
from pathlib import Path

import msgspec

from tests.benchmarks.end_to_end import performance_rate
from tests.benchmarks.machine import (
    busy_seconds,
    cpu_share_of_others,
    has_loaded_extension,
)


def test_idle_and_iowait_are_not_busy_time() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"cpu  {ticks} 0 {2 * ticks} {900 * ticks} {50 * ticks} 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert busy_seconds(stat) == 3.0


def test_own_cpu_time_is_not_that_of_others() -> None:
    assert cpu_share_of_others(busy_s=9.0, own_s=7.0, all_s=10.0) == 0.2
    # The kernel counts CPU time in ticks, so the CPU time of this process may exceed the total.
    assert cpu_share_of_others(busy_s=1.0, own_s=1.1, all_s=10.0) == 0.0


def test_performance_rate_is_read_by_its_column_name() -> None:
    printed = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, nMsg.sec, data.consumed.in.nMsg, fetch.time.ms\n"
        "2026-11-21 15:00:00:000, 2026-11-21 15:00:08:000, 38.1, 4.7, 50000.5, 400000, 8000\n"
    )
    assert performance_rate(printed) == 50000.5


def test_compiled_module_is_found_in_a_running_process(tmp_path: Path) -> None:
    assert has_loaded_extension(os.getpid(), Path(msgspec.__file__).parent)
    assert not has_loaded_extension(os.getpid(), tmp_path)
