"""The age of a record at an offset, found with the requests that a broker answers."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from coordinator.observe.signals.user_topics import GROUPS_OF_PARTITION_MAX, find_group_ages, find_record_ages

NOW_MS = 1_800_000_000_000
PARTITION = (b"t" * 16, 0)
DAY_S = 86_400.0


class FakeTopic:
    """A partition whose records have these ages in seconds, oldest first."""

    def __init__(self, ages_s: Sequence[float]) -> None:
        self._times_ms = [NOW_MS - round(age_s * 1000) for age_s in ages_s]
        self.requests = 0

    async def offsets_at_times(
        self, times_ms: Mapping[tuple[bytes, int], int]
    ) -> Mapping[tuple[bytes, int], int]:
        self.requests += 1
        (asked_ms,) = times_ms.values()
        later = (offset for offset, time_ms in enumerate(self._times_ms) if time_ms >= asked_ms)
        return {PARTITION: next(later, -1)} if PARTITION in times_ms else {}


@pytest.mark.parametrize("age_s", [1.5, 9.0, 100.0, 3_600.0, 3 * DAY_S])
def test_age_is_found_to_within_30_percent(age_s: float) -> None:
    topic = FakeTopic([4 * DAY_S, age_s, 0.5])
    (found,) = asyncio.run(find_record_ages(topic.offsets_at_times, {PARTITION: 1}, NOW_MS)).values()
    assert age_s / 1.3 <= found <= age_s
    assert topic.requests <= 6


def test_record_younger_than_a_second_has_age_0() -> None:
    assert asyncio.run(find_record_ages(FakeTopic([7.0, 0.2]).offsets_at_times, {PARTITION: 1}, NOW_MS)) == {
        PARTITION: 0.0
    }


def test_partition_that_may_not_be_described_has_no_age() -> None:
    assert asyncio.run(find_record_ages(FakeTopic([7.0]).offsets_at_times, {(b"u" * 16, 0): 0}, NOW_MS)) == {}


def test_groups_of_the_same_partition_have_separate_ages() -> None:
    starts = {"slow": (PARTITION, 0), "fast": (PARTITION, 1), "equal": (PARTITION, 0)}
    ages = asyncio.run(find_group_ages(FakeTopic([1_000.0, 10.0]).offsets_at_times, starts, NOW_MS))
    assert ages["slow"] == ages["equal"] > 700
    assert 7 < ages["fast"] <= 10


def test_number_of_searches_of_a_partition_is_bounded() -> None:
    topic = FakeTopic([1_000.0] * 50)
    ages = asyncio.run(
        find_group_ages(topic.offsets_at_times, {f"g{at}": (PARTITION, at) for at in range(50)}, NOW_MS)
    )
    assert len(ages) == GROUPS_OF_PARTITION_MAX
    assert topic.requests <= 6 * GROUPS_OF_PARTITION_MAX
