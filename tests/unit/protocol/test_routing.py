"""Which state partition a share-partition is in: the corner of Java's hash that no recorded answer meets."""

from protocol.routing import java_hash, state_partition
from protocol.state_records import SharePartitionKey


def test_the_least_hash_has_no_absolute_value_and_counts_as_0() -> None:
    key = SharePartitionKey("ABXENDB", bytes(range(16)), 0)
    assert java_hash(str(key)) == 0x80000000
    assert [state_partition(key, count) for count in (1, 3, 50)] == [0, 0, 0]
