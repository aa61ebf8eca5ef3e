"""The checks of an audit that need the cluster or a live coordinator."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.client import ClientSecurity
from coordinator.errors import CoordinatorError
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.cluster import (
    TopicPartition,
    check_configs,
    check_groups,
    check_offsets_in_user_topics,
    report_missing_states,
)
from coordinator.recovery.checks.findings import Finding, findings_output
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.engines import Engine
from coordinator.recovery.job import LogReadResult
from coordinator.recovery.live_comparison import DOUBTFUL_OUTPUT, StateComparison, resolve_differences
from coordinator.recovery.live_coordinator import LiveCoordinator
from coordinator.recovery.schema import NONE, STATES
from coordinator.recovery.share_partitions import record_key_identity, row_share_partition
from coordinator.recovery.sources.base import LogCut, Source, run_coroutine_on_thread
from coordinator.recovery.state_tasks import PartitionStates, StateTask
from coordinator.recovery.tasks import NamedOutput
from protocol.state_records import SharePartitionKey, topic_id_text

AnyT = TypeVar("AnyT")

# Maximum number of topics in one request.
_TOPICS_MAX = 200

_HAS_STATE_OUTPUT, _FAILURE_OUTPUT = "has_state", "failure"
# Outputs with rows of `check` and `reason`; of `topic_id` and `name`; of states that differ from those of a
# coordinator.
NOT_CHECKED_OUTPUT, TOPICS_OUTPUT, DIFFERENT_OUTPUT = "not_checked", "topics", "different"
_KEY_COLUMNS = ("group_id", "topic_id", "partition")
_FAILURES = (CoordinatorError, OSError)

_CUT = "the log was read up to a cut, and only the current state of the cluster is known"


class ExternalCheck:
    """Checks of an audit that need other data than the log; `checks` has their ids.

    If the data cannot be read, the checks are not made; the audit goes on and reports the reason. If the user
    requested the checks (`is_requested`), the audit is not clean without them.
    """

    def __init__(self, checks: Sequence[str], *, is_requested: bool = False) -> None:
        self.checks = tuple(checks)
        self.is_requested = is_requested
        self._failure = ""

    def read_before_log(self) -> None:
        """Read the data of the cluster or coordinator that must be read before the log. Raises LogError."""

    def comparison(self) -> StateTask | None:
        """Return the task that compares the states of a state partition, or None."""
        raise NotImplementedError

    def results(self, engine: Engine, log: LogReadResult) -> Iterable[NamedOutput]:
        """Yield further results after the comparisons; `log` has the outputs of all tasks.

        Raises LogError.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """Call `read_before_log`; if it fails, store the reason."""
        with self._record_failure():
            self.read_before_log()

    def task(self) -> StateTask | None:
        """Return the task that compares states, or None.

        If the comparison fails, the task yields only the reason.
        """
        comparison = None if self._failure else self.comparison()
        return None if comparison is None else partial(_compare_or_yield_failure, comparison, self.checks)

    def finish(self, engine: Engine, log: LogReadResult) -> list[NamedOutput]:
        """Return the remaining results: findings, and the checks that were not made."""
        for row in log.rows(_FAILURE_OUTPUT):
            if row["checks"] == list(self.checks):
                self._failure = self._failure or row["reason"]
        if not self._failure:
            with self._record_failure():
                return list(self.results(engine, log))
        return [not_checked_output(dict.fromkeys(self.checks, self._failure))]

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            self._failure = str(error)


def _compare_or_yield_failure(
    comparison: StateTask, checks: Sequence[str], partition: PartitionStates
) -> Iterable[NamedOutput]:
    """Run a comparison of states; if it fails, yield only an output with the reason."""
    try:
        return list(comparison(partition))
    except _FAILURES as error:
        row = {"checks": list(checks), "reason": str(error)}
        return [NamedOutput.from_rows(_FAILURE_OUTPUT, partition.state_partition, row)]


def not_checked_output(reasons: Mapping[str, str]) -> NamedOutput:
    """Return the output with the reason for each check that was not made."""
    rows = [{"check": check, "reason": reason} for check, reason in reasons.items()]
    return NamedOutput.from_rows(NOT_CHECKED_OUTPUT, NONE, *rows)


class ClusterCheck(ExternalCheck):
    """Compares a log with the topic configs (P5), share groups (X2) and user topics (X2, X5) of a cluster.

    P5 is made only if the log is a topic of the cluster. X2 and X5 are made only for a whole log: with a cut,
    state that was initialised after the cut would be reported as missing.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        security: ClientSecurity,
        topic: str | None,
        state_partitions: int | None,
        limits: Limits,
        cut: LogCut | None = None,
        request_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(("X2", "X5") if topic is None else ("P5", "X2", "X5"))
        self._access: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "security": security,
            "request_timeout_s": request_timeout_s,
        }
        self._topic = topic
        self._state_partitions = state_partitions
        self._limits = limits
        self._is_cut = cut is not None and not cut.is_log_end
        self._initialised: list[bytes] = []

    def read_before_log(self) -> None:
        """Read which share-partitions groups have initialised; the log, read later, must have them."""
        if not self._is_cut:
            self._initialised = sorted(
                {record_key_identity(key) for key in list_initialised_keys(**self._access)}
            )

    def comparison(self) -> StateTask | None:
        """Return the task that compares states with share groups and user topics."""
        if self._is_cut:
            return None
        return partial(
            compare_with_cluster, self._access, pa.array(self._initialised, pa.binary()), self._limits
        )

    def results(self, engine: Engine, log: LogReadResult) -> Iterator[NamedOutput]:
        """Check the configs of the topic, and that the log has every state that a group initialised."""
        if self._topic is not None:
            configs, partitions = run_coroutine_on_thread(self._describe_topic(self._topic))
            if configs is None:
                yield not_checked_output({"P5": "the configs of the topic may not be seen"})
            else:
                yield from findings_output(NONE, check_configs(configs, partitions, self._state_partitions))
        if self._is_cut:
            yield not_checked_output(dict.fromkeys(("X2", "X5"), _CUT))
            return
        has_state = np.zeros(len(self._initialised), np.bool_)
        for row in log.rows(_HAS_STATE_OUTPUT):
            bits = np.frombuffer(row["bits"], np.uint8)
            has_state |= np.unpackbits(bits, count=len(self._initialised)).astype(np.bool_)
        missing = (self._initialised[at] for at in np.flatnonzero(~has_state).tolist())
        yield from findings_output(NONE, report_missing_states(missing))

    async def _describe_topic(self, topic: str) -> tuple[Mapping[str, str] | None, int]:
        from coordinator.cluster.kafka.brokers import Brokers

        async with closing(Brokers(topic=topic, **self._access)) as brokers:
            await brokers.connect()
            shape = await brokers.describe_topic()
            return await brokers.topic_configs(), 0 if shape is None else shape.partitions


async def _list_groups(access: Mapping[str, Any]) -> Collection[str]:
    from coordinator.cluster.kafka.share_groups import ShareGroups

    async with closing(ShareGroups(**access)) as groups:
        return await groups.list_groups()


def compare_with_cluster(
    access: Mapping[str, Any], initialised: pa.Array, limits: Limits, partition: PartitionStates
) -> Iterator[NamedOutput]:
    """Compare the states of a state partition with share groups and user topics of a cluster.

    `initialised` are the record keys of the share-partitions that groups have initialised. Yields findings,
    topic names, and which initialised share-partitions have state or were deleted.
    """
    number = partition.state_partition
    keys = set(map(row_share_partition, partition.rows(_KEY_COLUMNS)))
    there = pa.array([*map(record_key_identity, keys), *partition.deleted], pa.binary())
    bits = np.packbits(pc.is_in(initialised, value_set=there).to_numpy(zero_copy_only=False))
    yield NamedOutput.from_rows(_HAS_STATE_OUTPUT, number, {"bits": bits.tobytes()})
    if not keys:
        return
    # The groups are listed after the log was read, so that a group created during the read is known.
    groups = run_coroutine_on_thread(_list_groups(access))
    names, starts, ends = run_coroutine_on_thread(
        _read_topics(access, {(key.topic_id, key.partition) for key in keys})
    )
    rows = [{"topic_id": topic_id_text(topic_id), "name": name} for topic_id, name in names.items()]
    yield NamedOutput.from_rows(TOPICS_OUTPUT, number, *rows)
    for chunk in partition.chunks():
        found = [
            *check_groups(chunk, groups, names),
            *check_offsets_in_user_topics(chunk, starts, ends, limits),
        ]
        yield from findings_output(number, found)


async def _read_topics(
    access: Mapping[str, Any], places: set[TopicPartition]
) -> tuple[dict[bytes, str], Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Return the names of topics, and the log start and end offsets of topic partitions."""
    from coordinator.cluster.kafka.user_topics import UserTopics

    async with closing(UserTopics(**access)) as topics:
        names: dict[bytes, str] = {}
        wanted = sorted({topic_id for topic_id, _ in places})
        for at in range(0, len(wanted), _TOPICS_MAX):
            names |= await topics.topic_names(wanted[at : at + _TOPICS_MAX])
        there = [place for place in places if place[0] in names]
        return names, await topics.start_offsets(there), await topics.end_offsets(there)


class LiveCheck(ExternalCheck):
    """Compares the states in a log with those of a live coordinator (check X1)."""

    def __init__(self, source: Source, live: str | LiveCoordinator) -> None:
        super().__init__(("X1",), is_requested=True)
        self._source = source
        self._task = StateComparison(live)

    def comparison(self) -> StateTask:
        """Return the comparison."""
        return self._task

    def results(self, engine: Engine, log: LogReadResult) -> Iterator[NamedOutput]:
        """Read the log again; report the responses that differ from all states since the first read (X1)."""
        comparison = resolve_differences(engine, self._source, self._task, log, {})
        different = {each.key for each in comparison.different}
        yield from findings_output(
            NONE,
            (
                Finding(
                    *("X1", Severity.CRITICAL, each.state_partition, record_key_identity(each.key)),
                    evidence=each.what,
                )
                for each in comparison.different
            ),
        )
        states = [row for row in log.rows(DOUBTFUL_OUTPUT) if row_share_partition(row) in different]
        yield NamedOutput(DIFFERENT_OUTPUT, NONE, pa.RecordBatch.from_pylist(states, STATES))
        if count := len(comparison.unknown) + comparison.unlisted:
            reasons = (f"{key}: {failure}" for key, failure in comparison.unknown.items())
            reason = next(chain(reasons, [f"more than {self._task.limit} differ"]))
            yield not_checked_output({"X1": f"{count} of {comparison.compared} are not known, {reason}"})


def list_initialised_keys(**access: Any) -> list[SharePartitionKey]:
    """Return the share-partitions that the groups of a cluster have initialised. Raises LogError.

    `access` are the arguments of `ShareGroups`.
    """

    async def list_keys() -> list[SharePartitionKey]:
        from coordinator.cluster.kafka.share_groups import ShareGroups

        async with closing(ShareGroups(**access)) as groups:
            initialised = await groups.list_offsets(await groups.list_groups())
        return [SharePartitionKey(each.group_id, each.topic_id, each.partition) for each in initialised]

    return run_coroutine_on_thread(list_keys())


def topic_id_of(name: str, **access: Any) -> bytes | None:
    """Return the id of a topic from the cluster; None if it does not exist or is not visible.

    `access` are the arguments of `UserTopics`. Raises LogError.
    """

    async def find_topic_id() -> bytes | None:
        from coordinator.cluster.kafka.user_topics import UserTopics

        async with closing(UserTopics(**access)) as topics:
            return await topics.topic_id(name)

    return run_coroutine_on_thread(find_topic_id())


@asynccontextmanager
async def closing(client: AnyT) -> AsyncIterator[AnyT]:
    """Close a client of the cluster at the end of the block."""
    try:
        yield client
    finally:
        await client.close()  # type: ignore[attr-defined]
