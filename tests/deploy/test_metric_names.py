"""Test `metric_names`, which finds the metrics of a PromQL expression for other tests."""

import pytest

from tests.deploy.prometheus import metric_names


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up", {"up"}),
        ('sum by (a) (rate(x_total{b="c"}[5m])) / scalar(y:z) > 0.5', {"x_total", "y:z"}),
        ("a unless a offset 5m or (b and on (l) c)", {"a", "b", "c"}),
        ("max_over_time(rate(x_total[1m])[5m:10s])", {"x_total"}),
        ("topk(10, -a - b)", {"a", "b"}),
        ("vector(1)", set()),
    ],
)
def test_every_metric_of_expression_is_found(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_invalid_expression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        metric_names("sum by (a (x)")
