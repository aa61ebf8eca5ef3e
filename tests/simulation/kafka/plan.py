"""Draw the plan of a simulation of several coordinators from its seed. See `tests.simulation.plan`.

If unclean elections lose acknowledged records, `log_truncation` checks the history. Then no broker is
disconnected, because a disconnected broker would continue to return the lost records.
"""

from dataclasses import dataclass, field, replace
from random import Random

from coordinator.log.kafka import KafkaLogLimits
from coordinator.log.kafka.ownership import CLOCK_DRIFT_MAX
from coordinator.serve.runtime import RuntimeLimits
from tests.simulation.kafka.brokers import BrokerFaults
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.plan import (
    Nemesis,
    SimulationPlan,
    Workload,
    draw_interval,
    draw_log_uniform,
    draw_network_faults,
    draw_rate,
    draw_runtime_limits,
    draw_snapshot_policy,
    draw_workload,
)

FAULTY_S = 90.0
OPS_MAX = 200
# The maximum duration of a pause of a process, as a multiple of the mean duration.
PAUSE_FACTOR_MAX = 4


@dataclass(frozen=True)
class KafkaNemesis(Nemesis):
    """The faults of coordinators and brokers. Intervals and durations are means in seconds."""

    # A coordinator is paused, as by SIGSTOP.
    pause_s: float | None = None
    paused_s: float = 8.0
    # A coordinator is disconnected from some brokers, from the group coordinator, or from both.
    disconnect_s: float | None = None
    disconnected_s: float = 8.0
    # A broker is disconnected from the others. A coordinator may be disconnected together with the broker.
    isolate_broker_s: float | None = None
    broker_isolated_s: float = 8.0
    # A broker and a coordinator are isolated together.
    isolate_owner_s: float | None = None
    owner_isolated_s: float = 20.0
    # The probability that writers cannot reach the disconnected coordinator.
    unreachable_rate: float = 0.5
    # A broker dies, and starts again.
    broker_dies_s: float | None = None
    broker_down_s: float = 3.0
    leader_moves_s: float | None = None
    # A member is removed from the group, or the group moves to another broker.
    shuffle_s: float | None = None
    producers_expire_s: float | None = None
    # An unclean election loses the newest records of a partition.
    unclean_s: float | None = None
    # The mean time until a broker is disconnected from the others for the rest of the run. Coordinators can
    # reach this broker, which answers with its old metadata.
    isolate_for_rest_s: float | None = None
    # For a while, the coordinators of share groups answer COORDINATOR_LOAD_IN_PROGRESS.
    groups_load_s: float | None = None
    groups_loaded_after_s: float = 20.0
    # An operator requests hand-overs of shards through the HTTP API.
    hand_over_s: float | None = None
    # The appends of a coordinator are delayed; the maximum is the delay of a late request.
    delay_appends_s: float | None = None
    appends_delayed_s: float = 8.0
    # The fraction of coordinators with delayed appends that is also disconnected from the group coordinator.
    delayed_without_group_rate: float = 0.5


@dataclass(frozen=True)
class KafkaPlan(SimulationPlan):
    """The parameters of a simulation of several coordinators."""

    ops_max: int = OPS_MAX
    faulty_s: float = FAULTY_S
    nemesis: KafkaNemesis = field(default_factory=KafkaNemesis)
    # The rare situation that the simulation should reach. See `scenarios`.
    scenario: str = "any"
    # Whether the members of the group have a group.instance.id.
    named: bool = False
    # Whether coordinators remove the state of empty and deleted groups.
    expiry: bool = False
    # Whether coordinators forward operations to the owners, and most requests are sent to other coordinators.
    forwarding: bool = False
    coordinators: int = 2
    brokers: int = 3
    # The fraction of requests to a coordinator that is not the assigned owner.
    misrouted_rate: float = 0.1
    broker_faults: BrokerFaults = field(default_factory=BrokerFaults)
    membership: MembershipFaults = field(default_factory=MembershipFaults)
    log_limits: KafkaLogLimits = field(default_factory=KafkaLogLimits)
    # The maximum speed of a coordinator's clock relative to virtual time. If clocks differ by more than
    # leases allow, reads are only guaranteed to be no older than a lease.
    clock_rate_max: float = 1.0 + CLOCK_DRIFT_MAX

    @property
    def read_age_max_s(self) -> float:
        """The maximum age of the state in a response, in seconds; 0 if reads must be current."""
        return self.log_limits.lease_s if self.clock_rate_max > 1.0 + CLOCK_DRIFT_MAX else 0.0

    @property
    def kind(self) -> str:
        """The kind and the scenario of the simulation, for messages to the user."""
        return (
            f"kafka, {self.scenario}"
            + ", forwarding" * self.forwarding
            + ", expiry" * self.expiry
            + ", http writes" * (self.nemesis.hand_over_s is not None)
        )

    @property
    def latest_effect_of_request_without_faults_s(self) -> float:
        """The seconds after which a request cannot take effect any more if no fault is active."""
        limits = self.log_limits
        late_s = self.broker_faults.late_max_s + self.broker_faults.replicas_late_max_s
        append_s = limits.append_timeout_s + 2 * limits.request_timeout_s + late_s
        return (
            self._coordinators_on_path * (self.runtime_limits.request_age_max_s + self.delivery_max_s)
            + append_s
            + 5.0
        )

    @property
    def _coordinators_on_path(self) -> int:
        return 2 if self.forwarding else 1

    @property
    def latest_effect_s(self) -> float:
        """The seconds after which a request cannot take effect, including three pauses of each process.

        A process may be paused before it receives the request, in its queue, and during the append.
        """
        paused_s = PAUSE_FACTOR_MAX * self.nemesis.paused_s if self.nemesis.pause_s else 0.0
        return self.latest_effect_of_request_without_faults_s + 3 * self._coordinators_on_path * paused_s

    def without_faults(self) -> "KafkaPlan":
        """Return the plan without faults."""
        limits = self.runtime_limits
        # Random delays have no upper limit, so their mean must be far below each timeout.
        slow_s = min(limits.write_timeout_s / 100, self.log_limits.request_timeout_s / 20)
        sound = BrokerFaults(
            travel_s=min(self.broker_faults.travel_s, slow_s),
            elections_s=0.2,
            transactional=self.broker_faults.transactional,
            metadata_delay_s=self.broker_faults.metadata_delay_s,
        )
        membership = replace(self.membership, lost_rate=0.0)
        misrouted_rate = self.misrouted_rate if self.forwarding else 0.02
        return replace(
            self,
            net=self.net_without_faults,
            broker_faults=sound,
            membership=membership,
            misrouted_rate=misrouted_rate,
        )


def draw_random_plan(seed: int) -> KafkaPlan:
    """Draw a plan in which any fault may occur."""
    rng = Random(seed)
    nemesis = _draw_nemesis(rng)
    if nemesis.unclean_s is not None:
        nemesis = replace(nemesis, isolate_broker_s=None)
    membership = _draw_membership(rng)
    return KafkaPlan(
        seed,
        coordinators=rng.randrange(2, 4),
        brokers=rng.randrange(1, 5),
        state_partitions=rng.randrange(1, 6),
        quiet_points=rng.randrange(2),
        misrouted_rate=draw_rate(rng, 0.01, 0.5),
        load=_draw_workload(rng),
        nemesis=nemesis,
        net=draw_network_faults(rng),
        broker_faults=_draw_broker_faults(rng),
        membership=membership,
        log_limits=KafkaLogLimits(
            request_timeout_s=draw_log_uniform(rng, 0.2, 5.0),
            append_timeout_s=draw_log_uniform(rng, 0.5, 10.0),
            start_timeout_s=5.0,
            lease_s=draw_log_uniform(Random(seed ^ 0x1EA5E), 0.3, 6.0),
        ),
        policy=draw_snapshot_policy(rng),
        runtime_limits=_draw_runtime_limits(rng, membership),
        cold_interval_ms=int(draw_log_uniform(rng, 500, 60_000)),
        prune_interval_ms=int(draw_log_uniform(rng, 500, 20_000)),
    )


def _draw_workload(rng: Random) -> Workload:
    """Draw a workload so slow that many assignments change before the operations end."""
    return replace(
        draw_workload(rng),
        brokers=rng.randrange(1, 3),
        leaders_per_key=rng.randrange(1, 3),
        think_s=draw_log_uniform(rng, 0.5, 10.0),
        hostile_pause_s=draw_log_uniform(rng, 0.5, 10.0),
        hostile_pipeline_max=rng.choice((1, 1, 3)),
        poll_s=draw_interval(rng, 0.2, 5.0),
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
        disconnect_s=draw_interval(rng, 2.0, 40.0),
        disconnected_s=draw_log_uniform(rng, 0.5, 15.0),
        isolate_broker_s=draw_interval(rng, 2.0, 20.0, 0.5),
        broker_isolated_s=draw_log_uniform(rng, 3.0, 40.0),
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
