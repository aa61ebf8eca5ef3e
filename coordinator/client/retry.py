"""Retry policy: the number of attempts, and the delays between them.

Source of the defaults: PersisterStateManager and ExponentialBackoffManager of Kafka 4.4.  As in Kafka, a
failed attempt is counted before its delay is computed, so the first delay is about twice `first_s`.  The
default delays are about 2, 4, 8 and 16 seconds.
"""

from typing import NamedTuple


class RetryPolicy(NamedTuple):
    """Maximum attempts and delays. Times are in seconds; `jitter` is the maximum relative deviation."""

    attempts_max: int = 5
    first_s: float = 1.0
    multiplier: float = 2.0
    wait_max_s: float = 30.0
    jitter: float = 0.2

    def wait_s(self, failed_attempts: int, random_value: float) -> float:
        """Return the delay after `failed_attempts`; `random_value` is a random number from 0 to 1."""
        # A higher power exceeds every wait_max_s and soon the range of a float.
        planned_s = self.first_s * self.multiplier ** min(failed_attempts, 64)
        return min(planned_s * (1 + self.jitter * (2 * random_value - 1)), self.wait_max_s)


ONCE = RetryPolicy(attempts_max=1)
