"""Which shards a replica cannot serve because it does not reach the brokers that lead their state partitions.

A broker that lives and leads, and that this replica alone does not reach (a rule of a firewall, a route that
is broken), can be reached by others, who can serve those shards.  A broker that died is no such case: by the
next look Kafka has missed it, and its partitions have other leaders or none.
"""

import logging

from coordinator.kafka.group import Look

_logger = logging.getLogger(__name__)


class Reach:
    """What two looks in a row say together.

    `unreached` are the state partitions, in order, that are led by brokers which answered neither look.
    """

    def __init__(self) -> None:
        self.unreached: tuple[int, ...] = ()
        # The brokers that did not answer the last look, and those that count as not reached.
        self._silent: frozenset[int] = frozenset()
        self._away: frozenset[int] = frozenset()

    def looked(self, look: Look | None) -> None:
        """Draw the conclusions from a look; from None, where no broker answered, that nothing is known."""
        if look is None:
            self._silent = frozenset()
            return
        silent = frozenset(look.silent)
        away = silent & (self._silent | self._away)
        for node in sorted(away - self._away):
            _logger.warning(
                "a broker that leads shards does not answer this replica (%s): "
                "the group is asked to give them to replicas that it answers",
                look.silent[node],
                extra={"broker": node},
            )
        for node in sorted(self._away - away):
            _logger.info("a broker answers again, or leads no shard any more", extra={"broker": node})
        self._silent, self._away = silent, away
        self.unreached = tuple(sorted(shard for shard, leader in look.leaders.items() if leader in away))
