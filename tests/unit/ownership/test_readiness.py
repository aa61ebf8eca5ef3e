"""The readiness that a replica reports to its group while its main loop hangs."""

from coordinator.cluster.ownership.lease import Lease
from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.cluster.ownership.readiness import Readiness
from tests.unit.ownership.replicas import RecordingListener

LIMITS = GroupLimits()


def test_replica_whose_main_loop_hangs_reports_that_it_is_not_ready() -> None:
    now_s = [0.0]
    lease = Lease(LIMITS.lease_s, lambda: now_s[0])
    readiness = Readiness(RecordingListener(), lease, LIMITS, lambda: now_s[0])
    for _ in range(2):
        readiness.record_loop_alive()
        assert readiness.report_readiness()
        hangs_s = LIMITS.session_timeout_s + LIMITS.unready_after_s
        while hangs_s > 0:
            assert readiness.report_readiness()
            now_s[0] += 1.0
            hangs_s -= 1.0
            lease.renew(now_s[0])
            readiness.has_changed()
        now_s[0] += 1.0
        assert not readiness.report_readiness()
        now_s[0] += 1.0
        readiness.record_loop_alive()
        assert readiness.has_changed()
