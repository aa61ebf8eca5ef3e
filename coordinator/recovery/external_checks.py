"""The checks of an audit that need the cluster or a live coordinator."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.client import ClientSecurity
from coordinator.errors import CoordinatorError
from coordinator.recovery.audit import ExternalFindings
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.cluster import (
    TopicPartition,
    check_configs,
    check_groups,
    check_offsets_in_log,
    report_missing_states,
)
from coordinator.recovery.checks.findings import Finding, findings_output
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.diff import resolve_differences
from coordinator.recovery.engines import Engine
from coordinator.recovery.job import LogReadResult
from coordinator.recovery.live_comparison import DOUBTFUL_OUTPUT, StateComparison
from coordinator.recovery.live_coordinator import LiveCoordinator
from coordinator.recovery.share_partitions import (
    count_state_partitions,
    record_key_identity,
    row_share_partition,
)
from coordinator.recovery.sources.base import LogCut, ReadPlan, Source, run_coroutine_on_thread
from coordinator.recovery.state_tasks import PartitionStates, StateTask
from coordinator.recovery.tasks import NamedOutput
from protocol.state_records import SharePartitionKey, topic_id_text

AnyT = TypeVar("AnyT")

# Maximum number of topics in one request.
_TOPICS_MAX = 200

_HAS_STATE_OUTPUT, _TOPICS_OUTPUT, _FAILURE_OUTPUT = "has_state", "topics", "failure"
_KEY_COLUMNS = ("group_id", "topic_id", "partition")
_FAILURES = (CoordinatorError, OSError)

_CUT = "the log was read up to a cut, and only the current state of the cluster is known"


class ClusterCheck:
    """Checks P5, X2 and X5: compare with the configs, share groups and user topics of a cluster.

    P5 needs a log that is a topic of the cluster. X2 and X5 are made only for a whole log: with a cut, state
    that was initialised after the cut would be reported as missing.
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
        self._access: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "security": security,
            "request_timeout_s": request_timeout_s,
        }
        self._topic = topic
        self._state_partitions = state_partitions
        self._limits = limits
        self._is_cut = cut is not None and not cut.is_log_end
        self._shown: list[bytes] = []

    def begin(self) -> None:
        """Read the share-partitions that groups have initialised; the log, read later, must have them."""
        if not self._is_cut:
            self._shown = sorted({record_key_identity(key) for key in list_initialised_keys(**self._access)})

    def task(self, plan: ReadPlan) -> StateTask | None:
        """Return the comparison of states with groups and user topics."""
        if self._is_cut:
            return None
        return partial(compare_with_cluster, self._access, pa.array(self._shown, pa.binary()), self._limits)

    def result(self, engine: Engine, log: LogReadResult) -> ExternalFindings:
        """Check the configs of the topic, and return its findings and those of the comparison.

        Raises LogError.
        """
        found: list[Finding] = []
        checked: list[str] = []
        not_checked: dict[str, str] = {}
        topics: dict[str, str] = {}
        if self._topic is not None:
            configs, partitions = run_coroutine_on_thread(self._describe_topic(self._topic))
            if configs is None:
                not_checked["P5"] = "the configs of the topic may not be seen"
            else:
                found += check_configs(configs, partitions, self._state_partitions)
                checked.append("P5")
        if self._is_cut:
            not_checked |= dict.fromkeys(("X2", "X5"), _CUT)
        else:
            has_state = np.zeros(len(self._shown), np.bool_)
            for row in log.rows(_HAS_STATE_OUTPUT):
                bits = np.frombuffer(row["bits"], np.uint8)
                has_state |= np.unpackbits(bits, count=len(self._shown)).astype(np.bool_)
            topics |= {row["topic_id"]: row["name"] for row in log.rows(_TOPICS_OUTPUT)}
            found += report_missing_states(self._shown[at] for at in np.flatnonzero(~has_state).tolist())
            checked += ["X2", "X5"]
        return ExternalFindings(found, checked, not_checked, topics=topics)

    async def _describe_topic(self, topic: str) -> tuple[Mapping[str, str] | None, int]:
        from coordinator.cluster.kafka.brokers import Brokers

        async with closing(Brokers(topic=topic, **self._access)) as brokers:
            await brokers.connect()
            shape = await brokers.describe_topic()
            return await brokers.topic_configs(), 0 if shape is None else shape.partitions


async def _list_groups(access: Mapping[str, Any]) -> Collection[str]:
    from coordinator.cluster.kafka.share_groups import ShareGroups

    async with closing(ShareGroups(**access)) as groups:
        return await groups.names()


def compare_with_cluster(
    access: Mapping[str, Any], shown: pa.Array, limits: Limits, inside: PartitionStates
) -> Iterator[NamedOutput]:
    """Compare the states of a state partition with groups and user topics.

    `shown` are the record keys of the share-partitions that groups have initialised.  Yields findings, topic
    names, and which of the shown share-partitions have state or were deleted.
    """
    number = inside.state_partition
    keys = set(map(row_share_partition, inside.rows(_KEY_COLUMNS)))
    there = pa.array([*map(record_key_identity, keys), *inside.deleted], pa.binary())
    bits = np.packbits(pc.is_in(shown, value_set=there).to_numpy(zero_copy_only=False))
    yield NamedOutput.from_rows(_HAS_STATE_OUTPUT, number, {"bits": bits.tobytes()})
    if not keys:
        return
    # The groups are listed after the log was read, because a group may have been created meanwhile.
    groups = run_coroutine_on_thread(_list_groups(access))
    names, starts, ends = run_coroutine_on_thread(
        _read_topics(access, {(key.topic_id, key.partition) for key in keys})
    )
    rows = [{"topic_id": topic_id_text(topic_id), "name": name} for topic_id, name in names.items()]
    yield NamedOutput.from_rows(_TOPICS_OUTPUT, number, *rows)
    for chunk in inside.chunks():
        found = [
            *check_groups(chunk, groups, names),
            *check_offsets_in_log(chunk, starts, ends, limits),
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
            names |= await topics.names(wanted[at : at + _TOPICS_MAX])
        there = [place for place in places if place[0] in names]
        return names, await topics.start_offsets(there), await topics.end_offsets(there)


class LiveCheck:
    """Check X1: compare the states with those of a live coordinator."""

    def __init__(self, source: Source, live: str | LiveCoordinator) -> None:
        self._source = source
        self._live = live

    def begin(self) -> None:
        """Do nothing; this check reads after the log."""

    def task(self, plan: ReadPlan) -> StateTask:
        """Return the comparison."""
        self._task = StateComparison(self._live, count_state_partitions(plan.starts))
        return self._task

    def result(self, engine: Engine, log: LogReadResult) -> ExternalFindings:
        """Read the log again for the differences."""
        compare = resolve_differences(engine, self._source, self._task, log, {})
        different = {each.key: each for each in compare.different}
        found = [
            Finding(
                *("X1", Severity.CRITICAL, each.state_partition, record_key_identity(key)),
                evidence=each.what,
            )
            for key, each in different.items()
        ]
        states = [row for row in log.rows(DOUBTFUL_OUTPUT) if row_share_partition(row) in different]
        if compare.unknown or compare.unlisted:
            count = len(compare.unknown) + compare.unlisted
            reason = f"more than {self._task.limit} differ"
            for key, trouble in compare.unknown.items():
                reason = f"{key}: {trouble}"
                break
            told = f"{count} of {compare.asked} are not known, {reason}"
            return ExternalFindings(found, (), {"X1": told}, ("X1",), states=states)
        return ExternalFindings(found, ("X1",), states=states)


class OptionalCheck:
    """A check whose failure does not fail the audit; the result has the reason of the failure.

    If the user requested the check (`asked_for`), the audit is not clean without it.
    """

    def __init__(self, inner: Any, checks: Collection[str], *, asked_for: bool = False) -> None:
        self._inner = inner
        self._checks = tuple(checks)
        self._missed = checks if asked_for else ()
        self._why = ""

    def begin(self) -> None:
        """Call `begin` of the check."""
        with self._failure_noted():
            self._inner.begin()

    def task(self, plan: ReadPlan) -> StateTask | None:
        """Return the task of the check, which yields the reason if it fails."""
        inner = None
        if not self._why:
            with self._failure_noted():
                inner = self._inner.task(plan)
        return None if inner is None else partial(_run_or_yield_failure, inner, self._checks)

    def result(self, engine: Engine, log: LogReadResult) -> ExternalFindings:
        """Return the findings of the check; if it failed, return the reason instead."""
        for row in log.rows(_FAILURE_OUTPUT):
            if row["checks"] == list(self._checks):
                self._why = self._why or row["reason"]
        found = ExternalFindings()
        if not self._why:
            with self._failure_noted():
                found = self._inner.result(engine, log)
        if self._why:
            return ExternalFindings(not_checked=dict.fromkeys(self._checks, self._why), missed=self._missed)
        return found

    @contextmanager
    def _failure_noted(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            self._why = str(error)


def _run_or_yield_failure(
    inner: StateTask, checks: Sequence[str], inside: PartitionStates
) -> Iterable[NamedOutput]:
    """Run a task; if it fails, return the reason as its only output."""
    try:
        return list(inner(inside))
    except _FAILURES as error:
        row = {"checks": list(checks), "reason": str(error)}
        return [NamedOutput.from_rows(_FAILURE_OUTPUT, inside.state_partition, row)]


def list_initialised_keys(**access: Any) -> list[SharePartitionKey]:
    """Return the share-partitions that the groups of a cluster have initialised. Raises LogError.

    `access` are the arguments of `ShareGroups`.
    """

    async def list_keys() -> list[SharePartitionKey]:
        from coordinator.cluster.kafka.share_groups import ShareGroups

        async with closing(ShareGroups(**access)) as groups:
            shown = await groups.offsets(await groups.names())
        return [SharePartitionKey(each.group_id, each.topic_id, each.partition) for each in shown]

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
