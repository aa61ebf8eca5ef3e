"""Forward requests that reached a coordinator that does not own the shard to the owner.

Forwarding is needed in clusters whose brokers do not look up the share coordinator; see docs/routing.md.
"""

from coordinator.serve.forwarding.forwarder import Forwarder
from coordinator.serve.forwarding.limits import ForwardingLimits
from coordinator.serve.forwarding.mode import KAFKA_STATE_TOPIC, ForwardingMode
from coordinator.serve.forwarding.operation import ClientRequest, ForwardableOperation
from coordinator.serve.forwarding.peer_connections import FORWARDED_CLIENT_ID
