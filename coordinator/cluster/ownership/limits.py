"""Timeouts and intervals of the group membership."""

from typing import NamedTuple

# The duration of a lease as a fraction of Kafka's timeouts. The remaining 0.2 allows for differences between
# clock rates. Latency is harmless, because a lease starts when a request is sent, and Kafka's timeout when it
# arrives.
LEASE_FRACTION = 0.8


class GroupLimits(NamedTuple):
    """Timeouts and intervals in seconds, and counts.

    `session_timeout_s`: Kafka removes a member without a heartbeat for this time (`session.timeout.ms`).
    `heartbeat_interval_s`: the interval of heartbeats. `rebalance_timeout_s`: a member that takes longer to
    rejoin is left out. `retry_pause_first_s`, `retry_pause_max_s`: the pause between attempts while Kafka
    does not answer. `rebalance_pause_s`: the pause between a rebalance and one that this member requests;
    draining does not wait.

    `reachability_interval_s`: the interval of probes of brokers. Two probes must be further apart than the
    time in which Kafka detects a dead broker (broker.session.timeout.ms, 9 s) and moves its leaders.
    `reachability_interval_s` is also the pause before a rebalance that only improves the placement, so that
    several members' observations cause one rebalance.

    `unready_after_s`: how long this process must be unready before it reports this to the group.
    `locality_interval_s`: how often the group's leader checks whether shards could be closer to their
    partition leaders. `locality_moves_max`: the maximum number of shards that one locality check moves.
    `leave_timeout_s`: how long leaving may take.
    """

    session_timeout_s: float = 10.0
    heartbeat_interval_s: float = 1.0
    rebalance_timeout_s: float = 10.0
    retry_pause_first_s: float = 0.1
    retry_pause_max_s: float = 2.0
    rebalance_pause_s: float = 2.0
    unready_after_s: float = 3.0
    reachability_interval_s: float = 10.0
    locality_interval_s: float = 300.0
    locality_moves_max: int = 10
    leave_timeout_s: float = 1.0

    @property
    def lease_s(self) -> float:
        """The duration of a lease: after a missed session or rebalance, other members get the shards."""
        return min(self.session_timeout_s, self.rebalance_timeout_s) * LEASE_FRACTION
