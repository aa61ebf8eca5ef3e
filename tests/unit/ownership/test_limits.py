"""The lease of a group member ends before its session timeout and its rebalance timeout."""

import pytest

from coordinator.cluster.ownership.limits import LEASE_FRACTION, GroupLimits


@pytest.mark.parametrize(("session_s", "rebalance_s"), [(6.0, 10.0), (10.0, 6.0)])
def test_lease_is_shorter_than_session_and_rebalance_timeout(session_s: float, rebalance_s: float) -> None:
    limits = GroupLimits(session_timeout_s=session_s, rebalance_timeout_s=rebalance_s)
    assert LEASE_FRACTION < 1
    assert limits.lease_s == 6.0 * LEASE_FRACTION
