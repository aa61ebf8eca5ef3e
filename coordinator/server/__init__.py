"""Kafka's wire: frames in and out over TCP, and which RPC answers them."""

from coordinator.server.api import Api
from coordinator.server.assembly import make_listener, wire_security_of
from coordinator.server.entrance import WireSecurity
from coordinator.server.find_coordinator import CoordinatorDirectory
from coordinator.server.limits import ServerLimits
from coordinator.server.listener import Listener

__all__ = [
    "Api",
    "CoordinatorDirectory",
    "Listener",
    "ServerLimits",
    "WireSecurity",
    "make_listener",
    "wire_security_of",
]
