"""Expiration of abandoned state, after KIP-211: what nobody wants any more goes after a time.

`watch` and `decide` are pure: what was seen of groups over time, and what follows from it.  `observer` asks
Kafka, `remover` removes, `expiry` does both now and then.
"""

from coordinator.expiry.assembly import make_expiry
from coordinator.expiry.decide import Abandoned, Reason, Rules, Status
from coordinator.expiry.expiry import Expiry, ExpiryMetrics, Forecast, Round
from coordinator.expiry.memory import MemoryFile
from coordinator.expiry.remover import Removal

__all__ = [
    "Abandoned",
    "Expiry",
    "ExpiryMetrics",
    "Forecast",
    "MemoryFile",
    "Reason",
    "Removal",
    "Round",
    "Rules",
    "Status",
    "make_expiry",
]
