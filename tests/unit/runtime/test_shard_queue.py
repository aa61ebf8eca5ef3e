"""The queue of a shard passes a failed append and its operations to the callback `on_failure`."""

import asyncio

import pytest

from coordinator import fastpath
from coordinator.cluster.topics import AllTopics
from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.metrics import Metrics
from coordinator.process.clock import SystemClock
from coordinator.serve.runtime import Operation, RuntimeLimits
from coordinator.serve.runtime.commit_scheduler import CommitScheduler
from coordinator.serve.runtime.decider import Decider
from coordinator.serve.runtime.shard_queue import ShardQueue
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.runtime.status import ShardStatus
from coordinator.shard import Shard, SnapshotPolicy
from tests.builders import KEY, make_initialize
from tests.simulation.loop import run
from tests.unit.runtime.blocking_log import BlockingLog


@pytest.mark.parametrize("error", [LogUnavailable("disk full"), LogOutcomeUnknown("fsync failed")])
@pytest.mark.run_with(function=run)
async def test_failed_append_is_passed_to_on_failure_with_its_operations(error: LogError) -> None:
    failures: list[tuple[LogError, list[Operation]]] = []
    log, limits, metrics, topics = BlockingLog(1), RuntimeLimits(), Metrics(), AllTopics()
    await log.open()
    log.blocking = True
    queue = ShardQueue(
        0,
        scheduler=CommitScheduler(
            log=log, clock=SystemClock(), topics=topics, metrics=metrics, limits=limits
        ),
        log=log,
        decider=Decider(log=log, clock=SystemClock(), topics=topics, limits=limits),
        metrics=metrics,
        policy=SnapshotPolicy(),
        limits=limits,
        on_failure=lambda *failure: failures.append(failure),
    )
    queue.status = ShardStatus.ACTIVE
    loop = asyncio.get_running_loop()
    operation = Operation(
        Shard.initialize_state,
        KEY,
        [make_initialize(1)],
        writes=True,
        origin=None,
        received_s=loop.time(),
    )
    queue.submit(operation)
    while not log.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    log.fail_appends(error)
    await asyncio.sleep(0)
    assert failures == [(error, [operation])]


def test_shard_runner_has_no_instance_dictionary() -> None:
    """With a dictionary, each call between compiled methods of the queue first searches for an override."""
    if fastpath.compiled is None:
        pytest.skip("only compiled methods search for an override")
    assert ShardRunner.__dictoffset__ == 0
