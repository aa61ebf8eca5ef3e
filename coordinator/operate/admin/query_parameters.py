"""Query parameters of the HTTP API: topic ids in two formats, paging and sorting."""

from typing import Annotated
from uuid import UUID

from fastapi import HTTPException, Query

from coordinator.operate.admin.cluster_info import ClusterInfoCache
from protocol.state_records import parse_topic_id

Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of items.")]
# A smaller maximum page size, for lists whose items take more work.
ShortLimit = Annotated[int, Query(ge=1, le=1_000, description="Maximum number of items.")]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="Number of items to skip.")]
FromOffset = Annotated[
    int | None, Query(ge=0, description="Add up to 256 offset ranges, from this offset on.")
]
After = Annotated[
    str | None,
    Query(
        max_length=100_000,
        description="Only items after this one: the `next` of the page before. Unlike `offset`, it neither "
        "repeats nor omits items if the list changes between two pages. Only in the default order, without "
        "`offset`.",
    ),
]
Contains = Annotated[
    str, Query(max_length=1_000, description="Only groups whose id contains this text, ignoring case.")
]
Descending = Annotated[bool, Query(description="Reverse the order.")]


async def resolve_topic(cluster: ClusterInfoCache, topic: str) -> bytes:
    """Return the id of a topic that is given by id or by name. Raises HTTPException: status 404 or 422."""
    topic_id = _parse_topic_id(topic)
    if topic_id is None:
        topic_id = await cluster.topic_id(topic)
    if topic_id is not None:
        return topic_id
    if cluster.failure is not None:
        raise HTTPException(
            422, f"topic: {topic!r} is not a topic id, and names are unknown: {cluster.failure}"
        )
    raise HTTPException(404, f"there is no topic {topic!r}")


def _parse_topic_id(topic: str) -> bytes | None:
    """Parse a topic id: 22 characters of base64url, or a UUID with hyphens."""
    try:
        return UUID(topic).bytes if len(topic) == 36 else parse_topic_id(topic)
    except ValueError:
        return None


Topic = Annotated[
    str,
    Query(
        max_length=249,
        description="The topic id (base64url, or a UUID with hyphens), or the name of the topic if "
        "bootstrap.servers is set. A text that can be both is an id.",
    ),
]


# Kafka's partition numbers are signed 32-bit integers.
PARTITION_MAX = 2**31 - 1

PartitionQuery = Annotated[int, Query(ge=0, le=PARTITION_MAX)]
