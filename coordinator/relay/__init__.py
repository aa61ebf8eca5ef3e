"""The relay: stands in front of a broker's inter-broker listener and leads persisters to the coordinator.

Where that listener wants SASL or TLS, the client id, by which a persister is known, cannot be seen in the
first frame of a connection. The relay carries the authentication between peer and broker, and decides then::

    peer --(advertised inter-broker address)--> relay --SASL, and all that follows--> broker
                                                  |----Persister-client-*, allowed--> share-coordinator

A process of its own, because replication depends on it: it starts at once, keeps no state, and imports
nothing of what the coordinator is made of. `relay` runs it.
"""

from coordinator.relay.process import relay

__all__ = ["relay"]
