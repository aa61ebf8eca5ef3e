"""The membership thread: it sends heartbeats while the main loop is busy, and reports a main loop that
hangs.
"""

import threading
from time import monotonic

import pytest

from coordinator.cluster.kafka.group import GroupClient
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.messages import decode_metadata
from tests.unit.ownership.fake_group import FakeGroup
from tests.unit.ownership.replicas import ReplicaGroup

LIMITS = GroupLimits(
    session_timeout_s=5.0, heartbeat_interval_s=0.01, unready_after_s=0.02, rebalance_pause_s=0.01
)


@pytest.mark.slow
async def test_heartbeats_continue_while_the_main_loop_is_busy_or_hangs() -> None:
    group = FakeGroup(session_s=LIMITS.session_timeout_s, rebalance_s=LIMITS.rebalance_timeout_s)

    def reports_ready() -> bool:
        return all(decode_metadata(member.metadata).ready for member in list(group.members.values()))

    def block_main_loop(beats: int = 0, ready: bool = True) -> None:
        """Block the main loop until enough heartbeats were sent and the replica reports `ready`."""
        goal, deadline_s = group.requests.count("heartbeat") + beats, monotonic() + 60.0
        while group.requests.count("heartbeat") < goal or reports_ready() != ready:
            assert monotonic() < deadline_s
            threading.Event().wait(0.001)

    def make_client() -> GroupClient:
        return group.new_client()

    fleet = ReplicaGroup(make_client, limits=LIMITS, monotonic=monotonic, own_thread=True)
    (one,) = await fleet.add_all(1)
    block_main_loop(beats=10)
    assert one.ownership.lease_is_fresh()
    assert one.ownership.generation == 1
    block_main_loop(ready=False)
    assert one.ownership.lease_is_fresh()
    await fleet.wait_until(reports_ready)
    await one.ownership.drain(10.0)
    assert one.owned == set()
    await fleet.stop()
    await fleet.stop()
    # The stopped thread ends without a long wait.
    await fleet.wait_until(lambda: not any(thread.name == "ownership" for thread in threading.enumerate()))
