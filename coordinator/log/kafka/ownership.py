"""The ownership of a state partition: a producer id that fences earlier owners, a claim, and a lease.

The claims in the log determine the owner (`coordinator.log.claims`). The producer id is an additional
protection. All owners of a state partition use one transactional id, so each owner gets a higher producer
epoch. The claim is the first batch with the new producer epoch. From then on, the broker rejects batches of
the previous owner. Batches are not transactional, so the log has no transaction markers and no gaps in its
offsets.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from coordinator.cluster.kafka.broker_results import NoResponse, ProducerId
from coordinator.errors import LogError, LogUnavailable
from coordinator.log.claims import AcceptedClaim, is_release, owner_epoch_headers, read_owner_epoch
from coordinator.log.kafka.replay import PartitionReader
from protocol.errors import ErrorCode, kafka_error
from protocol.record_batch import decode_batches

if TYPE_CHECKING:
    from coordinator.cluster.kafka.brokers import Brokers

_logger = logging.getLogger(__name__)

_PAUSE_S = 0.1
# Maximum wait for the transaction coordinator, at most half of the timeout. After it, the claim is made
# without a transactional id. Kafka needs less time to detect a dead broker and to move its transactional ids.
_COORDINATOR_TIMEOUT_S = 15.0
_FORBIDDEN = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_SEQUENCES = 1 << 31
# The fraction by which a claimant waits longer than the previous lease, because clock rates differ.
CLOCK_DRIFT_MAX = 0.1
# An idle owner renews its lease at this interval: brokers delete the state of an idle producer after a day.
IDLE_RENEWAL_INTERVAL_S = 12 * 3600.0

# The node id of the leader of a partition, and its leader epoch.
Leader = tuple[int, int]


class Ownership:
    """One ownership of one state partition, from its claim on. Times are of the log's monotonic clock.

    `next_offset` is the expected offset of the next record, and `sequence` is its producer sequence. `leader`
    is the node id and the leader epoch of the leader that has the newest record of this owner. `lost`
    is the error that ended the ownership. `verified` is True after a read has found the claim accepted. In
    that read, all valid records with state were below `state_end`.

    Leases of earlier owners may last until `serve_from_s`, which is infinite until `verified`. `proven_s` is
    the send time of this owner's newest committed append. The next owner claims the log later than
    `proven_s`, and then waits for this owner's lease.
    """

    def __init__(
        self, state_partition: int, owner_epoch: int, producer: ProducerId, lease_s: float = 0.0
    ) -> None:
        self.state_partition = state_partition
        self.owner_epoch = owner_epoch
        self.headers = owner_epoch_headers(owner_epoch)
        self.producer_id = producer.producer_id
        self.producer_epoch = producer.producer_epoch
        self.sequence = 0
        self.claim_offset = -1
        self.next_offset = -1
        self.last_own_offset = -1
        self.leader: Leader | None = None
        self.state_end = 0
        self.verified = False
        self.lost: LogError | None = None
        self.lease_s = lease_s
        self.lease_ms = round(lease_s * 1000)
        self.claimed_s = float("inf")
        self.serve_from_s = float("inf")
        self.proven_s = float("-inf")
        # The offset of the newest record with this owner's lease. Pruning to `prune_before` waits until this
        # offset is not below `prune_before`.
        self.lease_offset = -1
        self.prune_before: int | None = None

    def record_appended(self, base_offset: int, count: int, sent_s: float, leader: Leader | None) -> None:
        """Record that the next `count` records, first sent at `sent_s`, are in the log of `leader`."""
        self.leader = leader
        self.next_offset = base_offset + count
        self.last_own_offset = self.next_offset - 1
        self.proven_s = max(self.proven_s, sent_s)
        # Producer sequences wrap around to 0.
        self.sequence = (self.sequence + count) % _SEQUENCES

    def record_accepted_claim(self, claim: AcceptedClaim, previous: "Ownership | None" = None) -> None:
        """Record that the claim was accepted, and compute when the leases of earlier owners end.

        `previous` is the previous ownership of this process, which answers no reads any more.
        """
        earlier_ms, since_s = max(claim.previous_lease_ms, claim.older_lease_ms), self.claimed_s
        if previous is not None and previous.verified and previous.owner_epoch == claim.previous_epoch:
            earlier_ms, since_s = 0, previous.serve_from_s
        elif previous is not None and previous.claim_offset == claim.previous_offset:
            earlier_ms, since_s = claim.older_lease_ms, previous.claimed_s
        self.serve_from_s = since_s + earlier_ms / 1000 * (1 + CLOCK_DRIFT_MAX)
        self.verified = True

    def lease_left_s(self, now_s: float) -> float:
        if self.lost is not None or now_s < self.serve_from_s:
            return 0.0
        return self.proven_s + self.lease_s - now_s

    def renewal_due(self, now_s: float, *, read: bool) -> bool:
        """Return whether to renew the lease, for reads or pruning, or to keep the producer id alive."""
        if self.lost is not None or not self.verified:
            return False
        age_s = now_s - self.proven_s
        return (
            self.prune_before is not None
            or (read and 2 * age_s > self.lease_s)
            or age_s > IDLE_RENEWAL_INTERVAL_S
        )

    def prunable_offset(self, before_offset: int) -> int:
        """Return the offset to which the log may be pruned if no record below `before_offset` is needed.

        The first remaining record must be valid, because its owner epoch replaces the pruned claims. If no
        state is left, the record at `before_offset` may be from a fenced owner, and the next valid record is
        this owner's claim. One record of this owner also remains, to preserve its owner epoch.
        """
        if self.state_end <= before_offset < self.claim_offset:
            before_offset = self.claim_offset
        return min(before_offset, self.last_own_offset)


class OwnerInLastRecord(NamedTuple):
    """The owner in the last record of a log: its owner epoch, 0 if none, and whether the record is a release.

    `producer` is the producer id and the producer epoch of the batch.
    """

    owner_epoch: int = 0
    is_release: bool = False
    producer: tuple[int, int] = (-1, -1)

    def producer_epochs_until(self, producer: ProducerId) -> int:
        """Return the number of producer epochs from this producer's to that of `producer`, at least 1.

        The epochs of a different producer id start at 0.
        """
        producer_id, producer_epoch = self.producer
        if producer_id != producer.producer_id:
            producer_epoch = -1
        return max(1, producer.producer_epoch - producer_epoch)


async def read_tail_owner(
    replay: PartitionReader, state_partition: int, start: int, end: int
) -> OwnerInLastRecord:
    """Return the owner in the last batch of a state partition, which may be a fenced owner."""
    last = OwnerInLastRecord()
    if start < end:
        async for chunk in replay.batches({state_partition: end - 1}, {state_partition: end}):
            for logged in chunk:
                for batch in decode_batches(logged.batch):
                    for record in batch.records:
                        owner_epoch = max(last.owner_epoch, read_owner_epoch(record) or 0)
                        producer = (batch.producer_id, batch.producer_epoch)
                        last = OwnerInLastRecord(owner_epoch, is_release(record), producer)
    return last


class ProducerIdAllocator:
    """Allocates producer ids, without a transactional id if this client is not authorized to use one.

    If the transaction coordinator is not available, a claim also omits the transactional id, because the
    leader of the state partition may be available.
    """

    def __init__(self, cluster: "Brokers", topic: str, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._topic = topic
        self._timeout_s = timeout_s
        self._transactional = True

    async def get(self, state_partition: int) -> ProducerId:
        """Return a producer id for a new ownership. Raises LogUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        coordinator_deadline_s = loop.time() + min(_COORDINATOR_TIMEOUT_S, self._timeout_s / 2)
        transactional, why = self._transactional, "no answer"
        while True:
            name = f"share-coordinator.{self._topic}.{state_partition}" if transactional else None
            try:
                # Calls wait for a connection to the same broker one after the other, so limit the total wait.
                async with asyncio.timeout_at(coordinator_deadline_s if transactional else None):
                    producer = await self._cluster.init_producer_id(name)
                if producer.error_code == ErrorCode.NONE:
                    return producer
                why = kafka_error(producer.error_code)
                if producer.error_code in _FORBIDDEN and transactional:
                    self._disable_transactional_id(why)
                    transactional = False
                    continue
            except (NoResponse, TimeoutError) as error:
                why = str(error) or why
            if transactional and loop.time() >= coordinator_deadline_s:
                _logger.warning(
                    "state partition %d is claimed without its transactional id: %s", state_partition, why
                )
                transactional = False
                continue
            if loop.time() >= deadline_s:
                raise LogUnavailable(f"no producer id for state partition {state_partition}: {why}")
            await asyncio.sleep(_PAUSE_S)

    def _disable_transactional_id(self, why: str) -> None:
        if not self._transactional:
            return
        self._transactional = False
        _logger.warning(
            "the transactional ids share-coordinator.%s.* cannot be used (%s): brokers do not reject appends "
            "of fenced owners, and readers recognise them by their owner epoch only",
            self._topic,
            why,
        )
