"""Plain values for share groups and their topics, without types of the client library."""

from typing import NamedTuple

from protocol.errors import ErrorCode

NO_GROUP_EPOCH = -1

# `GroupDescription.state` of a group without members.
EMPTY = "Empty"


class GroupOffset(NamedTuple):
    """A share-partition that its group has initialised; the start offset is -1 if nothing was read yet."""

    group_id: str
    topic_id: bytes
    partition: int
    start_offset: int


class GroupDescription(NamedTuple):
    """A share group as its coordinator describes it, if the error code is 0.

    With GROUP_ID_NOT_FOUND, no share group has this name. The group epoch increases when a member joins,
    leaves or changes its subscription.
    """

    error_code: int
    error_message: str = ""
    state: str = ""
    group_epoch: int = NO_GROUP_EPOCH
    members: int = 0
    subscribed: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether the group exists and has no members."""
        return self.error_code == ErrorCode.NONE and self.state == EMPTY and self.members == 0


class ChangeResult(NamedTuple):
    """A coordinator's result for a change: 0 or Kafka's error code, and the error message."""

    error_code: int
    error_message: str = ""


class ResolvedTopicIds(NamedTuple):
    """The result of asking all brokers of a cluster for some topic ids.

    `names` has the ids that a broker knows, `missing` those that no broker knows. An id in neither may exist:
    a broker did not answer, or this client may not describe the topic.
    """

    cluster_id: str
    names: dict[bytes, str]
    missing: frozenset[bytes]
