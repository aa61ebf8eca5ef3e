"""Expiration of abandoned state, after KIP-211: what nobody wants any more goes after a time.

`watch` and `decide` are pure: what was seen of groups over time, and what follows from it.  `observer` asks
Kafka, `remover` removes, `expiry` does both now and then.
"""

from coordinator.expiry.expiry import Expiry, ExpiryMetrics, Forecast, RoundResult
from coordinator.expiry.factory import make_expiry
from coordinator.expiry.observation_store import ObservationStore
from coordinator.expiry.remover import Removal
from coordinator.expiry.rules import AbandonedState, Reason, Rules, Status

__all__ = [
    "AbandonedState",
    "Expiry",
    "ExpiryMetrics",
    "Forecast",
    "ObservationStore",
    "Reason",
    "Removal",
    "RoundResult",
    "Rules",
    "Status",
    "make_expiry",
]
