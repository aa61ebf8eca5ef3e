"""Rate-limit failed logins by client address."""

from collections import OrderedDict
from collections.abc import Callable

# Number of failed logins after which an address is limited, and the time until one failed login expires.
FAILED_LOGINS_MAX = 10
FAILED_LOGIN_EXPIRY_S = 1.0
# Maximum numbers of remembered addresses and of remembered valid tokens.
_ADDRESSES_MAX = 10_000
_KNOWN_GOOD_MAX = 10_000


class LoginThrottle:
    """Counts failed logins by address.

    While an address is limited, the server refuses tokens from it without checking them, so that the response
    does not reveal whether a guess is correct. Tokens that this address has used successfully are still
    accepted. Otherwise, one client behind a proxy could lock out all clients that share the proxy's address.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        # The time at which all failed logins of an address have expired.
        self._expiry_s: OrderedDict[str, float] = OrderedDict()
        self._known_good: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return the time in seconds until the address may log in again, 0 if the address may log in now."""
        over_s = (
            self._expiry_s.get(address, 0.0) - self._now_s() - (FAILED_LOGINS_MAX - 1) * FAILED_LOGIN_EXPIRY_S
        )
        return max(0.0, over_s)

    def is_known_good(self, address: str, digest: bytes) -> bool:
        """Return whether a token with this digest was valid from this address before."""
        return (address, digest) in self._known_good

    def record_failure(self, address: str) -> None:
        now_s = self._now_s()
        self._expiry_s[address] = max(now_s, self._expiry_s.get(address, 0.0)) + FAILED_LOGIN_EXPIRY_S
        self._expiry_s.move_to_end(address)
        if len(self._expiry_s) > _ADDRESSES_MAX:
            self._expiry_s.popitem(last=False)

    def record_success(self, address: str, digest: bytes) -> None:
        """Remember a valid token."""
        self._known_good[address, digest] = None
        self._known_good.move_to_end((address, digest))
        if len(self._known_good) > _KNOWN_GOOD_MAX:
            self._known_good.popitem(last=False)

    def forget_known_good(self) -> None:
        """Forget all valid tokens; call this when the token file has changed."""
        self._known_good.clear()
