"""Test that no state of the lease model returns a stale read, and that the model detects each mistake."""

import pytest

from tests.model.leases import CheckBounds, LeaseRules, check_model

SCOPE = CheckBounds(lease_ticks=1, claims=2, writes=1)


@pytest.mark.parametrize(
    "scope", [SCOPE._replace(renewals=0), SCOPE._replace(releases=0)], ids=["releases", "renewals"]
)
def test_no_schedule_returns_stale_read(scope: CheckBounds) -> None:
    result = check_model(LeaseRules(), scope)
    assert result.trace is None
    # Guard against a scope that visits only few states.
    assert result.states > 50_000


@pytest.mark.parametrize(
    ("rules", "scope"),
    [
        # An owner that is partitioned with its broker gets a stale end offset, so its reads may be stale for
        # ever.
        pytest.param(
            LeaseRules(lease_from_log=False), SCOPE, id="the broker is asked for the end of the log"
        ),
        pytest.param(LeaseRules(waits=False), SCOPE, id="no wait for an earlier lease"),
        pytest.param(
            LeaseRules(waits_after_own_claim=False), SCOPE._replace(claims=3), id="no wait after an own claim"
        ),
        pytest.param(LeaseRules(lease_from_sending=False), SCOPE, id="the lease counts from the answer"),
        pytest.param(
            LeaseRules(success_only_at_expected_offset=False), SCOPE, id="success is believed at any offset"
        ),
        pytest.param(
            LeaseRules(unknown_lease_is_longest=False),
            SCOPE._replace(writes=2, releases=0),
            id="an unknown lease is taken for none",
        ),
    ],
)
def test_each_mistake_returns_stale_read(rules: LeaseRules, scope: CheckBounds) -> None:
    assert check_model(rules, scope).trace is not None
