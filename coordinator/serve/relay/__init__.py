"""The relay: a proxy in front of a broker's inter-broker listener that routes persisters to the coordinator.

A persister is recognised by its client id. If the listener uses SASL or TLS, the first frame of a connection
does not contain the client id. The relay forwards the authentication to the broker and then chooses the
destination::

    broker --(advertised inter-broker address)--> relay --SASL, and all other clients--> its broker
                                                    |----permitted Persister-client-*--> share-coordinator

All inter-broker traffic passes through the relay. The relay is a separate process, so that a restart of the
coordinator does not interrupt replication. The relay keeps no state. To start fast, it imports none of the
coordinator's server modules. `serve_relay` runs it.
"""

from coordinator.serve.relay.process import serve_relay
