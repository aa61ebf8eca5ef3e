"""The lease of a group membership: how long an assignment is valid after its last confirmation by Kafka.

The lease of the membership limits claims of shards. The lease of the state log (`owner.lease.ms`) limits
reads from memory.
"""

from collections.abc import Callable


class Lease:
    """The time since the request whose response confirmed the current assignment.

    No lock is needed: the lease is a single number, which one thread writes and any thread reads.
    """

    def __init__(self, lasts_s: float, monotonic: Callable[[], float]) -> None:
        self._lasts_s = lasts_s
        self._monotonic = monotonic
        self._renewed_s: float | None = None

    def renew(self, sent_s: float) -> None:
        """Start the lease at the time when the request was sent."""
        self._renewed_s = sent_s if self._renewed_s is None else max(self._renewed_s, sent_s)

    def end(self) -> None:
        self._renewed_s = None

    def age_s(self) -> float | None:
        """Return the seconds since the confirming request was sent, None without a lease."""
        renewed_s = self._renewed_s
        return None if renewed_s is None else self._monotonic() - renewed_s

    def remaining_s(self) -> float:
        """Return the remaining seconds, 0 or less after the end of the lease."""
        age_s = self.age_s()
        return 0.0 if age_s is None else self._lasts_s - age_s

    def is_fresh(self) -> bool:
        return self.remaining_s() > 0
