"""Decide which records of a shared log count, and how long the lease of an earlier owner may last.

The rule, for every reader of a log that more than one process can write to:

* A *claim* opens each ownership.  Every record carries the owner epoch of its writer in a record header.
* A record counts only if its owner epoch equals that of the last accepted claim before it.
* A claim is accepted only if its owner epoch is higher than that of the last accepted one.
* At the start of the log the last accepted claim may have been pruned away.  The first record then stands
  for it, because a log is only ever pruned up to a record that counts.  A record without the header has no
  owner epoch, which is lower than any: a log without claims (Kafka's own topic) is read as it is.

So the writes of a fenced owner change nothing, even if no broker rejects them.

Reads are bounded by a *lease*: an owner answers from memory only for the time `lease_ms` after it sent an
append that was committed at the expected offset.  Its claim and each *renewal* say how long that is.  A
claimant that finds no release of the owner before it waits for the longest lease that may still last.  An
owner appends nothing but its claim before that wait is over, so its first other record ends earlier leases.
"""

from struct import Struct
from typing import NamedTuple

from protocol.record_batch import LogRecord

OWNER_EPOCH_HEADER = "owner-epoch"

# Record types far from those of Kafka, whose tools and loader skip them with a warning. A release says that
# its owner answers nothing any more, so the next owner need not wait. A renewal proves that its owner still
# owns the log. Neither has a part in the rule of which records count.
CLAIM_TYPE = 32_000
RELEASE_TYPE = 32_001
RENEWAL_TYPE = 32_002
_TYPES = (CLAIM_TYPE, RELEASE_TYPE, RENEWAL_TYPE)

# No lease is longer. So long a claimant waits if it cannot know the lease of the owner before it.
LEASE_MAX_MS = 10_000

NO_TOPIC_ID = bytes(16)

_KEY = Struct(">hi")
_VERSION = Struct(">h")
_OWNER_EPOCH = Struct(">i")
# Version, lease in ms, topic id; the name of the owner follows. Version 0 had the name alone.
_CLAIM = Struct(">hi16s")
_RENEWAL = Struct(">hi")


def owner_epoch_headers(owner_epoch: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record that an owner with this owner epoch writes."""
    return ((OWNER_EPOCH_HEADER, _OWNER_EPOCH.pack(owner_epoch)),)


def owner_epoch_of(record: LogRecord) -> int | None:
    """Return the owner epoch that a record carries, or None."""
    for name, value in record.headers:
        if name == OWNER_EPOCH_HEADER and value is not None and len(value) == _OWNER_EPOCH.size:
            owner_epoch: int = _OWNER_EPOCH.unpack(value)[0]
            return owner_epoch
    return None


def encode_claim(
    state_partition: int, owner: str, lease_ms: int = LEASE_MAX_MS, topic_id: bytes = NO_TOPIC_ID
) -> tuple[bytes, bytes]:
    """Return key and value of a claim; its owner epoch is in the header, as that of any record is.

    `owner` is a name for people.
    """
    return _KEY.pack(CLAIM_TYPE, state_partition), _CLAIM.pack(1, lease_ms, topic_id) + owner.encode()


def encode_release(state_partition: int) -> tuple[bytes, bytes]:
    """Return key and value of the last record of an ownership that ends in order."""
    return _KEY.pack(RELEASE_TYPE, state_partition), _VERSION.pack(0)


def encode_renewal(state_partition: int, lease_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of a record that renews the lease of an owner without anything to write."""
    return _KEY.pack(RENEWAL_TYPE, state_partition), _RENEWAL.pack(0, lease_ms)


def is_claim(record: LogRecord) -> bool:
    """True if a record is a claim, accepted or not."""
    return _type_of_mark(record) == CLAIM_TYPE


def is_release(record: LogRecord) -> bool:
    """True if a record is a release."""
    return _type_of_mark(record) == RELEASE_TYPE


def is_ownership_record(record: LogRecord) -> bool:
    """True if a record is about the ownership of the log, and not about the state of share groups."""
    return _type_of_mark(record) is not None


def _type_of_mark(record: LogRecord) -> int | None:
    key = record.key
    if key is None or len(key) != _KEY.size:
        return None
    record_type: int = _KEY.unpack(key)[0]
    return record_type if record_type in _TYPES else None


class ClaimValue(NamedTuple):
    """The value of a claim: its lease, the topic it was made for, and the name of the owner."""

    lease_ms: int
    topic_id: bytes
    owner: str


def read_claim(claim: LogRecord) -> ClaimValue:
    """Return what a claim says; of one in another version, what is known of any."""
    value = claim.value or b""
    lease_ms, topic_id, name_at = LEASE_MAX_MS, NO_TOPIC_ID, _VERSION.size
    if len(value) >= _CLAIM.size and _VERSION.unpack_from(value)[0] == 1:
        _, lease_ms, topic_id = _CLAIM.unpack_from(value)
        name_at = _CLAIM.size
    return ClaimValue(lease_ms, topic_id, value[name_at:].decode(errors="replace") or "an unknown owner")


def owner_of(claim: LogRecord) -> str:
    """Return the name of the owner that made a claim."""
    return read_claim(claim).owner


def _renewed_lease_ms(renewal: LogRecord) -> int:
    value = renewal.value or b""
    lease_ms: int = _RENEWAL.unpack_from(value)[1] if len(value) >= _RENEWAL.size else LEASE_MAX_MS
    return lease_ms


class AcceptedClaim(NamedTuple):
    """An accepted claim.

    `previous_epoch` is the owner epoch before it, None if there was no owner, and `previous_offset` the place
    of that owner's claim, None if it was pruned.  `previous_lease_ms` is how long the lease of that owner may
    last from this claim on, and `older_lease_ms` that of any owner before.
    """

    owner_epoch: int
    log_offset: int
    owner: str
    previous_epoch: int | None = None
    previous_offset: int | None = None
    previous_lease_ms: int = 0
    older_lease_ms: int = 0


class FencingFilter:
    """The rule, applied to one state partition's records in log order from the start of its log.

    `owner_epoch` is that of the records that count at this place, None if they carry none; `claim` the last
    accepted claim that was seen.  A reader that goes on from a place in the middle of the log gives the owner
    epoch at that place.
    """

    def __init__(self, owner_epoch: int | None = None) -> None:
        self.owner_epoch = owner_epoch
        self.claim: AcceptedClaim | None = None
        self._begun = owner_epoch is not None
        self._headers: tuple[tuple[str, bytes | None], ...] = ()
        self._headers_epoch: int | None = None
        # The lease of the owner at this place, 0 once it has released the log, and the longest before it.
        self._lease_ms = LEASE_MAX_MS
        self._older_lease_ms = 0

    def accepts(self, record: LogRecord) -> bool:
        """Take the next record of the log; return True if it counts. An accepted claim counts."""
        first, self._begun = not self._begun, True
        if record.headers != self._headers:
            # Nearly all records of an ownership have the same headers; looking into them is what costs.
            self._headers = record.headers
            self._headers_epoch = owner_epoch_of(record)
        owner_epoch = self._headers_epoch
        mark = _type_of_mark(record)
        if mark != CLAIM_TYPE:
            if first:
                self.owner_epoch = owner_epoch
            if owner_epoch != self.owner_epoch:
                return False
            self._older_lease_ms = 0
            if mark == RENEWAL_TYPE:
                self._lease_ms = _renewed_lease_ms(record)
            elif mark == RELEASE_TYPE:
                self._lease_ms = 0
            elif not self._lease_ms:
                # A record after a release: the release cannot be trusted.
                self._lease_ms = LEASE_MAX_MS
            return True
        if owner_epoch is None or (self.owner_epoch is not None and owner_epoch <= self.owner_epoch):
            return False
        self._accept(record, owner_epoch, first=first)
        return True

    def _accept(self, record: LogRecord, owner_epoch: int, *, first: bool) -> None:
        previous_ms, older_ms = self._lease_ms, self._older_lease_ms
        if first:
            # What was deleted before it may have been an owner's.
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
        )
        self.owner_epoch = owner_epoch
        self._lease_ms, self._older_lease_ms = value.lease_ms, max(previous_ms, older_ms)
