"""Draw a run of several coordinators from a seed. See `tests.simulation.plan`.

If elections lose acknowledged records, histories are checked in eras, and no broker is disconnected. A
disconnected broker would continue to return the lost records.
"""

from dataclasses import dataclass, field, replace
from random import Random

from coordinator.log.kafka import KafkaLogLimits
from coordinator.log.kafka.ownership import CLOCK_DRIFT_MAX
from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.server import ServerLimits
from coordinator.shard import SnapshotPolicy
from tests.simulation.kafka.brokers import BrokerFaults
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.pipes import NetFaults
from tests.simulation.plan import (
    Load,
    draw_interval,
    draw_load,
    draw_log_uniform,
    draw_net,
    draw_policy,
    draw_rate,
    draw_runtime_limits,
)

FAULTY_S = 90.0
OPS_MAX = 200
# The maximum duration of a pause of a process, as a multiple of the mean.
PAUSE_FACTOR_MAX = 4


@dataclass(frozen=True)
class KafkaNemesis:
    """The faults of coordinators and brokers. Intervals and durations are means in seconds. None
    disables a fault.
    """

    crash_s: float | None = None
    stop_s: float | None = None
    down_s: float = 2.0
    pause_s: float | None = None
    paused_s: float = 8.0
    # A coordinator is disconnected from some brokers, the membership, or both.
    part_s: float | None = None
    parted_s: float = 8.0
    # A broker is disconnected from the others. A coordinator may be disconnected together with it.
    cut_off_s: float | None = None
    cut_off_for_s: float = 8.0
    # A broker and a coordinator are isolated together.
    island_s: float | None = None
    island_for_s: float = 20.0
    # The probability that writers cannot reach the disconnected coordinator.
    apart_rate: float = 0.5
    broker_dies_s: float | None = None
    broker_down_s: float = 3.0
    leader_moves_s: float | None = None
    shuffle_s: float | None = None
    clock_jump_s: float | None = None
    clock_jump_max_ms: int = 3_600_000
    producers_expire_s: float | None = None
    unclean_s: float | None = None
    # The mean time until a broker is disconnected from the others for the rest of the run. Coordinators reach
    # it, and it answers with its old metadata.
    stale_s: float | None = None
    # The coordinators of share groups load their groups.
    groups_load_s: float | None = None
    groups_load_for_s: float = 20.0
    # An operator hands shards over through HTTP.
    http_writes_s: float | None = None
    # The appends of a coordinator are delayed, at most by the maximum delay of a late request.
    hold_s: float | None = None
    held_s: float = 8.0
    held_alone_rate: float = 0.5


@dataclass(frozen=True)
class KafkaPlan:
    """The parameters of a run that are decided before its start."""

    seed: int
    # The situation that the run should reach. See `tests.simulation.kafka.scenarios`.
    scenario: str = "any"
    # Whether the members of the group have a group.instance.id.
    named: bool = False
    # Whether coordinators remove the state of empty and deleted groups.
    expiry: bool = False
    # Whether coordinators forward operations to the owners, and most requests are sent to other coordinators.
    forwarding: bool = False
    coordinators: int = 2
    brokers: int = 3
    state_partitions: int = 3
    # Node ids of one coordinator. Clients know one node id for each coordinator.
    node_ids: int = 1
    ops_max: int = OPS_MAX
    faulty_s: float = FAULTY_S
    quiet_points: int = 1
    # The rate of requests to a coordinator that is not the assigned owner.
    astray_rate: float = 0.1
    load: Load = field(default_factory=Load)
    nemesis: KafkaNemesis = field(default_factory=KafkaNemesis)
    net: NetFaults = field(default_factory=NetFaults)
    broker_faults: BrokerFaults = field(default_factory=BrokerFaults)
    membership: MembershipFaults = field(default_factory=MembershipFaults)
    log_limits: KafkaLogLimits = field(default_factory=KafkaLogLimits)
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    runtime_limits: RuntimeLimits = field(default_factory=RuntimeLimits)
    server_limits: ServerLimits = field(default_factory=ServerLimits)
    cold_interval_ms: int = 5_000
    prune_interval_ms: int = 5_000
    # The maximum speed of a coordinator's clock relative to virtual time. If clocks differ by more than
    # leases allow, reads are only guaranteed to be no older than a lease.
    clock_rate_max: float = 1.0 + CLOCK_DRIFT_MAX

    @property
    def read_age_max_s(self) -> float:
        """Return the maximum age in seconds of the state in a response."""
        return self.log_limits.lease_s if self.clock_rate_max > 1.0 + CLOCK_DRIFT_MAX else 0.0

    @property
    def kind(self) -> str:
        """Return the scenario of this run as text."""
        return (
            f"kafka, {self.scenario}"
            + ", forwarding" * self.forwarding
            + ", expiry" * self.expiry
            + ", http writes" * (self.nemesis.http_writes_s is not None)
        )

    @property
    def settled_s(self) -> float:
        """Return the seconds after which an operation can have no effect, if there are no faults."""
        net, limits = self.net, self.log_limits
        way_s = 10 * (net.latency_s + 5 * net.jitter_s + 5 * (net.stall_s if net.stall_rate else 0.0))
        late_s = self.broker_faults.late_max_s + self.broker_faults.replicas_late_max_s
        append_s = limits.append_timeout_s + 2 * limits.request_timeout_s + late_s
        return self._coordinators_on_path * (self.runtime_limits.request_age_max_s + way_s) + append_s + 5.0

    @property
    def _coordinators_on_path(self) -> int:
        return 2 if self.forwarding else 1

    @property
    def latest_effect_s(self) -> float:
        """Return `settled_s` plus three pauses of each process: before the receipt, in the queue, during the
        append.
        """
        paused_s = PAUSE_FACTOR_MAX * self.nemesis.paused_s if self.nemesis.pause_s else 0.0
        return self.settled_s + 3 * self._coordinators_on_path * paused_s

    @property
    def has_response_deadline(self) -> bool:
        """Return False: a response may have to wait for the end of a pause."""
        return False

    def without_faults(self) -> "KafkaPlan":
        """Return the plan without faults."""
        quick = NetFaults(
            latency_s=self.net.latency_s,
            send_buffer_bytes=self.net.send_buffer_bytes,
            high_water_bytes=self.net.high_water_bytes,
        )
        limits = self.runtime_limits
        # Delays are random without an upper limit, so the average is far below each timeout.
        slow_s = min(limits.write_timeout_s / 100, self.log_limits.request_timeout_s / 20)
        sound = BrokerFaults(
            travel_s=min(self.broker_faults.travel_s, slow_s),
            elections_s=0.2,
            transactional=self.broker_faults.transactional,
            metadata_delay_s=self.broker_faults.metadata_delay_s,
        )
        calm = replace(self.membership, lost_rate=0.0)
        astray_rate = self.astray_rate if self.forwarding else 0.02
        return replace(self, net=quick, broker_faults=sound, membership=calm, astray_rate=astray_rate)


def draw_random_plan(seed: int) -> KafkaPlan:
    """Draw a run in which any fault may occur."""
    rng = Random(seed)
    nemesis = _draw_nemesis(rng)
    if nemesis.unclean_s is not None:
        nemesis = replace(nemesis, cut_off_s=None)
    membership = _draw_membership(rng)
    return KafkaPlan(
        seed,
        coordinators=rng.randrange(2, 4),
        brokers=rng.randrange(1, 5),
        state_partitions=rng.randrange(1, 6),
        quiet_points=rng.randrange(2),
        astray_rate=draw_rate(rng, 0.01, 0.5),
        load=_draw_load(rng),
        nemesis=nemesis,
        net=draw_net(rng),
        broker_faults=_draw_broker_faults(rng),
        membership=membership,
        log_limits=KafkaLogLimits(
            request_timeout_s=draw_log_uniform(rng, 0.2, 5.0),
            append_timeout_s=draw_log_uniform(rng, 0.5, 10.0),
            start_timeout_s=5.0,
            lease_s=draw_log_uniform(Random(seed ^ 0x1EA5E), 0.3, 6.0),
        ),
        policy=draw_policy(rng),
        runtime_limits=_draw_runtime_limits(rng, membership),
        cold_interval_ms=int(draw_log_uniform(rng, 500, 60_000)),
        prune_interval_ms=int(draw_log_uniform(rng, 500, 20_000)),
    )


def _draw_load(rng: Random) -> Load:
    """Draw a load that is slow enough for assignments to change meanwhile."""
    return replace(
        draw_load(rng),
        brokers=rng.randrange(1, 3),
        leaders_per_key=rng.randrange(1, 3),
        think_s=draw_log_uniform(rng, 0.5, 10.0),
        stranger_think_s=draw_log_uniform(rng, 0.5, 10.0),
        stranger_pipeline_max=rng.choice((1, 1, 3)),
        watch_s=draw_interval(rng, 0.2, 5.0),
        library_users=rng.choice((0, 0, 1)),
        library_calls=rng.choice((1, 2)),
    )


def _draw_nemesis(rng: Random) -> KafkaNemesis:
    return KafkaNemesis(
        crash_s=draw_interval(rng, 2.0, 60.0),
        stop_s=draw_interval(rng, 2.0, 60.0, 0.3),
        down_s=draw_log_uniform(rng, 0.1, 10.0),
        pause_s=draw_interval(rng, 2.0, 40.0),
        paused_s=draw_log_uniform(rng, 0.2, 15.0),
        part_s=draw_interval(rng, 2.0, 40.0),
        parted_s=draw_log_uniform(rng, 0.5, 15.0),
        cut_off_s=draw_interval(rng, 2.0, 20.0, 0.5),
        cut_off_for_s=draw_log_uniform(rng, 3.0, 40.0),
        broker_dies_s=draw_interval(rng, 2.0, 60.0, 0.4),
        broker_down_s=draw_log_uniform(rng, 0.1, 10.0),
        leader_moves_s=draw_interval(rng, 0.5, 20.0, 0.4),
        shuffle_s=draw_interval(rng, 0.5, 30.0),
        clock_jump_s=draw_interval(rng, 1.0, 60.0, 0.3),
        clock_jump_max_ms=int(draw_log_uniform(rng, 100, 10_000_000)),
        producers_expire_s=draw_interval(rng, 1.0, 30.0, 0.3),
        unclean_s=draw_interval(rng, 5.0, 60.0, 0.12),
    )


def _draw_membership(rng: Random) -> MembershipFaults:
    session_s = draw_log_uniform(rng, 2.0, 12.0)
    return MembershipFaults(
        heartbeat_s=session_s / rng.choice((3, 6)), session_s=session_s, lost_rate=draw_rate(rng, 0.01, 0.5)
    )


def _draw_broker_faults(rng: Random) -> BrokerFaults:
    return BrokerFaults(
        travel_s=draw_log_uniform(rng, 0.0002, 0.05),
        request_lost_rate=draw_rate(rng, 0.002, 0.2),
        answer_lost_rate=draw_rate(rng, 0.002, 0.3),
        late_rate=draw_rate(rng, 0.002, 0.2),
        late_max_s=draw_log_uniform(rng, 0.1, 15.0),
        error_rate=draw_rate(rng, 0.002, 0.2),
        forgets_rate=draw_rate(rng, 0.1, 1.0, 0.3),
        elections_s=draw_log_uniform(rng, 0.02, 3.0),
        transactional=rng.random() < 0.7,
    )


def _draw_runtime_limits(rng: Random, membership: MembershipFaults) -> RuntimeLimits:
    limits = draw_runtime_limits(rng)
    return limits._replace(
        reload_backoff_max_s=draw_log_uniform(rng, 0.5, 10.0),
        release_wait_s=membership.session_s + 1.0,
    )
