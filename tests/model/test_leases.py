"""Test that no state of the lease model allows a stale read, and that the check detects each defect."""

import pytest

from tests.model.check import check_model
from tests.model.leases import CheckBounds, LeaseRules

BOUNDS = CheckBounds(lease_ticks=1, claims=2, writes=1)


@pytest.mark.parametrize(
    "bounds", [BOUNDS._replace(renewals=0), BOUNDS._replace(releases=0)], ids=["releases", "renewals"]
)
def test_no_state_allows_a_stale_read(bounds: CheckBounds) -> None:
    result = check_model(LeaseRules(), bounds)
    assert result.trace is None
    # With wrong bounds, the check would visit only few states.
    assert result.states > 50_000


@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        # A broker that is partitioned together with the owner returns an old end offset for ever.
        pytest.param(
            LeaseRules(lease_from_log=False), BOUNDS, id="the end offset of the broker replaces the lease"
        ),
        pytest.param(LeaseRules(waits=False), BOUNDS, id="no wait for an earlier lease"),
        pytest.param(
            LeaseRules(waits_after_own_claim=False),
            BOUNDS._replace(claims=3),
            id="no wait after an own unread claim",
        ),
        pytest.param(LeaseRules(lease_from_sending=False), BOUNDS, id="the lease begins with the response"),
        pytest.param(
            LeaseRules(success_only_at_expected_offset=False),
            BOUNDS,
            id="an append at any offset is acknowledged",
        ),
        pytest.param(
            LeaseRules(unknown_lease_is_longest=False),
            BOUNDS._replace(writes=2, releases=0),
            id="no wait for a lease of unknown length",
        ),
    ],
)
def test_each_defect_allows_a_stale_read(rules: LeaseRules, bounds: CheckBounds) -> None:
    assert check_model(rules, bounds).trace is not None
