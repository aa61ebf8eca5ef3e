"""Parameters of paths and queries: group ids with any characters, topic ids in two formats, paging."""

from typing import Annotated
from urllib.parse import unquote
from uuid import UUID

from fastapi import Depends, HTTPException, Path, Query

from coordinator.admin.api_models import ErrorResponse, Responses
from protocol.state_records import parse_topic_id

GROUPS_PATH = "/api/v1/groups"

MALFORMED: Responses = {
    422: {"model": ErrorResponse, "description": "A parameter of the path or the query is invalid."}
}

Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of items.")]
# A smaller maximum, for lists whose items take more work.
ShortLimit = Annotated[int, Query(ge=1, le=1_000, description="Maximum number of items.")]
Offset = Annotated[int, Query(ge=0, description="Number of items to skip.")]
Columns = Annotated[
    int, Query(ge=0, le=1_000, description="Add chart data of the window with this number of columns.")
]
FromOffset = Annotated[
    int, Query(ge=0, description="With columns: add up to 256 offset ranges from this offset on.")
]
Contains = Annotated[
    str, Query(max_length=1_000, description="Only groups whose id contains this text, ignoring case.")
]
Descending = Annotated[bool, Query(description="Reverse the order.")]


async def _group(
    group: Annotated[str, Path(description="The group id, percent-encoded (`/` as %2F).")],
) -> str:
    try:
        return unquote(group, errors="strict")
    except UnicodeDecodeError:
        raise HTTPException(422, f"group: {group!r} is not percent-encoded UTF-8") from None


def parse_topic(topic: str) -> bytes:
    """Parse a topic id. Raises HTTPException with status 422."""
    try:
        return UUID(topic).bytes if len(topic) == 36 else parse_topic_id(topic)
    except ValueError:
        raise HTTPException(
            422, f"topic: {topic!r} is not a topic id: 22 characters of base64url, or a UUID with hyphens"
        ) from None


_TOPIC_DESCRIPTION = "The topic id: base64url, or a UUID with hyphens."


async def _topic(topic: Annotated[str, Path(description=_TOPIC_DESCRIPTION)]) -> bytes:
    return parse_topic(topic)


async def _topic_query(topic: Annotated[str, Query(description=_TOPIC_DESCRIPTION)]) -> bytes:
    return parse_topic(topic)


# Kafka's partition numbers are signed 32-bit integers.
PARTITION_MAX = 2**31 - 1

GroupId = Annotated[str, Depends(_group)]
TopicId = Annotated[bytes, Depends(_topic)]
TopicIdQuery = Annotated[bytes, Depends(_topic_query)]
Partition = Annotated[int, Path(ge=0, le=PARTITION_MAX)]
PartitionQuery = Annotated[int, Query(ge=0, le=PARTITION_MAX)]
