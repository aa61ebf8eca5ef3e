"""Rate-limit failed logins by client address."""

from collections import OrderedDict
from collections.abc import Callable

# Failed logins that an address may make at once, and the time until it may make one more.
FAILED_LOGINS_MAX = 10
FAILED_LOGIN_FORGIVEN_S = 1.0
# The number of remembered addresses and of remembered valid tokens.
_ADDRESSES_MAX = 10_000
_KNOWN_GOOD_MAX = 10_000


class LoginThrottle:
    """Counts failed logins by address.

    While an address is limited, all its tokens are refused, so that the response does not show whether a
    guess was right. Tokens that were valid from this address before are accepted: many clients may share the
    address of a proxy, and one of them must not lock out the others.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        # The time at which all failed logins of an address are forgiven.
        self._forgiven_s: OrderedDict[str, float] = OrderedDict()
        self._known_good: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before its next attempt, 0 if it may try now."""
        over_s = (
            self._forgiven_s.get(address, 0.0)
            - self._now_s()
            - (FAILED_LOGINS_MAX - 1) * FAILED_LOGIN_FORGIVEN_S
        )
        return max(0.0, over_s)

    def is_known_good(self, address: str, digest: bytes) -> bool:
        """Return whether a token with this digest was valid from this address before."""
        return (address, digest) in self._known_good

    def record_failure(self, address: str) -> None:
        """Count a failed login."""
        now_s = self._now_s()
        self._forgiven_s[address] = max(now_s, self._forgiven_s.get(address, 0.0)) + FAILED_LOGIN_FORGIVEN_S
        self._forgiven_s.move_to_end(address)
        if len(self._forgiven_s) > _ADDRESSES_MAX:
            self._forgiven_s.popitem(last=False)

    def record_success(self, address: str, digest: bytes) -> None:
        """Remember a valid token."""
        self._known_good[address, digest] = None
        self._known_good.move_to_end((address, digest))
        if len(self._known_good) > _KNOWN_GOOD_MAX:
            self._known_good.popitem(last=False)

    def forget_known_good(self) -> None:
        """Forget valid tokens, because the token file changed."""
        self._known_good.clear()
