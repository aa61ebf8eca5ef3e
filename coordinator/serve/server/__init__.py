"""Kafka's wire protocol: read request frames over TCP, dispatch them to the RPCs, and write the responses."""

from coordinator.serve.server.api import Api
from coordinator.serve.server.find_coordinator import CoordinatorDirectory
from coordinator.serve.server.limits import ServerLimits
from coordinator.serve.server.listener import Listener
from coordinator.serve.server.listener_factory import make_listener, make_listener_security
from coordinator.serve.server.listener_security import ListenerSecurityConfig
