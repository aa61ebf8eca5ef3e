"""Who owned a state partition at each place of its log, and so which of its records count.

The rule, for every reader of a log that more than one process can write to:

* A *claim* opens each ownership.  Every record carries the owner epoch of its writer in a record header.
* A record counts only if its owner epoch equals that of the last accepted claim before it.
* A claim is accepted only if its owner epoch is higher than that of the last accepted one.
* At the start of the log the last accepted claim may have been pruned away.  The first record then stands
  for it, because a log is only ever pruned up to a record that counts.  A record without the header has no
  owner epoch, which is lower than any: a log without claims (Kafka's own topic) is read as it is.

So a deposed owner that writes on without knowing it harms nobody, whatever else failed to stop it.
"""

from struct import Struct
from typing import NamedTuple

from protocol.record_batch import LogRecord

OWNER_EPOCH_HEADER = "owner-epoch"

# Record types far from those of Kafka, whose tools and loader skip them with a warning. A release says that
# the owner until now has finished: whoever comes next need not wait for it. It has no part in the rule.
CLAIM_TYPE = 32_000
RELEASE_TYPE = 32_001

_KEY = Struct(">hi")
_VALUE_VERSION = Struct(">h")
_OWNER_EPOCH = Struct(">i")


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


def encode_claim(state_partition: int, owner: str) -> tuple[bytes, bytes]:
    """Return key and value of a claim; its owner epoch is in the header, as that of any record is.

    `owner` is for people: who claimed.
    """
    return _KEY.pack(CLAIM_TYPE, state_partition), _VALUE_VERSION.pack(0) + owner.encode()


def encode_release(state_partition: int) -> tuple[bytes, bytes]:
    """Return key and value of the last record of an ownership that ends in order."""
    return _KEY.pack(RELEASE_TYPE, state_partition), _VALUE_VERSION.pack(0)


def is_claim(record: LogRecord) -> bool:
    """True if a record is a claim, accepted or not."""
    return _mark(record) == CLAIM_TYPE


def is_release(record: LogRecord) -> bool:
    """True if a record is a release."""
    return _mark(record) == RELEASE_TYPE


def is_mark(record: LogRecord) -> bool:
    """True if a record is about the ownership of the log, and not about the state of share groups."""
    return _mark(record) is not None


def _mark(record: LogRecord) -> int | None:
    key = record.key
    if key is None or len(key) != _KEY.size:
        return None
    record_type: int = _KEY.unpack(key)[0]
    return record_type if record_type in (CLAIM_TYPE, RELEASE_TYPE) else None


def owner_of(claim: LogRecord) -> str:
    """Return who made a claim, as far as it says."""
    return (claim.value or b"")[_VALUE_VERSION.size :].decode(errors="replace") or "somebody unknown"


class Accepted(NamedTuple):
    """An accepted claim: its owner epoch, its place, and who made it."""

    owner_epoch: int
    log_offset: int
    owner: str


class Validity:
    """The rule, applied to one state partition's records in log order from the start of its log.

    `owner_epoch` is that of the records that count at this place, None if they carry none; `claim` the last
    accepted claim that was seen.  A reader that goes on from a place in the middle of the log gives the owner
    epoch at that place.
    """

    def __init__(self, owner_epoch: int | None = None) -> None:
        self.owner_epoch = owner_epoch
        self.claim: Accepted | None = None
        self._begun = owner_epoch is not None
        self._headers: tuple[tuple[str, bytes | None], ...] = ()
        self._headers_epoch: int | None = None

    def counts(self, record: LogRecord) -> bool:
        """Take the next record of the log; return True if it counts. An accepted claim counts."""
        first, self._begun = not self._begun, True
        if record.headers != self._headers:
            # Nearly all records of an ownership have the same headers; looking into them is what costs.
            self._headers = record.headers
            self._headers_epoch = owner_epoch_of(record)
        owner_epoch = self._headers_epoch
        if not is_claim(record):
            if first:
                self.owner_epoch = owner_epoch
            return owner_epoch == self.owner_epoch
        if owner_epoch is None or (self.owner_epoch is not None and owner_epoch <= self.owner_epoch):
            return False
        self.owner_epoch = owner_epoch
        self.claim = Accepted(owner_epoch, record.offset, owner_of(record))
        return True
