"""Compute the effect of changing a share group's offsets, before the change.

Kafka's group coordinator provides the group, and the brokers provide the log start and end of partitions. The
share coordinator provides the in-flight records; without it, they are unknown.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.cluster.kafka.share_group_types import GroupDescription
from coordinator.errors import ConfigError, CoordinatorError, OperationFailed
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from coordinator.cli.admin_client import AdminClient
    from coordinator.cluster.kafka.share_groups import ShareGroups
    from coordinator.cluster.kafka.user_topics import UserTopics

TopicPartition = tuple[bytes, int]

# The delivery states of completed records, as the API names them.
_DONE = ("ACKNOWLEDGED", "ARCHIVED")
_RUNS = 10_000


class ResetTarget(NamedTuple):
    """The new start offsets: log start, log end, a time, or an offset."""

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, *, earliest: bool, latest: bool, moment: str | None, offset: int | None) -> "ResetTarget":
        """Parse the options of a reset. Raises ConfigError."""
        given = [
            *([cls("earliest")] if earliest else []),
            *([cls("latest")] if latest else []),
            *([cls("time", _parse_time_ms(moment))] if moment is not None else []),
            *([cls("offset", offset)] if offset is not None else []),
        ]
        if len(given) != 1:
            raise ConfigError(
                "offsets reset", "", "given one of --to-earliest, --to-latest, --to-datetime and --to-offset"
            )
        return given[0]


def _parse_time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError("--to-datetime", text, "a time as 2026-11-21T13:00:00.000, in UTC") from None
    # Like Kafka's tools, a time without a zone is UTC.
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


class ResetEffect(NamedTuple):
    """Numbers of records of a share-partition that a new start offset affects; None if not known.

    `redelivered` counts completed records that would be delivered again. `skipped` counts incomplete records
    that would never be delivered.
    """

    in_flight: int | None
    redelivered: int | None
    skipped: int | None


NOT_KNOWN = ResetEffect(None, None, None)


def compute_effect(state: Mapping[str, Any], new_offset: int) -> ResetEffect:
    """Return the effect of a new start offset; `state` must have all offset ranges of the share-partition."""
    start, runs = state["start_offset"], state["in_flight"]["items"]
    if start < 0:
        return ResetEffect(0, 0, 0)
    done = [run for run in runs if run["delivery_state"] in _DONE]
    done_below = sum(max(0, min(run["last_offset"] + 1, new_offset) - run["first_offset"]) for run in done)
    done_from = sum(run["records"] for run in done) - done_below
    return ResetEffect(
        in_flight=state["in_flight_records"],
        redelivered=max(0, start - new_offset) + done_from,
        skipped=max(0, new_offset - start) - done_below,
    )


def read_group_states(api: "AdminClient", group: str) -> dict[TopicPartition, dict[str, Any]]:
    """Return a group's states with all offset ranges from a share coordinator. Raises CoordinatorError."""
    from protocol.state_records import parse_topic_id

    states = {}
    for item in api.items("/api/v1/share-partitions", group=group):
        key = {"group": group, "topic": item["topic_id"], "partition": item["partition"]}
        runs: list[Any] = []
        while len(runs) < item["state_batches"]:
            part = api.get("/api/v1/share-partition", **key, limit=_RUNS, offset=len(runs))
            runs += part["in_flight"]["items"]
            if not part["in_flight"]["items"]:
                break
        states[parse_topic_id(item["topic_id"]), item["partition"]] = {**item, "in_flight": {"items": runs}}
    return states


class TopicScope(NamedTuple):
    """The partitions to change by topic. None means all partitions; an empty mapping means all topics."""

    topics: Mapping[str, Sequence[int] | None]

    @classmethod
    def parse(cls, topics: Sequence[str], *, all_topics: bool, partitions_allowed: bool) -> "TopicScope":
        """Parse `topic` and `topic:0,1`. Raises ConfigError."""
        if bool(topics) == all_topics:
            raise ConfigError("offsets", "", "given --topic, once or more often, or --all-topics")
        found: dict[str, Sequence[int] | None] = {}
        for text in topics:
            # Topic names contain no colon.
            name, colon, numbers = text.partition(":")
            given = numbers.split(",") if colon else None
            if not name or name in found or (given and not all(n.isascii() and n.isdigit() for n in given)):
                raise ConfigError("--topic", text, "TOPIC or TOPIC:0,1, each topic once")
            if given and not partitions_allowed:
                raise ConfigError("--topic", text, "TOPIC: offsets are deleted of whole topics")
            found[name] = [int(number) for number in given] if given else None
        return cls(found)


class PlannedChange(NamedTuple):
    """The planned change of one share-partition; offsets are None if they are not known or not set."""

    topic: str
    partition: int
    start_offset: int | None
    new_offset: int | None
    effect: ResetEffect


def check_group_is_changeable(group: str, description: GroupDescription, *, may_be_made: bool) -> None:
    """Raise OperationFailed with a hint if the offsets of a group cannot be changed.

    If `may_be_made` is True, a group that Kafka does not have is accepted.
    """
    code = description.error_code
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        if not may_be_made:
            raise OperationFailed(
                f"Kafka has no share group {group!r}. Expiry removes the state of a deleted group; "
                "deleting it without Kafka could hit a group of the same name that is created now"
            )
    elif code != 0:
        raise CoordinatorError(
            f"group {group!r} cannot be described: {error_name(code)} {description.error_message}".strip()
        )
    elif not description.is_empty:
        raise OperationFailed(
            f"group {group!r} is {description.state} with {description.members} members, and its consumers "
            "would continue with their acquired records. Stop them, wait until kafka-share-groups.sh "
            "--describe --state shows Empty, and retry"
        )


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"Kafka's error {code}"


class OffsetsPlanner:
    """Reads the current offsets and computes the changes. Used on one event loop."""

    def __init__(
        self, groups: "ShareGroups", topics: "UserTopics", states: Mapping[TopicPartition, Any] | None
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._states = states

    async def reset(
        self, group: str, scope: TopicScope, target: ResetTarget
    ) -> tuple[list[PlannedChange], list[str]]:
        """Plan new start offsets; also return notes for the user. Raises CoordinatorError."""
        check_group_is_changeable(
            group, (await self._groups.describe_groups([group]))[group], may_be_made=True
        )
        shown = await self._stored_start_offsets(group)
        names, wanted = await self._select_partitions(scope, shown)
        news, remarks = await self._new_offsets(names, wanted, target)
        missing = [
            f"{names[topic_id]}-{number}" for topic_id, number in wanted if (topic_id, number) not in news
        ]
        if missing:
            raise OperationFailed(
                f"the log start and end of these partitions are not known: {', '.join(missing)}"
            )
        planned = [self._make_planned_change(names[key[0]], key, shown, news[key]) for key in wanted]
        return sorted(planned), remarks

    async def delete(self, group: str, scope: TopicScope) -> list[PlannedChange]:
        """Plan to delete the state of a group for some topics. Raises CoordinatorError."""
        check_group_is_changeable(
            group, (await self._groups.describe_groups([group]))[group], may_be_made=False
        )
        shown = await self._stored_start_offsets(group)
        names, _ = await self._select_partitions(scope, shown)
        planned = [
            self._make_planned_change(names[key[0]], key, shown, None) for key in shown if key[0] in names
        ]
        for name in names.values():
            if all(each.topic != name for each in planned):
                raise OperationFailed(f"group {group!r} has no state of topic {name}")
        return sorted(planned)

    async def _stored_start_offsets(self, group: str) -> dict[TopicPartition, int]:
        return {
            (each.topic_id, each.partition): each.start_offset for each in await self._groups.offsets([group])
        }

    async def _select_partitions(
        self, scope: TopicScope, shown: Mapping[TopicPartition, int]
    ) -> tuple[dict[bytes, str], list[TopicPartition]]:
        if not scope.topics:
            names = dict(await self._topics.names({topic_id for topic_id, _ in shown}))
            if not names:
                raise OperationFailed("the group has no state of any topic")
            return names, [key for key in shown if key[0] in names]
        names, wanted = {}, []
        for name, given in scope.topics.items():
            topic_id = await self._topics.topic_id(name)
            if topic_id is None:
                raise OperationFailed(f"topic {name} does not exist, or DESCRIBE is not allowed")
            names[topic_id] = name
            there = await self._topics.partitions(topic_id)
            for number in there if given is None else given:
                if number not in there:
                    raise OperationFailed(f"topic {name} has no partition {number}")
                wanted.append((topic_id, number))
        return names, wanted

    async def _new_offsets(
        self, names: Mapping[bytes, str], wanted: Sequence[TopicPartition], target: ResetTarget
    ) -> tuple[dict[TopicPartition, int], list[str]]:
        if target.kind == "earliest":
            return dict(await self._topics.start_offsets(wanted)), []
        ends = await self._topics.end_offsets(wanted)
        if target.kind == "latest":
            return dict(ends), []
        if target.kind == "time":
            at = await self._topics.offsets_at(wanted, target.number)
            return {
                key: ends[key] if at[key] < 0 else at[key] for key in wanted if key in at and key in ends
            }, []
        starts = await self._topics.start_offsets(wanted)
        news, remarks = {}, []
        for key in wanted:
            if key in starts and key in ends:
                news[key] = min(max(target.number, starts[key]), ends[key])
                if news[key] != target.number:
                    remarks.append(
                        f"{names[key[0]]}-{key[1]} has no offset {target.number}; {news[key]} is the nearest"
                    )
        return news, remarks

    def _make_planned_change(
        self, name: str, key: TopicPartition, shown: Mapping[TopicPartition, int], new_offset: int | None
    ) -> PlannedChange:
        state = None if self._states is None else self._states.get(key)
        start = shown.get(key, -1)
        known = start if start >= 0 else None
        if state is None:
            nothing = ResetEffect(0, 0, 0) if self._states is not None and key not in shown else NOT_KNOWN
            return PlannedChange(name, key[1], known, new_offset, nothing)
        found = (
            ResetEffect(state["in_flight_records"], None, None)
            if new_offset is None
            else compute_effect(state, new_offset)
        )
        return PlannedChange(
            name, key[1], state["start_offset"] if state["start_offset"] >= 0 else known, new_offset, found
        )
