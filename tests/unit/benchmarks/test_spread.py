"""Medians, ranges and ratios of benchmark rounds."""

import pytest

from tests.benchmarks.spread import compute_spread, ratio_spread


def test_spread_is_median_minimum_and_maximum() -> None:
    assert compute_spread([5.0, 1.0, 3.0]) == (3.0, 1.0, 5.0)
    assert compute_spread([2.0, 4.0]) == (3.0, 2.0, 4.0)


def test_ratios_are_taken_round_by_round() -> None:
    # The second round was slow for both systems, so it does not change the ratio.
    assert ratio_spread([200.0, 20.0], [100.0, 10.0]) == (2.0, 2.0, 2.0)
    assert ratio_spread([100.0, 300.0, 200.0], [100.0, 100.0, 100.0]) == (2.0, 1.0, 3.0)


def test_different_numbers_of_rounds_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratio_spread([1.0], [1.0, 2.0])


def test_about_three_digits_are_shown() -> None:
    assert str(compute_spread([1234.5])) == "1,234 (1,234-1,234)"
    assert str(compute_spread([12.34, 5.678])) == "9.01 (5.68-12.3)"
