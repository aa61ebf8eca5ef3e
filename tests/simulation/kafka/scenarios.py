"""Change random plans so that simulations reach situations that are rare with random faults.

Half of the seeds keep their random plan. For the other seeds, a scenario sets a few parameters, so that one
situation occurs repeatedly. A scenario disables most other faults; the remaining parameters stay random.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from coordinator.cluster.ownership.limits import GroupLimits
from coordinator.log.kafka import KafkaLogLimits
from coordinator.shard import SnapshotPolicy
from tests.simulation.kafka.membership import MembershipFaults
from tests.simulation.kafka.plan import KafkaNemesis, KafkaPlan, draw_random_plan
from tests.simulation.plan import Workload, draw_log_uniform

ScenarioChange = Callable[[KafkaPlan, Random], KafkaPlan]

# Each scenario XORs its constant with the seed, so that adding a scenario does not change the others.
STALE = 0xC6
FORWARDING = 0x15F8
EXPIRY = 0x2C30
HTTP_WRITES = 0x30F4
CLOCK_DRIFT = 0xE005
REPLICAS = 0x15E0
DEFAULTS = 0xDEFA
# Disable periodic snapshots, because they write the state in memory to the log and would hide a wrong log.
_NO_COLD_SNAPSHOTS_MS = 600_000


def draw_kafka_plan(seed: int, *, minutes: float | None = None) -> KafkaPlan:
    """Draw a plan.

    `minutes` is the length of the phase with faults in virtual time, or None for the default.
    """
    plan, rng = draw_random_plan(seed), Random(seed ^ 0xA1)
    if rng.random() < 0.5:
        change_plan = rng.choice(SCENARIOS)
        plan = replace(change_plan(plan, rng), scenario=change_plan.__name__.lstrip("_").replace("_", " "))
    plan = replace(plan, named=rng.random() < 0.4)
    islands = Random(seed ^ 0xB2)
    if plan.scenario == "any" and plan.nemesis.unclean_s is None and islands.random() < 0.2:
        plan = replace(_isolate_broker_and_owner(plan, islands), scenario="islands")
        if islands.random() < 0.3:
            # A claimant whose clock runs 10 times too fast does not wait until the lease has ended.
            plan = replace(plan, clock_rate_max=10.0)
        elif Random(seed ^ CLOCK_DRIFT).random() < 0.5:
            plan = _read_at_the_end_of_leases(plan)
    stale = Random(seed ^ STALE)
    if plan.scenario == "any" and plan.nemesis.unclean_s is None and stale.random() < 0.1:
        plan = replace(_serve_stale_metadata(plan, stale), scenario="stale metadata")
    forwarding = Random(seed ^ FORWARDING)
    if forwarding.random() < 0.2:
        # With a small queue, an operation may get a retriable error although it reached the owner.
        limits = plan.runtime_limits._replace(queued_operations_max=100_000)
        misrouted_rate = forwarding.uniform(0.3, 1.0)
        plan = replace(plan, forwarding=True, misrouted_rate=misrouted_rate, runtime_limits=limits)
    if plan.nemesis.clock_jump_s is None and Random(seed ^ EXPIRY).random() < 0.2:
        nemesis = replace(plan.nemesis, groups_load_s=3.0, groups_loaded_after_s=40.0)
        plan = replace(plan, expiry=True, nemesis=nemesis)
    http_writes = Random(seed ^ HTTP_WRITES)
    if http_writes.random() < 0.1:
        every_s = draw_log_uniform(http_writes, 0.5, 5.0)
        plan = replace(plan, nemesis=replace(plan.nemesis, hand_over_s=every_s))
    plan = _replicate_late(plan, Random(seed ^ REPLICAS))
    if plan.scenario == "any" and Random(seed ^ DEFAULTS).random() < 0.2:
        plan = _use_default_limits(plan)
    return plan.with_duration(minutes)


def _replicate_late(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Let replicas receive some appends late, unless the plan has unclean elections."""
    if plan.nemesis.unclean_s is not None or rng.random() < 0.4:
        return plan
    faults = replace(
        plan.broker_faults,
        replicas_late_rate=draw_log_uniform(rng, 0.01, 0.5),
        replicas_late_max_s=draw_log_uniform(rng, 0.1, 15.0),
    )
    return replace(plan, broker_faults=faults)


def _use_default_limits(plan: KafkaPlan) -> KafkaPlan:
    """Use the default timeouts of the log, of the leases and of the membership."""
    session_s = GroupLimits().session_timeout_s
    return replace(
        plan,
        log_limits=KafkaLogLimits(),
        membership=replace(
            plan.membership, session_s=session_s, heartbeat_s=GroupLimits().heartbeat_interval_s
        ),
        runtime_limits=plan.runtime_limits._replace(release_wait_s=session_s + 1.0),
    )


def _make_concurrent_workload(plan: KafkaPlan, rng: Random) -> Workload:
    """Return a workload with several clients for each share-partition."""
    return replace(
        plan.load,
        groups=1,
        topics=1,
        brokers=3,
        leaders_per_key=2,
        think_s=draw_log_uniform(rng, 0.2, 2.0),
        hostile_clients=rng.randrange(1, 3),
        hostile_pause_s=draw_log_uniform(rng, 0.3, 2.0),
    )


def _make_membership(session_s: float) -> MembershipFaults:
    return MembershipFaults(heartbeat_s=session_s / 4, session_s=session_s)


def _set_session_timeout(plan: KafkaPlan, session_s: float) -> KafkaPlan:
    return replace(
        plan,
        membership=_make_membership(session_s),
        runtime_limits=plan.runtime_limits._replace(release_wait_s=session_s + 1.0),
    )


def _draw_interval_or_none(rng: Random, every_s: float | None) -> float | None:
    """Return the fault interval `every_s` with a probability of 30 %, else None (no such faults)."""
    return every_s if rng.random() < 0.3 else None


def _delay_zombie_appends(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Delay appends of an owner, so that they arrive after the appends of the next owner.

    In most cases, the owners have no transactional id, so the broker does not fence the delayed appends by
    producer epoch. Most delayed appends are snapshots, which would replace the state that the next owner has
    written.
    """
    session_s = draw_log_uniform(rng, 2.0, 4.0)
    return replace(
        _set_session_timeout(plan, session_s),
        coordinators=rng.randrange(2, 4),
        load=_make_concurrent_workload(plan, rng),
        nemesis=KafkaNemesis(
            delay_appends_s=draw_log_uniform(rng, 2.0, 6.0),
            appends_delayed_s=3 * session_s,
            delayed_without_group_rate=0.9,
            crash_s=_draw_interval_or_none(rng, plan.nemesis.crash_s),
            leader_moves_s=_draw_interval_or_none(rng, plan.nemesis.leader_moves_s),
        ),
        broker_faults=replace(
            plan.broker_faults,
            transactional=rng.random() < 0.2,
            late_max_s=5 * session_s,
        ),
        policy=SnapshotPolicy(updates_max=rng.choice((0, 0, 1, 500)), update_bytes_min=1),
        cold_interval_ms=_NO_COLD_SNAPSHOTS_MS,
    )


def _time_out_appends(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Delay appends beyond their timeout, while the process that sent them still owns the shard."""
    return replace(
        plan,
        load=_make_concurrent_workload(plan, rng),
        nemesis=KafkaNemesis(
            delay_appends_s=draw_log_uniform(rng, 1.0, 5.0),
            appends_delayed_s=draw_log_uniform(rng, 1.0, 4.0),
            delayed_without_group_rate=0.1,
            crash_s=draw_log_uniform(rng, 10.0, 30.0),
            shuffle_s=_draw_interval_or_none(rng, plan.nemesis.shuffle_s),
        ),
        broker_faults=replace(plan.broker_faults, late_max_s=draw_log_uniform(rng, 4.0, 15.0)),
        log_limits=plan.log_limits._replace(
            request_timeout_s=draw_log_uniform(rng, 0.2, 1.0),
            append_timeout_s=draw_log_uniform(rng, 0.4, 2.0),
        ),
        policy=SnapshotPolicy(updates_max=500, update_bytes_min=16_384),
        cold_interval_ms=_NO_COLD_SNAPSHOTS_MS,
    )


def _keep_owner_on_disconnected_broker(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Let an owner reach only a disconnected broker; the next owner writes, and clients read at both."""
    session_s = draw_log_uniform(rng, 2.0, 5.0)
    return replace(
        _set_session_timeout(plan, session_s),
        brokers=max(2, plan.brokers),
        load=replace(
            _make_concurrent_workload(plan, rng),
            poll_s=draw_log_uniform(rng, 0.1, 0.5),
            polling_readers=3,
            summary_rate=0.95,
            hostile_clients=0,
            library_users=0,
        ),
        nemesis=KafkaNemesis(
            isolate_broker_s=draw_log_uniform(rng, 2.0, 6.0),
            broker_isolated_s=draw_log_uniform(rng, 4.0, 8.0) * session_s,
            unreachable_rate=0.9,
            disconnect_s=_draw_interval_or_none(rng, plan.nemesis.disconnect_s),
            shuffle_s=_draw_interval_or_none(rng, plan.nemesis.shuffle_s),
        ),
        broker_faults=replace(plan.broker_faults, elections_s=0.2),
        cold_interval_ms=_NO_COLD_SNAPSHOTS_MS,
    )


def _isolate_broker_and_owner(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Isolate a broker and an owner together, while the broker continues to coordinate the group."""
    session_s = draw_log_uniform(rng, 2.0, 5.0)
    plan = _keep_owner_on_disconnected_broker(plan, rng)
    return replace(
        _set_session_timeout(plan, session_s),
        coordinators=2,
        brokers=max(3, plan.brokers),
        # With more shards, the owner would send requests to unreachable leaders of the other shards.
        state_partitions=1,
        nemesis=KafkaNemesis(
            isolate_owner_s=draw_log_uniform(rng, 2.0, 6.0),
            owner_isolated_s=draw_log_uniform(rng, 6.0, 10.0) * session_s,
            unreachable_rate=0.9,
            # When a member is removed, the group elects another owner at once, before the lease has ended.
            shuffle_s=draw_log_uniform(rng, 0.5, 3.0) if rng.random() < 0.5 else None,
            crash_s=_draw_interval_or_none(rng, 10.0),
            down_s=2 * session_s,
        ),
    )


def _read_at_the_end_of_leases(plan: KafkaPlan) -> KafkaPlan:
    """Use long leases and frequent reads, so that some reads come at the very end of a lease."""
    return replace(
        plan,
        log_limits=plan.log_limits._replace(lease_s=6.0),
        load=replace(plan.load, poll_s=0.05, think_s=0.2),
    )


def _serve_stale_metadata(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Until the end, disconnect a broker from the controller, but not from the coordinators.

    The disconnected broker reports old leaders. The other brokers report new leaders with a delay.
    """
    return replace(
        plan,
        brokers=rng.randrange(3, 5),
        nemesis=KafkaNemesis(
            isolate_for_rest_s=draw_log_uniform(rng, 1.0, 5.0),
            leader_moves_s=draw_log_uniform(rng, 2.0, 20.0),
            crash_s=_draw_interval_or_none(rng, plan.nemesis.crash_s),
            shuffle_s=_draw_interval_or_none(rng, plan.nemesis.shuffle_s),
        ),
        broker_faults=replace(plan.broker_faults, metadata_delay_s=draw_log_uniform(rng, 0.01, 2.0)),
    )


def _move_shards_hastily(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Move shards again before the previous move has ended, so that several owners claim at once."""
    session_s = draw_log_uniform(rng, 2.0, 6.0)
    return replace(
        _set_session_timeout(plan, session_s),
        coordinators=3,
        state_partitions=rng.randrange(1, 4),
        nemesis=KafkaNemesis(
            shuffle_s=draw_log_uniform(rng, 1.0, 4.0),
            disconnect_s=_draw_interval_or_none(rng, plan.nemesis.disconnect_s),
            leader_moves_s=_draw_interval_or_none(rng, plan.nemesis.leader_moves_s),
        ),
        broker_faults=replace(
            plan.broker_faults,
            travel_s=draw_log_uniform(rng, 0.01, 0.1),
            transactional=rng.random() < 0.9,
        ),
        runtime_limits=plan.runtime_limits._replace(release_wait_s=rng.choice((0.5, session_s + 1.0))),
    )


def _delete_all_state(plan: KafkaPlan, rng: Random) -> KafkaPlan:
    """Delete all state of a shard and prune its records, before new owners load the shard."""
    return replace(
        plan,
        state_partitions=rng.randrange(1, 4),
        load=replace(
            plan.load,
            groups=1,
            topics=1,
            partitions=rng.randrange(1, 3),
            reset_s=draw_log_uniform(rng, 1.0, 4.0),
            summary_s=draw_log_uniform(rng, 0.5, 2.0),
            deleted_s=draw_log_uniform(rng, 3.0, 15.0),
            hostile_clients=0,
            library_users=0,
        ),
        nemesis=KafkaNemesis(
            crash_s=draw_log_uniform(rng, 2.0, 8.0),
            down_s=draw_log_uniform(rng, 0.1, 4.0),
            shuffle_s=_draw_interval_or_none(rng, plan.nemesis.shuffle_s),
            pause_s=_draw_interval_or_none(rng, plan.nemesis.pause_s),
        ),
        membership=_make_membership(draw_log_uniform(rng, 2.0, 4.0)),
        prune_interval_ms=int(draw_log_uniform(rng, 100, 1_000)),
    )


SCENARIOS: tuple[ScenarioChange, ...] = (
    _delay_zombie_appends,
    _time_out_appends,
    _keep_owner_on_disconnected_broker,
    _move_shards_hastily,
    _delete_all_state,
)
