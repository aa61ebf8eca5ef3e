"""The times of membership in a group."""

from typing import NamedTuple

# The part of the time-outs that a lease lasts. The rest is for clocks that run unequally, and for the
# time that an answer takes: Kafka begins to count when it hears from us, we when we begin to speak.
LEASE_FRACTION = 0.8


class GroupLimits(NamedTuple):
    """Seconds, but for the counts. The first three are Kafka's `session.timeout.ms` and so on.

    `session_timeout_s`: a member that Kafka has not heard of for so long is thrown out.
    `rebalance_timeout_s`: a member that takes longer to join again is left behind.
    `retry_pause_first_s`, `retry_pause_max_s`: from one attempt to the next while Kafka does not answer.
    `rebalance_pause_s`: from the last rebalance to one that this member asks for; draining does not wait.
    `reachability_interval_s` is that pause if the rebalance only improves where shards are: what several
    members notice one after the other is one rebalance.
    `unready_after_s`: how long we must be unready before the others hear of it.
    `reachability_interval_s`: from one look at which brokers answer us to the next. Two in a row must be
    further apart than Kafka takes to miss a broker that died (broker.session.timeout.ms, 9 s) and move its
    leaders. `locality_interval_s`: how often the group's leader looks whether shards could be nearer to their
    leaders, `locality_moves_max`: how many it moves at once for that.
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
        """How long a lease lasts: others get our shards if a session or a rebalance goes by without us."""
        return min(self.session_timeout_s, self.rebalance_timeout_s) * LEASE_FRACTION
