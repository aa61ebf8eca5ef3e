"""The ownership of a state partition: a producer id that outranks others, a claim in the log, and a lease.

The claim is what counts (`coordinator.log.claims`).  The producer id is a second line: with one transactional
id per state partition, each owner gets a higher producer epoch than the one before, and the claim, being the
first batch with it, makes the broker refuse whatever the deposed owner still sends.  Its batches are not
transactional, so there are no markers and no gaps in the offsets.
"""

import asyncio
import logging
from typing import NamedTuple

from coordinator.errors import LogError, LogUnavailable
from coordinator.kafka.cluster import Cluster, NoResponse, ProducerId
from coordinator.log.claims import AcceptedClaim, is_release, owner_epoch_headers, owner_epoch_of
from coordinator.log.kafka.replay import PartitionReader
from protocol.errors import ErrorCode
from protocol.record_batch import decode_batches

_logger = logging.getLogger(__name__)

_PAUSE_S = 0.1
# How long the broker that keeps a transactional id may not answer before a claim is made without one: as
# long as Kafka takes to miss a broker that died and have another one keep it, and then some.
_COORDINATOR_TIMEOUT_S = 15.0
_FORBIDDEN = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_SEQUENCES = 1 << 31
# A claimant waits so much longer than the lease of the owner before it, as their clocks may differ in rate.
CLOCK_DRIFT_MAX = 0.1
# An owner that writes nothing renews its lease so often, because brokers forget a producer after a day.
SILENCE_MAX_S = 12 * 3600.0


class Ownership:
    """One ownership of one state partition, from its claim on. Times are of the log's monotonic clock.

    `next_offset` is where the next record must land if nobody else writes; `sequence` what it must carry.
    `lost` says why it is over.  It is `verified` once a reader has seen that the claim was accepted; what
    counts and says something of share groups then lies below `state_end`, until more is written.

    Before `serve_from_s` the lease of an earlier owner may last.  `proven_s` is when the newest of our
    committed appends was sent: whoever claims the log does so later, and waits for our lease from then on.
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
        self.state_end = 0
        self.verified = False
        self.lost: LogError | None = None
        self.lease_s = lease_s
        self.lease_ms = round(lease_s * 1000)
        self.claimed_s = float("inf")
        self.serve_from_s = float("inf")
        self.proven_s = float("-inf")
        # The newest record that says how long our lease is, and up to where to prune when it is behind that.
        self.lease_offset = -1
        self.prune_before: int | None = None

    def record_appended(self, base_offset: int, count: int, sent_s: float = float("-inf")) -> None:
        """Note that our next records, first sent at this time, are in the log."""
        self.next_offset = base_offset + count
        self.last_own_offset = self.next_offset - 1
        self.proven_s = max(self.proven_s, sent_s)
        # Kafka's sequences wrap to 0.
        self.sequence = (self.sequence + count) % _SEQUENCES

    def accepted(self, claim: AcceptedClaim, before: "Ownership | None" = None) -> None:
        """Note that the claim was accepted, and until when earlier owners may answer.

        `before` is the last ownership of this process, which answers nothing any more.
        """
        earlier_ms, since_s = max(claim.previous_lease_ms, claim.older_lease_ms), self.claimed_s
        if before is not None and before.verified and before.owner_epoch == claim.previous_epoch:
            earlier_ms, since_s = 0, before.serve_from_s
        elif before is not None and before.claim_offset == claim.previous_offset:
            earlier_ms, since_s = claim.older_lease_ms, before.claimed_s
        self.serve_from_s = since_s + earlier_ms / 1000 * (1 + CLOCK_DRIFT_MAX)
        self.verified = True

    def lease_left_s(self, now_s: float) -> float:
        """Return the seconds for which reads may be answered; 0 or less if they may not."""
        if self.lost is not None or not self.verified or now_s < self.serve_from_s:
            return 0.0
        return self.proven_s + self.lease_s - now_s

    def renewal_due(self, now_s: float, *, read: bool) -> bool:
        """Tell whether to renew the lease: for reads, for pruning, or to stay known to the brokers."""
        if self.lost is not None or not self.verified:
            return False
        age_s = now_s - self.proven_s
        return self.prune_before is not None or (read and 2 * age_s > self.lease_s) or age_s > SILENCE_MAX_S

    def prunable(self, before_offset: int) -> int:
        """Return up to where the log may be pruned when nothing below an offset is needed.

        A record that counts has to stay at the start, because there it stands for the claims that went.
        Where no state is left, a record of a deposed owner may lie at that offset: then the next that counts
        is our claim.  And one of ours stays, to tell the owner epoch.
        """
        if self.state_end <= before_offset < self.claim_offset:
            before_offset = self.claim_offset
        return min(before_offset, self.last_own_offset)


class LogTailOwner(NamedTuple):
    """What the end of a log says of its owner: the owner epoch, 0 if none, and whether it is a release.

    `producer` is the producer id and the producer epoch of the batch.
    """

    owner_epoch: int = 0
    is_release: bool = False
    producer: tuple[int, int] = (-1, -1)

    def producer_epochs_until(self, producer: ProducerId) -> int:
        """Return how many producer epochs after that of the batch this one is, at least 1.

        The producer epochs of another producer id begin at 0.
        """
        producer_id, producer_epoch = self.producer
        if producer_id != producer.producer_id:
            producer_epoch = -1
        return max(1, producer.producer_epoch - producer_epoch)


async def read_tail_owner(
    replay: PartitionReader, state_partition: int, start: int, end: int
) -> LogTailOwner:
    """Look at the last batch of a state partition; at nothing else, so it may be a deposed owner's."""
    last = LogTailOwner()
    if start < end:
        async for chunk in replay.batches({state_partition: end - 1}, {state_partition: end}):
            for logged in chunk:
                for batch in decode_batches(logged.batch):
                    for record in batch.records:
                        owner_epoch = max(last.owner_epoch, owner_epoch_of(record) or 0)
                        producer = (batch.producer_id, batch.producer_epoch)
                        last = LogTailOwner(owner_epoch, is_release(record), producer)
    return last


class ProducerIdAllocator:
    """Gets producer ids, and goes without a transactional id where it is not allowed to have one.

    So does a claim for which the broker that keeps the transactional id cannot be reached: the leader of the
    state partition may well be.
    """

    def __init__(self, cluster: Cluster, topic: str, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._topic = topic
        self._timeout_s = timeout_s
        self._transactional = True

    async def get(self, state_partition: int) -> ProducerId:
        """Return a producer id for a new ownership. Raises LogUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        silent_until_s = loop.time() + _COORDINATOR_TIMEOUT_S
        named = self._transactional
        while True:
            name = f"share-coordinator.{self._topic}.{state_partition}" if named else None
            try:
                # Others may wait for a connection to the same broker, one behind the other.
                async with asyncio.timeout_at(silent_until_s if named else None):
                    producer = await self._cluster.producer_id(name)
                if producer.error_code == ErrorCode.NONE:
                    return producer
                why = f"Kafka's error {producer.error_code}"
                silent_until_s = loop.time() + _COORDINATOR_TIMEOUT_S
                if producer.error_code in _FORBIDDEN and named:
                    self._disable_transactional_id(why)
                    named = False
                    continue
            except (NoResponse, TimeoutError) as error:
                why = str(error) or "no answer"
                if named and loop.time() >= silent_until_s:
                    _logger.warning(
                        "state partition %d is claimed without its transactional id: %s", state_partition, why
                    )
                    named = False
                    continue
            if loop.time() >= deadline_s:
                raise LogUnavailable(f"no producer id for state partition {state_partition}: {why}")
            await asyncio.sleep(_PAUSE_S)

    def _disable_transactional_id(self, why: str) -> None:
        if not self._transactional:
            return
        self._transactional = False
        _logger.warning(
            "the transactional ids share-coordinator.%s.* cannot be used (%s): deposed owners are recognised "
            "by their records only, not refused by the brokers",
            self._topic,
            why,
        )
