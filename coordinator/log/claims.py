"""Decide which records of a shared log are valid, and how long an earlier owner's lease may last.

These rules apply to every reader of a log that more than one process can write to:

* A *claim* begins each ownership.  Every record carries its writer's owner epoch in a record header.
* A record is valid only if its owner epoch equals that of the last accepted claim before it.
* A claim is accepted only if its owner epoch is higher than that of the last accepted claim.
* The last accepted claim before the start of the log may have been pruned.  If it was pruned, the first
  record determines the owner epoch, because a log is only pruned up to a valid record.
* A record without the header has no owner epoch, which is lower than any owner epoch.  In a log without
  claims (Kafka's own topic), all records are therefore valid.

Records of a fenced owner therefore have no effect, even if no broker rejects them.

A *lease* limits reads: an owner serves reads from memory for `lease_ms` after it sent an append that was
committed at the expected offset.  The claim and each *renewal* contain this duration.  If the previous owner
wrote no release, the new owner waits for the longest lease that may still be valid.  Until then the new owner
appends only its claim. The next record of the new owner therefore proves that earlier leases have ended.
"""

from struct import Struct
from typing import NamedTuple

from coordinator.cluster.kafka.metadata import NO_TOPIC_ID
from protocol.record_batch import LogRecord

OWNER_EPOCH_HEADER = "owner-epoch"

# Record types that Kafka does not use; Kafka's tools and loader skip them with a warning. After its release,
# an owner serves no requests, so the next owner need not wait. A renewal proves that its owner still owns the
# log. Releases and renewals do not affect which records are valid.
CLAIM_TYPE = 32_000
RELEASE_TYPE = 32_001
RENEWAL_TYPE = 32_002
_TYPES = (CLAIM_TYPE, RELEASE_TYPE, RENEWAL_TYPE)

# Maximum lease. A new owner waits this long if it cannot know the previous owner's lease.
LEASE_MAX_MS = 10_000

_KEY = Struct(">hi")
_VERSION = Struct(">h")
_OWNER_EPOCH = Struct(">i")
# Version, lease in ms, topic id; then the owner's name. Version 0 had only the name.
_CLAIM = Struct(">hi16s")
_RENEWAL = Struct(">hi")


def owner_epoch_headers(owner_epoch: int) -> tuple[tuple[str, bytes], ...]:
    return ((OWNER_EPOCH_HEADER, _OWNER_EPOCH.pack(owner_epoch)),)


def read_owner_epoch(record: LogRecord) -> int | None:
    for name, value in record.headers:
        if name == OWNER_EPOCH_HEADER and value is not None and len(value) == _OWNER_EPOCH.size:
            owner_epoch: int = _OWNER_EPOCH.unpack(value)[0]
            return owner_epoch
    return None


def encode_claim(
    state_partition: int, owner: str, lease_ms: int = LEASE_MAX_MS, topic_id: bytes = NO_TOPIC_ID
) -> tuple[bytes, bytes]:
    """Return key and value of a claim; the owner epoch is in the record header, as for any record.

    `owner` is a display name.
    """
    return _KEY.pack(CLAIM_TYPE, state_partition), _CLAIM.pack(1, lease_ms, topic_id) + owner.encode()


def encode_release(state_partition: int) -> tuple[bytes, bytes]:
    """Return key and value of a release, the last record of an ownership."""
    return _KEY.pack(RELEASE_TYPE, state_partition), _VERSION.pack(0)


def encode_renewal(state_partition: int, lease_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of a renewal, which extends the lease if there is nothing else to write."""
    return _KEY.pack(RENEWAL_TYPE, state_partition), _RENEWAL.pack(0, lease_ms)


def is_claim(record: LogRecord) -> bool:
    """True if a record is a claim, accepted or not."""
    return _ownership_record_type(record) == CLAIM_TYPE


def is_release(record: LogRecord) -> bool:
    return _ownership_record_type(record) == RELEASE_TYPE


def is_ownership_record(record: LogRecord) -> bool:
    """True if a record concerns the ownership of the log, not the state of share groups."""
    return _ownership_record_type(record) is not None


def _ownership_record_type(record: LogRecord) -> int | None:
    key = record.key
    if key is None or len(key) != _KEY.size:
        return None
    record_type: int = _KEY.unpack(key)[0]
    return record_type if record_type in _TYPES else None


class ClaimValue(NamedTuple):
    """The value of a claim: the lease, the topic, and the name of the owner."""

    lease_ms: int
    topic_id: bytes
    owner: str


def read_claim(claim: LogRecord) -> ClaimValue:
    """Decode the value of a claim; unknown versions yield the name and default values."""
    value = claim.value or b""
    lease_ms, topic_id, name_at = LEASE_MAX_MS, NO_TOPIC_ID, _VERSION.size
    if len(value) >= _CLAIM.size and _VERSION.unpack_from(value)[0] == 1:
        _, lease_ms, topic_id = _CLAIM.unpack_from(value)
        name_at = _CLAIM.size
    return ClaimValue(lease_ms, topic_id, value[name_at:].decode(errors="replace") or "an unknown owner")


def claim_owner_name(claim: LogRecord) -> str:
    return read_claim(claim).owner


def _renewed_lease_ms(renewal: LogRecord) -> int:
    value = renewal.value or b""
    lease_ms: int = _RENEWAL.unpack_from(value)[1] if len(value) >= _RENEWAL.size else LEASE_MAX_MS
    return lease_ms


class AcceptedClaim(NamedTuple):
    """An accepted claim.

    `previous_epoch` is the owner epoch before this claim, None if there was no owner.  `previous_offset` is
    the log offset of that owner's claim, None if it was pruned.  From this claim on, the lease of the
    previous owner may last `previous_lease_ms`, and that of any earlier owner `older_lease_ms`. `topic_id` is
    the topic that the claim was made for, NO_TOPIC_ID if the owner did not know it.
    """

    owner_epoch: int
    log_offset: int
    owner: str
    previous_epoch: int | None = None
    previous_offset: int | None = None
    previous_lease_ms: int = 0
    older_lease_ms: int = 0
    topic_id: bytes = NO_TOPIC_ID


class FencingFilter:
    """Applies these rules to the records of one state partition, in log order from the log's start.

    `owner_epoch` is the owner epoch of valid records at this position, None if records carry no owner epoch.
    `claim` is the last accepted claim that was read.  To start in the middle of the log, pass the owner epoch
    at that position.
    """

    def __init__(self, owner_epoch: int | None = None) -> None:
        self.owner_epoch = owner_epoch
        self.claim: AcceptedClaim | None = None
        self._begun = owner_epoch is not None
        self._headers: tuple[tuple[str, bytes | None], ...] = ()
        self._headers_epoch: int | None = None
        # The present owner's lease, 0 after its release, and the longest lease of earlier owners.
        self._lease_ms = LEASE_MAX_MS
        self._older_lease_ms = 0

    def accepts(self, record: LogRecord) -> bool:
        """Process the next record of the log; return True if it is valid. An accepted claim is valid."""
        first, self._begun = not self._begun, True
        if record.headers != self._headers:
            # Parsing headers is expensive, and most records of an ownership have equal headers.
            self._headers = record.headers
            self._headers_epoch = read_owner_epoch(record)
        owner_epoch = self._headers_epoch
        record_type = _ownership_record_type(record)
        if record_type != CLAIM_TYPE:
            if first:
                self.owner_epoch = owner_epoch
            if owner_epoch != self.owner_epoch:
                return False
            self._older_lease_ms = 0
            if record_type == RENEWAL_TYPE:
                self._lease_ms = _renewed_lease_ms(record)
            elif record_type == RELEASE_TYPE:
                self._lease_ms = 0
            elif not self._lease_ms:
                # A record after a release contradicts the release, so the maximum lease applies.
                self._lease_ms = LEASE_MAX_MS
            return True
        if owner_epoch is None or (self.owner_epoch is not None and owner_epoch <= self.owner_epoch):
            return False
        self._accept_claim(record, owner_epoch, first=first)
        return True

    def _accept_claim(self, record: LogRecord, owner_epoch: int, *, first: bool) -> None:
        previous_ms, older_ms = self._lease_ms, self._older_lease_ms
        if first:
            # If records before this claim were pruned, an unknown owner may have written them.
            previous_ms = LEASE_MAX_MS if record.offset else 0
        elif self.owner_epoch is None:
            previous_ms = 0
        value = read_claim(record)
        previous_offset = None if self.claim is None else self.claim.log_offset
        self.claim = AcceptedClaim(
            owner_epoch,
            record.offset,
            value.owner,
            self.owner_epoch,
            previous_offset,
            previous_ms,
            older_ms,
            value.topic_id,
        )
        self.owner_epoch = owner_epoch
        self._lease_ms, self._older_lease_ms = value.lease_ms, max(previous_ms, older_ms)
