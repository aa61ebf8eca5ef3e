"""What a cluster says of share groups and their topics, in plain values: the seam to the client library."""

from typing import NamedTuple

from protocol.errors import ErrorCode

NO_GROUP_EPOCH = -1

# What GroupDescription.state is while a group has no members.
EMPTY = "Empty"


class GroupOffset(NamedTuple):
    """A share-partition that its group takes for initialised; start offset -1: nobody has read it yet."""

    group_id: str
    topic_id: bytes
    partition: int
    start_offset: int


class GroupDescription(NamedTuple):
    """A share group as its coordinator knows it, if the error code is 0.

    With GROUP_ID_NOT_FOUND there is no share group of that name: its coordinator says so.  The group epoch
    grows whenever a member comes, goes or subscribes to something else.
    """

    error_code: int
    error_message: str = ""
    state: str = ""
    group_epoch: int = NO_GROUP_EPOCH
    members: int = 0
    subscribed: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Tell whether there is such a group, and it has no members."""
        return self.error_code == ErrorCode.NONE and self.state == EMPTY and self.members == 0


class ChangeResult(NamedTuple):
    """What a coordinator says to a change: 0, or Kafka's error code and its words."""

    error_code: int
    error_message: str = ""


class ResolvedTopicIds(NamedTuple):
    """What all brokers of a cluster said of some topic ids.

    `names` has those that a broker knows, `missing` those that every broker says there is no topic of. An id
    that is in neither may be there: a broker did not answer, or we may not see it.
    """

    cluster_id: str
    names: dict[bytes, str]
    missing: frozenset[bytes]
