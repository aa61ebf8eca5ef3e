"""Each problem is detected from its own values, and the most severe problem is reported."""

import pytest

from coordinator.observe.signals.detectors import GroupSignals, Problem, SignalLimits, find_problem

LIMITS = SignalLimits()

CASES = {
    Problem.NONE: {"lag": 10, "members": 2, "in_flight": 4},
    Problem.NO_CONSUMERS: {"lag": 1, "members": 0},
    Problem.POISON: {"near_delivery_limit": 1, "delivery_count_max": 4, "members": 1},
    Problem.OUTAGE: {
        "released_rate": 50.0,
        "rejected_rate": 0.0,
        "acknowledged_rate": 40.0,
        "redelivered": 100,
        "members": 1,
    },
    Problem.STUCK: {"stuck_s": 60.0, "stuck_at": "g:t:0", "members": 1, "in_flight": 2},
    Problem.LOST_BEFORE_DELIVERY: {"lost_records": 3, "lost_age_s": 10.0, "members": 1},
}


def signals_with_problem(**figures: object) -> GroupSignals:
    signals = GroupSignals(group="workers", **figures)  # type: ignore[arg-type]
    signals.problem, signals.message = find_problem(signals, LIMITS)
    return signals


@pytest.mark.parametrize("problem", Problem)
def test_each_problem_is_detected_from_its_values(problem: Problem) -> None:
    signals = signals_with_problem(**CASES[problem])
    assert signals.problem is problem
    assert bool(signals.message) is (problem is not Problem.NONE)


def test_most_severe_problem_is_reported() -> None:
    figures: dict[str, object] = {}
    for problem in Problem:
        if problem is Problem.NO_CONSUMERS:
            continue
        figures |= CASES[problem]
        assert signals_with_problem(**figures).problem is problem


@pytest.mark.parametrize(
    "figures",
    [
        {"stuck_s": 59.9, "stuck_at": "g:t:0", "members": 1},
        {"lost_records": 3, "lost_age_s": 3_600.0, "members": 1},
        {"lag": 0, "members": 0},
        {"lag": 5, "members": -1},
        {"released_rate": 50.0, "acknowledged_rate": 60.0, "rejected_rate": 0.0, "redelivered": 100},
        {"released_rate": 50.0, "acknowledged_rate": 0.0, "rejected_rate": 0.0, "redelivered": 99},
        {"released_rate": 0.9, "acknowledged_rate": 0.0, "rejected_rate": 0.0, "redelivered": 100},
        {"stuck_s": 600.0, "stuck_at": "g:t:0", "members": 0},
    ],
)
def test_values_below_a_limit_are_no_problem(figures: dict[str, object]) -> None:
    assert signals_with_problem(**figures).problem is Problem.NONE
