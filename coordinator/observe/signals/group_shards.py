"""Find the groups whose states are incomplete, because a shard moves or is loaded again."""

from collections.abc import Iterable

from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey


class GroupShards:
    """The shards that have states of each group, in this pass and in the last one.

    A set of shards is a number with a bit for each shard, so that many groups take little memory.
    """

    def __init__(self) -> None:
        self._owned = self._owned_before = 0
        self._found: dict[str, int] = {}
        self._found_before: dict[str, int] = {}

    def begin_pass(self, owned: Iterable[int]) -> None:
        """Begin a pass over the states of the shards of this process."""
        self._owned_before, self._owned = self._owned, _make_bits(owned)
        self._found_before, self._found = self._found, {}

    def add(self, key: SharePartitionKey, state_partitions: int) -> None:
        """Add the shard of a share-partition that has state."""
        shard = 1 << state_partition(key, state_partitions)
        self._found[key.group_id] = self._found.get(key.group_id, 0) | shard

    def keep_reloading(self, outdated: Iterable[int]) -> set[str]:
        """Return the groups that had states in outdated shards; their states there count as found again."""
        bits = _make_bits(outdated)
        reloading = {group: shards & bits for group, shards in self._found_before.items() if shards & bits}
        for group, shards in reloading.items():
            self._found[group] = self._found.get(group, 0) | shards
        return set(reloading)

    def moving(self, owned: Iterable[int]) -> set[str]:
        """Return the groups that had states in shards that this process has lost since the last pass."""
        lost = self._owned_before & ~_make_bits(owned)
        return {group for group, shards in self._found_before.items() if shards & lost}


def _make_bits(shards: Iterable[int]) -> int:
    return sum(1 << shard for shard in set(shards))
