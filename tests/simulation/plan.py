"""Draw the parameters of a simulation (its plan) from the seed: sizes, limits, load, and fault rates.

Each kind of fault is disabled for about half of the seeds, because some defects appear only with few faults
or with an idle shard. The rates of the enabled faults span orders of magnitude.
"""

from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random
from typing import Literal, Self

from coordinator.serve.runtime import RuntimeLimits
from coordinator.serve.server import ServerLimits
from coordinator.shard import SnapshotPolicy
from tests.simulation.disk import DiskFaults
from tests.simulation.pipes import NetFaults

# The default length of the phase with faults, in virtual seconds.
FAULTY_S = 120.0
# The phase with faults ends after this number of operations.
OPS_MAX = 350

# An upper limit of the operations that all clients together have in progress.
OPERATIONS_AT_A_TIME_MAX = 1_000


@dataclass(frozen=True)
class Workload:
    """The clients and their rates. Times are means of exponentially distributed pauses, in seconds."""

    groups: int = 1
    topics: int = 1
    partitions: int = 2
    brokers: int = 2
    leaders_per_key: int = 2
    # The mean pause of a share-partition leader between two writes, and the mean time until the leader is
    # replaced.
    think_s: float = 0.05
    writes_outstanding_max: int = 2
    lead_s: float = 10.0
    # The interval of the resets and deletions of a group coordinator.
    reset_s: float = 20.0
    # The mean number of seconds between a deletion and the next initialization.
    deleted_s: float = 1.0
    # The interval at which a group coordinator reads summaries.
    summary_s: float = 5.0
    # The mean interval of polling readers, in seconds. None: no polling readers.
    poll_s: float | None = None
    polling_readers: int = 1
    # The fraction of summaries among the requests of polling readers. The other requests are reads, which
    # store the leader epoch if it is new.
    summary_rate: float = 0.5
    # The number of users of the client library, and of concurrent calls of each user.
    library_users: int = 0
    library_calls: int = 3
    hostile_clients: int = 1
    hostile_pause_s: float = 1.0
    hostile_pipeline_max: int = 4
    # The interval of invalid or incomplete requests. None: no such requests.
    garbage_s: float | None = None
    # The fraction of requests before which a broker sends FindCoordinator.
    look_up_rate: float = 0.1
    slow_reader_rate: float = 0.0
    # Whether coordinators know which topics exist, so that they refuse requests for other topics.
    topics_listed: bool = False


@dataclass(frozen=True)
class Nemesis:
    """The faults of coordinators (Jepsen's term): mean intervals and durations in seconds; None: never."""

    crash_s: float | None = None
    # The fraction of crashes that are soon followed by another crash.
    crash_again_rate: float = 0.0
    # The fraction of starts and stops that are interrupted by a crash.
    interrupt_rate: float = 0.0
    stop_s: float | None = None
    down_s: float = 2.0
    clock_jump_s: float | None = None
    clock_jump_max_ms: int = 3_600_000


@dataclass(frozen=True)
class MachineNemesis(Nemesis):
    """The faults of a coordinator with a journal, and of its machine."""

    # The network between clients and the coordinator is blocked.
    block_network_s: float | None = None
    network_blocked_s: float = 2.0
    # The whole machine is suspended.
    suspend_s: float | None = None
    suspended_s: float = 5.0
    # The disk is full.
    fill_s: float | None = None
    full_s: float = 2.0


@dataclass(frozen=True)
class SimulationPlan:
    """The parameters that all kinds of simulation have."""

    seed: int
    state_partitions: int = 3
    # The number of node ids that FindCoordinator returns for one coordinator.
    node_ids: int = 1
    ops_max: int = OPS_MAX
    faulty_s: float = FAULTY_S
    quiet_points: int = 1
    load: Workload = field(default_factory=Workload)
    nemesis: Nemesis = field(default_factory=Nemesis)
    net: NetFaults = field(default_factory=NetFaults)
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    runtime_limits: RuntimeLimits = field(default_factory=RuntimeLimits)
    server_limits: ServerLimits = field(default_factory=ServerLimits)
    cold_interval_ms: int = 5_000
    prune_interval_ms: int = 5_000

    @property
    def kind(self) -> str:
        """The kind of the simulation, for messages to the user."""
        raise NotImplementedError

    @property
    def delivery_max_s(self) -> float:
        """The seconds in which the network delivers a request, if it is not blocked."""
        net = self.net
        return 10 * (net.latency_s + 5 * net.jitter_s + 5 * (net.stall_s if net.stall_rate else 0.0))

    @property
    def latest_effect_s(self) -> float:
        """The seconds after which a request that was sent cannot take effect any more."""
        raise NotImplementedError

    @property
    def latest_effect_of_request_without_faults_s(self) -> float:
        """The seconds after which a request cannot take effect any more if no fault is active."""
        return self.latest_effect_s

    @property
    def net_without_faults(self) -> NetFaults:
        """The network without faults."""
        net = self.net
        return NetFaults(
            latency_s=net.latency_s,
            send_buffer_bytes=net.send_buffer_bytes,
            high_water_bytes=net.high_water_bytes,
        )

    def without_faults(self) -> Self:
        """Return the same plan without faults."""
        raise NotImplementedError

    def with_duration(self, minutes: float | None) -> Self:
        """Return the plan with `minutes` as length of the phase with faults, without limit on operations."""
        if minutes is None:
            return self
        return replace(self, faulty_s=60 * minutes, ops_max=1_000_000_000)


@dataclass(frozen=True)
class JournalPlan(SimulationPlan):
    """The parameters of a simulation of one coordinator with a journal."""

    nemesis: MachineNemesis = field(default_factory=MachineNemesis)
    journal_sync: Literal["always", "os"] = "always"
    disk_faults: DiskFaults = field(default_factory=DiskFaults)
    # The fraction of crashes that flip a bit on the disk.
    damage_rate: float = 0.0
    segment_bytes: int = 1 << 16

    @property
    def kind(self) -> str:
        return "alone"

    @property
    def latest_effect_s(self) -> float:
        """The seconds after which a request that was sent cannot take effect any more.

        The coordinator starts no operation that is older than `request_age_max_s`. The delivery of the
        request and the append add to this age.
        """
        nemesis = self.nemesis
        network_blocked_s = 8 * nemesis.network_blocked_s if nemesis.block_network_s else 0.0
        suspended_s = 8 * nemesis.suspended_s if nemesis.suspend_s else 0.0
        append_s = 10 * self.disk_faults.stall_s + 20.0
        return (
            self.runtime_limits.request_age_max_s
            + self.delivery_max_s
            + network_blocked_s
            + suspended_s
            + append_s
        )

    @property
    def has_response_deadline(self) -> bool:
        """Whether clients get each response before their timeout if no fault affects the connection."""
        return (
            self.nemesis.block_network_s is None
            and self.nemesis.suspend_s is None
            and not self.net.stall_rate
            # With a small request memory, incomplete frames of hostile clients could delay other clients
            # beyond the timeout.
            and self.server_limits.queued_bytes_max > 1 << 20
        )

    def plan_next_process(self, rng: Random) -> "JournalPlan":
        """Return the plan for the next process of the coordinator, sometimes with another configuration."""
        if rng.random() < 0.7:
            return self
        return replace(self, policy=draw_snapshot_policy(rng), segment_bytes=_draw_segment_bytes(rng))

    def without_faults(self) -> "JournalPlan":
        """Return the same plan without faults."""
        # The disk is so fast that no operation reaches the write timeout, even if many appends are needed for
        # all operations in progress. An append takes one write and one sync.
        limits = self.runtime_limits
        appends = OPERATIONS_AT_A_TIME_MAX / min(limits.operations_per_append_max, OPERATIONS_AT_A_TIME_MAX)
        step_s = limits.write_timeout_s / max(50, 4 * appends)
        sound = DiskFaults(
            write_s=min(self.disk_faults.write_s, step_s), sync_s=min(self.disk_faults.sync_s, step_s)
        )
        return replace(self, net=self.net_without_faults, disk_faults=sound)


def draw_log_uniform(rng: Random, low: float, high: float) -> float:
    return exp(rng.uniform(log(low), log(high)))


def draw_rate(rng: Random, low: float, high: float, chance: float = 0.5) -> float:
    """With probability `chance`, draw a rate; otherwise return 0."""
    return draw_log_uniform(rng, low, high) if rng.random() < chance else 0.0


def draw_interval(rng: Random, low: float, high: float, chance: float = 0.5) -> float | None:
    """With probability `chance`, draw a mean interval in seconds; otherwise return None (never)."""
    return draw_log_uniform(rng, low, high) if rng.random() < chance else None


def draw_plan(seed: int, *, minutes: float | None = None) -> JournalPlan:
    """Draw a plan.

    `minutes` is the length of the phase with faults in virtual time, or None for the default.
    """
    rng = Random(seed)
    plan = JournalPlan(
        seed,
        state_partitions=rng.randrange(1, 6),
        node_ids=rng.randrange(1, 5),
        quiet_points=rng.randrange(3),
        load=draw_workload(rng),
        nemesis=_draw_nemesis(rng),
        net=draw_network_faults(rng),
        journal_sync=rng.choice(("always", "always", "os")),
        disk_faults=_draw_disk_faults(rng),
        damage_rate=draw_rate(rng, 0.1, 0.7, 0.4),
        policy=draw_snapshot_policy(rng),
        runtime_limits=draw_runtime_limits(rng),
        server_limits=_draw_server_limits(rng),
        segment_bytes=_draw_segment_bytes(rng),
        cold_interval_ms=int(draw_log_uniform(rng, 500, 60_000)),
        prune_interval_ms=int(draw_log_uniform(rng, 500, 60_000)),
    )
    return plan.with_duration(minutes)


def draw_snapshot_policy(rng: Random) -> SnapshotPolicy:
    return SnapshotPolicy(
        updates_max=rng.choice((0, 1, 3, 10, 500)), update_bytes_min=rng.choice((1, 300, 16_384))
    )


def _draw_segment_bytes(rng: Random) -> int:
    return 1 << rng.randrange(12, 18)


def draw_workload(rng: Random) -> Workload:
    return Workload(
        groups=rng.randrange(1, 3),
        topics=rng.randrange(1, 3),
        partitions=rng.randrange(1, 4),
        brokers=rng.randrange(1, 4),
        leaders_per_key=rng.randrange(1, 4),
        think_s=draw_log_uniform(rng, 0.001, 5.0),
        writes_outstanding_max=rng.randrange(1, 5),
        lead_s=draw_log_uniform(rng, 0.5, 60.0),
        reset_s=draw_log_uniform(rng, 2.0, 120.0),
        summary_s=draw_log_uniform(rng, 0.2, 20.0),
        poll_s=draw_interval(rng, 0.02, 2.0),
        library_users=rng.choice((0, 0, 1, 2)),
        library_calls=rng.randrange(1, 5),
        hostile_clients=rng.randrange(3),
        hostile_pause_s=draw_log_uniform(rng, 0.005, 5.0),
        hostile_pipeline_max=rng.choice((1, 3, 20)),
        garbage_s=draw_interval(rng, 0.2, 10.0, 0.3),
        look_up_rate=rng.choice((0.02, 0.2, 1.0)),
        slow_reader_rate=draw_rate(rng, 0.01, 0.2, 0.3),
        topics_listed=rng.random() < 0.3,
    )


def _draw_nemesis(rng: Random) -> MachineNemesis:
    return MachineNemesis(
        crash_s=draw_interval(rng, 0.3, 60.0, 0.7),
        crash_again_rate=draw_rate(rng, 0.05, 0.9),
        interrupt_rate=draw_rate(rng, 0.05, 0.9),
        stop_s=draw_interval(rng, 2.0, 60.0, 0.3),
        down_s=draw_log_uniform(rng, 0.01, 10.0),
        block_network_s=draw_interval(rng, 1.0, 60.0, 0.3),
        network_blocked_s=draw_log_uniform(rng, 0.1, 10.0),
        suspend_s=draw_interval(rng, 5.0, 60.0, 0.2),
        suspended_s=draw_log_uniform(rng, 0.5, 40.0),
        clock_jump_s=draw_interval(rng, 1.0, 60.0, 0.4),
        clock_jump_max_ms=int(draw_log_uniform(rng, 100, 10_000_000)),
        fill_s=draw_interval(rng, 1.0, 60.0, 0.4),
        full_s=draw_log_uniform(rng, 0.1, 20.0),
    )


def draw_network_faults(rng: Random) -> NetFaults:
    return NetFaults(
        latency_s=draw_log_uniform(rng, 0.0001, 0.05),
        jitter_s=draw_rate(rng, 0.0001, 0.5),
        split_rate=draw_rate(rng, 0.01, 0.9),
        cut_rate=draw_rate(rng, 0.01, 0.9),
        half_open_rate=draw_rate(rng, 0.01, 0.3, 0.3),
        cut_after_bytes=int(draw_log_uniform(rng, 50, 20_000)),
        stall_rate=draw_rate(rng, 0.001, 0.1, 0.3),
        stall_s=draw_log_uniform(rng, 0.05, 5.0),
        send_buffer_bytes=rng.choice((64, 1_024, 65_536)),
        high_water_bytes=rng.choice((0, 256, 65_536)),
    )


def _draw_disk_faults(rng: Random) -> DiskFaults:
    return DiskFaults(
        write_fails_rate=draw_rate(rng, 0.002, 0.1),
        sync_fails_rate=draw_rate(rng, 0.002, 0.1),
        prepare_fails_rate=draw_rate(rng, 0.01, 0.5, 0.3),
        read_fails_rate=draw_rate(rng, 0.01, 0.2, 0.3),
        remove_fails_rate=draw_rate(rng, 0.01, 0.5, 0.3),
        write_s=draw_log_uniform(rng, 0.0001, 0.02),
        sync_s=draw_log_uniform(rng, 0.0005, 0.2),
        stall_rate=draw_rate(rng, 0.001, 0.1),
        stall_s=draw_log_uniform(rng, 0.1, 8.0),
    )


def draw_runtime_limits(rng: Random) -> RuntimeLimits:
    return RuntimeLimits(
        queued_operations_max=rng.choice((3, 20, 100_000)),
        operations_per_append_max=rng.choice((1, 3, 4_096)),
        write_timeout_s=draw_log_uniform(rng, 0.2, 5.0),
        load_wait_s=draw_log_uniform(rng, 0.2, 10.0),
        load_slice_bytes=rng.choice((1, 500, 64 << 10)),
        job_records_max=rng.choice((1, 2, 500)),
        compaction_interval_s=draw_log_uniform(rng, 0.5, 10.0),
        reload_backoff_max_s=draw_log_uniform(rng, 0.5, 30.0),
    )


def _draw_server_limits(rng: Random) -> ServerLimits:
    frame_bytes_max = rng.choice((4_096, 16 << 20))
    # If few connections are permitted, the coordinator must close the connections of lost clients soon;
    # otherwise no other client could connect after the faults have ended.
    connections_max = rng.choice((30, 2_000))
    idle_max_s = 12.0 if connections_max == 30 else 600.0
    return ServerLimits(
        connections_max=connections_max,
        frame_bytes_max=frame_bytes_max,
        requests_in_flight_max=rng.choice((1, 2, 64)),
        queued_bytes_max=rng.choice((frame_bytes_max, 256 << 20)),
        connection_idle_s=draw_log_uniform(rng, 5.0, idle_max_s),
        frame_s=draw_log_uniform(rng, 2.0, 30.0),
        reading_s=draw_log_uniform(rng, 2.0, 30.0),
    )
