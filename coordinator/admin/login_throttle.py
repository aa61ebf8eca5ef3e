"""Guessing, slowed down: how often somebody may be wrong."""

from collections import OrderedDict
from collections.abc import Callable

# Wrong tokens that an address may send in one go, and how long it takes until it may send one more.
FAILED_LOGINS_MAX = 10
FAILED_LOGIN_FORGIVEN_S = 1.0
# Addresses that are remembered; and what has been right before.
_ADDRESSES_MAX = 10_000
_KNOWN_GOOD_MAX = 10_000


class LoginThrottle:
    """Counts wrong tokens by address.

    An address that has used its attempts up is not listened to for a while, whatever it sends: else the
    answer to a guess would tell whether it was right.  Except for what it has sent before and was right,
    because behind one address, that of a proxy, there may be many people, and one that guesses must not lock
    out the others.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        # When all that an address did wrong is forgotten.
        self._forgiven_s: OrderedDict[str, float] = OrderedDict()
        self._known_good: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before it may try again, 0 if it need not."""
        over_s = (
            self._forgiven_s.get(address, 0.0)
            - self._now_s()
            - (FAILED_LOGINS_MAX - 1) * FAILED_LOGIN_FORGIVEN_S
        )
        return max(0.0, over_s)

    def is_known_good(self, address: str, digest: bytes) -> bool:
        """Tell whether an address has sent a token of this digest, and it was good."""
        return (address, digest) in self._known_good

    def record_failure(self, address: str) -> None:
        """Note a wrong token."""
        now_s = self._now_s()
        self._forgiven_s[address] = max(now_s, self._forgiven_s.get(address, 0.0)) + FAILED_LOGIN_FORGIVEN_S
        self._forgiven_s.move_to_end(address)
        if len(self._forgiven_s) > _ADDRESSES_MAX:
            self._forgiven_s.popitem(last=False)

    def record_success(self, address: str, digest: bytes) -> None:
        """Note a token that is good."""
        self._known_good[address, digest] = None
        self._known_good.move_to_end((address, digest))
        if len(self._known_good) > _KNOWN_GOOD_MAX:
            self._known_good.popitem(last=False)

    def forget_known_good(self) -> None:
        """Forget what was right: the tokens are others now."""
        self._known_good.clear()
