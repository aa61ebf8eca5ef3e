"""A Kafka cluster in memory that speaks Kafka's protocol.

`frames` decodes requests and encodes responses. `broker` and `groups` answer the requests to one broker; the
objects of the cluster and the group implement the rules. `share_groups` has the rules of share groups.
`kafka` (topics), `group` (one classic group) and `share_group_cluster` are complete clusters, each for the
tests of one package. `tests.simulation.kafka.connections` transports requests and responses on virtual time.
"""
