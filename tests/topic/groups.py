"""Run several coordinators as members of a group on a real Kafka."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.group_client import KafkaGroupClient
from coordinator.cluster.ownership.limits import GroupLimits
from tests.kafka_in_memory.faulty_group_client import FaultyGroupClient
from tests.unit.ownership.replicas import ReplicaGroup

# A short session timeout, for tests that wait until a session expires.
LIMITS = GroupLimits(session_timeout_s=12.0, heartbeat_interval_s=0.5)
# A long session timeout for all other tests, so that no member is removed on a busy machine. If such a test
# ends earlier, it did not wait for the session timeout.
PATIENT = LIMITS._replace(session_timeout_s=60.0, rebalance_timeout_s=60.0)
# The maximum number of seconds of any wait.
PATIENCE_S = 120.0

# The settings of a coordinator on a single broker.
SINGLE_REPLICA = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

_groups = itertools.count()


def group_settings(bootstrap: str, topic: str, shards: int) -> dict[str, str]:
    """Return the settings of a coordinator whose group is named after its state topic."""
    return {
        "bootstrap.servers": bootstrap,
        "ownership": "group",
        "group.id": topic,
        # A long session timeout, so that a coordinator on a busy machine loses no shard.
        "session.timeout.ms": "30000",
        "share.coordinator.state.topic.name": topic,
        "share.coordinator.state.topic.num.partitions": str(shards),
    }


@asynccontextmanager
async def run_replica_group(
    bootstrap: str,
    topic: str = "no-such-topic",
    *,
    limits: GroupLimits = PATIENT,
    security: ClientSecurity | None = None,
) -> AsyncIterator[ReplicaGroup]:
    """Yield a group whose replicas run on separate threads, as in a coordinator; stop them at the end."""
    group_id = f"coordinators-{next(_groups)}"

    def make_client() -> FaultyGroupClient:
        return FaultyGroupClient(
            KafkaGroupClient(
                bootstrap,
                group_id,
                topic,
                security=security,
                session_timeout_s=limits.session_timeout_s,
                rebalance_timeout_s=limits.rebalance_timeout_s,
                request_timeout_s=4.0,
            )
        )

    fleet = ReplicaGroup(
        make_client,
        group_id=group_id,
        limits=limits,
        monotonic=monotonic,
        own_thread=True,
        patience_s=PATIENCE_S,
    )
    try:
        yield fleet
    finally:
        await fleet.stop()
