"""Detect brokers that lead shards of this replica but do not answer it.

If only this replica cannot reach a live broker (a firewall rule, a broken route), other replicas can serve
the shards that the broker leads. If a broker has failed, no shard has to move: before the next probe, Kafka
elects other leaders for the broker's partitions.

A replica probes the brokers that lead its own shards, and brokers that another replica did not reach.
Therefore, a round has about one probe for each shard, not one for each pair of replica and broker. Before a
shard moves, all replicas have probed its leader.
"""

import logging
from collections.abc import Iterable, Mapping

from coordinator.cluster.kafka.group_results import MetadataSnapshot

_logger = logging.getLogger(__name__)

# Maximum number of brokers in one round of probes. Brokers that did not answer the last round are probed in
# addition. If more brokers are due, they are probed in rotation.
PROBES_MAX = 20


class BrokerReachability:
    """Tracks which brokers answered the last two rounds of probes.

    `unreached` are the brokers that lead state partitions and answered neither of the last two probes,
    sorted. `suspected` are the brokers that at least one replica does not reach.
    """

    def __init__(self) -> None:
        self.unreached: tuple[int, ...] = ()
        self.suspected: frozenset[int] = frozenset()
        # The brokers that did not answer the last probe, and those that count as unreached.
        self._silent: frozenset[int] = frozenset()
        self._away: frozenset[int] = frozenset()
        self._last_probed = -1

    def brokers_to_probe(self, leaders: Mapping[int, int], held: Iterable[int]) -> set[int]:
        """Return the brokers to probe next.

        `leaders` maps each shard to the broker that leads its state partition; `held` has the shards of this
        replica.
        """
        all_leaders = {*leaders.values()}
        due = {leaders[shard] for shard in held if shard in leaders} | (self.suspected & all_leaders)
        chosen = sorted(due, key=lambda node: (node <= self._last_probed, node))[:PROBES_MAX]
        if chosen:
            self._last_probed = chosen[-1]
        return {*chosen, *((self._silent | self._away) & all_leaders)}

    def record_probes(self, snapshot: MetadataSnapshot | None) -> None:
        """Evaluate the results of a round of probes; None means that no broker answered."""
        if snapshot is None:
            self._silent = frozenset()
            return
        silent = frozenset(snapshot.silent)
        away = silent & (self._silent | self._away)
        for node in sorted(away - self._away):
            _logger.warning(
                "A broker that leads state partitions does not answer this replica (%s). "
                "The group is asked to assign them to replicas that reach it.",
                snapshot.silent[node],
                extra={"broker": node},
            )
        for node in sorted(self._away - away):
            _logger.info(
                "A broker answers again, or no longer leads a state partition.", extra={"broker": node}
            )
        self._silent, self._away = silent, away
        self.unreached = tuple(sorted(away & {*snapshot.leaders.values()}))
