"""How the text of a share-partition is read: as Kafka's SharePartitionKey.getInstance does."""

import pytest

from protocol.state_records import SharePartitionKey, topic_id_text

TOPIC_ID = bytes(range(16))
BEHIND_GROUP = f":{topic_id_text(TOPIC_ID)}:1"


@pytest.mark.parametrize("group", ["\u3000", "\u00a0", "\u0085", "\u2028", " a ", "\u0021", "a:b"])
def test_a_group_is_all_that_java_does_not_trim_away(group: str) -> None:
    assert SharePartitionKey.parse(group + BEHIND_GROUP) == SharePartitionKey(group, TOPIC_ID, 1)


@pytest.mark.parametrize("group", ["", " ", "\t \n", "\0", "\x1f\x20"])
def test_a_group_that_java_trims_away_is_none(group: str) -> None:
    with pytest.raises(ValueError, match="no group id"):
        SharePartitionKey.parse(group + BEHIND_GROUP)
