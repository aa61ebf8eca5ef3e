"""Expire abandoned share-group state, as KIP-211 does for the offsets of consumer groups.

`observations` and `rules` are pure: the history of each group, and the decision which state expires.
`observer` queries Kafka, `remover` deletes state, and `expiry` runs both periodically.
"""

from coordinator.operate.expiry.expiry import Expiry, ExpiryForecast, ExpiryRoundResult, make_expiry
from coordinator.operate.expiry.observer import ObservationStore
from coordinator.operate.expiry.remover import RemovalResult
from coordinator.operate.expiry.rules import AbandonedState, AbandonmentReason, ExpiryRules, ExpiryStatus
