"""Filter the records of a log range by owner epoch: the rule of `coordinator.log.claims`, in two phases.

A record is valid if its owner epoch is the epoch of the last accepted claim before it. A claim is accepted if
its epoch is higher than that of all earlier claims.  Let `e` be the owner epoch at the start of a range, and
`m` the greatest claim in the range before a record. The record is valid if its owner epoch is `max(e, m)`:

* lower than `m`: the record is invalid for each `e`, and is dropped while the range is read;
* equal to `m`: the record is valid if `e` is not higher (it is *claimed*);
* higher than `m`: the record is valid if its epoch is equal to `e`.

So a range is read without knowing `e`, and its records are folded separately by owner epoch. Later, the
summaries of all earlier ranges determine `e`. An owner epoch of -1 means no owner, and is the lowest.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from coordinator.recovery.decode import DecodedRecords
from coordinator.recovery.records import Bools, Ints, Records
from coordinator.recovery.schema import NONE

_LOWER_THAN_ANY = NONE - 1


class ClaimFilter:
    """The claims of one range, in log order."""

    def __init__(self) -> None:
        self.first_owner_epoch = NONE
        self.first_is_claim = False
        # The greatest claim so far, -1 if there is none, and the number of claims, accepted or not.
        self.claimed_owner_epoch = NONE
        self.count = 0
        self._begun = False
        self._greatest = _LOWER_THAN_ANY

    def filter_records(self, records: Records, decoded: DecodedRecords) -> tuple[Bools, Bools]:
        """Process the next records of the range; return which records may be valid, and which are claimed."""
        if not len(records):
            return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
        if not self._begun:
            self._begun = True
            self.first_owner_epoch = int(records.owner_epoch[0])
            self.first_is_claim = bool(len(decoded.claims)) and int(decoded.claims[0]) == 0
        if not len(decoded.claims):
            # The usual case: there is no claim in the middle of a range.
            may_count = decoded.owner_epoch >= self._greatest
            return may_count, decoded.owner_epoch == self._greatest
        self.count += len(decoded.claims)
        greatest = np.full(len(records), self._greatest, np.int64)
        claimed = records.owner_epoch[decoded.claims]
        # A claim without an owner epoch is ignored.
        greatest[decoded.claims] = np.where(claimed > NONE, claimed, _LOWER_THAN_ANY)
        greatest = np.maximum(np.maximum.accumulate(greatest), self._greatest)
        self._greatest = int(greatest[-1])
        self.claimed_owner_epoch = max(self._greatest, NONE)
        before: Ints = greatest[decoded.record]
        return decoded.owner_epoch >= before, decoded.owner_epoch == before


def valid_records(at_start: Ints, owner_epoch: Ints, claimed: Bools) -> Bools:
    """Return which records are valid, given the owner epoch at the start of their range."""
    found: Bools = np.where(claimed, at_start <= owner_epoch, at_start == owner_epoch)
    return found


class RangeOwners(NamedTuple):
    """The owner columns of a row of `RANGES`."""

    records: int
    first_owner_epoch: int
    first_is_claim: bool
    claimed_owner_epoch: int

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "RangeOwners":
        """Read a row of `RANGES`."""
        return cls(*(row[name] for name in cls._fields))


def owner_epochs_at_starts(ranges: Iterable[RangeOwners]) -> list[int]:
    """Return the owner epoch at the start of each range of a state partition.

    The first range must begin at the start of the log. The claim before the first record may have been
    pruned, so that record's owner epoch is used.
    """
    found: list[int] = []
    owner_epoch: int | None = None
    for each in ranges:
        if owner_epoch is None and each.records:
            owner_epoch = NONE if each.first_is_claim else each.first_owner_epoch
        found.append(NONE if owner_epoch is None else owner_epoch)
        if owner_epoch is not None:
            owner_epoch = max(owner_epoch, each.claimed_owner_epoch)
    return found
