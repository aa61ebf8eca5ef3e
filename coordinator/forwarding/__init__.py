"""Forwarding: a request that reached the wrong coordinator is carried to the right one.

For clusters whose brokers do not ask who the coordinator is; see docs/routing.md.
"""

from coordinator.forwarding.forwarder import Forwarder
from coordinator.forwarding.limits import ForwardingLimits
from coordinator.forwarding.mode import KAFKA_STATE_TOPIC, ForwardingMode
from coordinator.forwarding.operation import ClientRequest, ForwardableOperation
from coordinator.forwarding.peer_connections import FORWARDED_CLIENT_ID

__all__ = [
    "FORWARDED_CLIENT_ID",
    "KAFKA_STATE_TOPIC",
    "ClientRequest",
    "ForwardableOperation",
    "Forwarder",
    "ForwardingLimits",
    "ForwardingMode",
]
