"""When a call is tried again, and how long it waits before that.

Source of the defaults: PersisterStateManager and ExponentialBackoffManager of Kafka 4.4.  As there, a
failed attempt counts before its wait is computed, so that the first wait is about twice `first_s`: with the
defaults the waits are about 2, 4, 8 and 16 seconds.
"""

from typing import NamedTuple


class RetryPolicy(NamedTuple):
    """How often and how patiently. Times in seconds; `jitter` is the part by which a wait may differ."""

    attempts_max: int = 5
    first_s: float = 1.0
    multiplier: float = 2.0
    wait_max_s: float = 30.0
    jitter: float = 0.2

    def wait_s(self, failed_attempts: int, random_value: float) -> float:
        """Return the wait after so many failed attempts; `random_value` is a random number from 0 to 1."""
        # A power beyond this is above every wait_max_s, and soon above what a float holds.
        planned_s = self.first_s * self.multiplier ** min(failed_attempts, 64)
        return min(planned_s * (1 + self.jitter * (2 * random_value - 1)), self.wait_max_s)


ONCE = RetryPolicy(attempts_max=1)
