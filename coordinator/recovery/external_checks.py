"""The checks of an audit that need the cluster, a live coordinator, or a second fold of a sample."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from coordinator.client import ClientSecurity
from coordinator.errors import CoordinatorError, LogError
from coordinator.recovery.audit import ExternalFindings, LogContents
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.cluster import check_configs, check_data, check_groups
from coordinator.recovery.checks.findings import Finding
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.deduplication import (
    count_state_partitions,
    identity_of_key,
    identity_of_row,
    key_of,
)
from coordinator.recovery.diff import compared
from coordinator.recovery.history import read_history
from coordinator.recovery.live_coordinator import LiveCoordinator
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import RebuildResult
from coordinator.recovery.sources.base import Cut, Source, run_on_thread
from coordinator.shard import ShareState
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey, parse_topic_id, topic_id_text

# Maximum number of topics in one request.
_TOPICS_MAX = 200


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
        cut: Cut | None = None,
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
        self._is_cut = cut is not None and not cut.is_the_end
        self._shown: set[SharePartitionKey] = set()

    def begin(self) -> None:
        """Read the share-partitions that groups have initialised; the log, read later, must have them."""
        if not self._is_cut:
            self._shown = set(list_initialised_keys(**self._access))

    def check(self, log_contents: LogContents, phases: Phases) -> ExternalFindings:
        """Read configs, groups and user topics, and compare them with the log. Raises LogError."""
        return run_on_thread(self._check(log_contents))

    async def _check(self, log_contents: LogContents) -> ExternalFindings:
        found: list[Finding] = []
        checked: list[str] = []
        not_checked: dict[str, str] = {}
        topics: dict[str, str] = {}
        if self._topic is not None:
            configs, partitions = await self._describe(self._topic)
            if configs is None:
                not_checked["P5"] = "the configs of the topic may not be seen"
            else:
                found += check_configs(configs, partitions, self._state_partitions)
                checked.append("P5")
        if self._is_cut:
            not_checked |= dict.fromkeys(("X2", "X5"), _CUT)
        else:
            compared, known = await self._compare(log_contents)
            found += compared
            topics = {topic_id_text(topic_id): name for topic_id, name in known.items()}
            checked += ["X2", "X5"]
        return ExternalFindings(found, checked, not_checked, topics=topics)

    async def _compare(self, log_contents: LogContents) -> tuple[list[Finding], dict[bytes, str]]:
        states = log_contents.states.to_pylist()
        places = {(parse_topic_id(row["topic_id"]), row["partition"]) for row in states}
        groups = self._share_groups()
        topics = self._user_topics()
        try:
            names = await groups.names()
            known: dict[bytes, str] = {}
            wanted = sorted({topic_id for topic_id, _ in places})
            for at in range(0, len(wanted), _TOPICS_MAX):
                known |= await topics.names(wanted[at : at + _TOPICS_MAX])
            there = [place for place in places if place[0] in known]
            starts, ends = await topics.start_offsets(there), await topics.end_offsets(there)
        finally:
            await groups.close()
            await topics.close()
        deleted = {identity for _, identity in log_contents.deleted}
        found = [
            *check_groups(states, self._shown, deleted, names, known),
            *check_data(states, starts, ends, self._limits),
        ]
        return found, known

    def _share_groups(self) -> Any:
        from coordinator.cluster.kafka.share_groups import ShareGroups

        return ShareGroups(**self._access)

    def _user_topics(self) -> Any:
        from coordinator.cluster.kafka.user_topics import UserTopics

        return UserTopics(**self._access)

    async def _describe(self, topic: str) -> tuple[Mapping[str, str] | None, int]:
        from coordinator.cluster.kafka.brokers import Brokers

        brokers = Brokers(topic=topic, **self._access)
        await brokers.connect()
        try:
            shape = await brokers.describe_topic()
            return await brokers.topic_configs(), 0 if shape is None else shape.partitions
        finally:
            await brokers.close()


class LiveCheck:
    """Check X1: compare the states with those of a live coordinator."""

    def __init__(self, source: Source, live: str | LiveCoordinator) -> None:
        self._source = source
        self._live = live

    def begin(self) -> None:
        """Do nothing; this check reads after the log."""

    def check(self, log_contents: LogContents, phases: Phases) -> ExternalFindings:
        """Read every share-partition."""
        run = RebuildResult(log_contents.stored, log_contents.ranges, {})
        number = count_state_partitions(log_contents.log.plan.starts)
        compare = compared(self._source, run, self._live, phases=phases, state_partitions=number)
        found = [
            Finding(
                "X1",
                Severity.CRITICAL,
                each.state_partition,
                identity_of_key(each.key),
                evidence=each.what,
            )
            for each in compare.different
        ]
        if compare.unknown:
            key, why = next(iter(compare.unknown.items()))
            told = f"{len(compare.unknown)} of {compare.asked} are not known, {key}: {why}"
            return ExternalFindings(found, (), {"X1": told}, ("X1",))
        return ExternalFindings(found, ("X1",))


class SampleCheck:
    """X6: fold a sample of share-partitions record by record, with the coordinator's own code."""

    def __init__(self, source: Source, count: int, cut: Cut) -> None:
        self._source = source
        self._count = count
        self._cut = cut

    def begin(self) -> None:
        """Do nothing; this check reads after the log."""

    def check(self, log_contents: LogContents, phases: Phases) -> ExternalFindings:
        """Read the records of the sample again, up to the same log offsets, and compare the states."""
        rows = choose_sample(log_contents.states, self._count)
        wanted = {(row["state_partition"], key_of(row)): row for row in rows}
        keys = {key for _, key in wanted}
        ends: dict[int, int] = {}
        for row in log_contents.ranges.to_pylist():
            number = row["state_partition"]
            ends[number] = max(ends.get(number, 0), row["range_end"])
        plan = self._source.plan(Cut(ends))
        states: dict[tuple[int, SharePartitionKey], ShareState | None] = {}
        pruned: set[int] = set()
        with phases.phase("sample", len(keys), "share-partitions") as advance:
            for step in read_history(self._source, plan, keys, {row["state_partition"] for row in rows}):
                states[step.state_partition, step.record.key] = step.after
            advance(len(keys))
        for number, start in plan.starts.items():
            if start != log_contents.log.plan.starts.get(number, start):
                pruned.add(number)
        found = [
            Finding(
                "X6",
                Severity.CRITICAL,
                row["state_partition"],
                identity_of_row(row),
                row["last_log_offset"],
                row["last_log_offset"],
                evidence=what,
            )
            for place, row in wanted.items()
            if row["state_partition"] not in pruned and (what := differing_fields(row, states.get(place)))
        ]
        return ExternalFindings(found, ("X6",))


def choose_sample(states: pa.Table, count: int) -> list[dict[str, Any]]:
    """Return about `count` states, evenly spread over the table."""
    step = max(len(states) // max(count, 1), 1)
    rows: list[dict[str, Any]] = states.take(list(range(0, len(states), step))).to_pylist()
    return rows


def differing_fields(row: Mapping[str, Any], state: ShareState | None) -> str:
    """Return the fields in which a row of `STATES` differs from a state; empty if they are equal."""
    if state is None:
        return "the fold record by record finds no state"
    other = {
        **msgspec.structs.asdict(state),
        "state_batches": [batch._asdict() for batch in unpack(state.batches)],
    }
    names: Collection[str] = [name for name in row if name in other]
    return ", ".join(
        f"{name.replace('_', ' ')} {row[name]} and {other[name]}"
        for name in names
        if row[name] != other[name]
    )


class OptionalCheck:
    """A check whose failure does not fail the audit; the result has the reason of the failure.

    If the user requested the check (`asked_for`), the audit is not clean without it.
    """

    def __init__(self, inner: Any, checks: Collection[str], *, asked_for: bool = False) -> None:
        self._inner = inner
        self._checks = checks
        self._missed = checks if asked_for else ()
        self._why = ""

    def begin(self) -> None:
        """Call `begin` of the check; if it fails, store the reason."""
        try:
            self._inner.begin()
        except (LogError, CoordinatorError, OSError) as error:
            self._why = str(error)

    def check(self, log_contents: LogContents, phases: Phases) -> ExternalFindings:
        """Return the findings of the check; if it failed, return the reason instead."""
        if not self._why:
            try:
                external: ExternalFindings = self._inner.check(log_contents, phases)
                return external
            except (LogError, CoordinatorError, OSError) as error:
                self._why = str(error)
        return ExternalFindings((), (), dict.fromkeys(self._checks, self._why), self._missed)


def list_initialised_keys(
    *, bootstrap_servers: str, security: ClientSecurity, request_timeout_s: float
) -> list[SharePartitionKey]:
    """Return the share-partitions that the groups of a cluster have initialised. Raises LogError."""

    async def list_keys() -> list[SharePartitionKey]:
        from coordinator.cluster.kafka.share_groups import ShareGroups

        groups = ShareGroups(bootstrap_servers, security=security, request_timeout_s=request_timeout_s)
        try:
            shown = await groups.offsets(await groups.names())
        finally:
            await groups.close()
        return [SharePartitionKey(each.group_id, each.topic_id, each.partition) for each in shown]

    return run_on_thread(list_keys())


def topic_id_of(
    name: str, *, bootstrap_servers: str, security: ClientSecurity, request_timeout_s: float
) -> bytes | None:
    """Return the id of a topic from the cluster; None if it does not exist or is not visible.

    Raises LogError.
    """

    async def find_topic_id() -> bytes | None:
        from coordinator.cluster.kafka.user_topics import UserTopics

        topics = UserTopics(bootstrap_servers, security=security, request_timeout_s=request_timeout_s)
        try:
            return await topics.topic_id(name)
        finally:
            await topics.close()

    return run_on_thread(find_topic_id())
