"""A Kafka cluster in memory that speaks Kafka's protocol.

`frames` decodes requests and encodes responses. `broker` and `groups` answer the requests of one broker, by
the rules of a cluster and of a group that they are given. `share_groups` has the rules of share groups.
`kafka` (a topic), `group` (a classic group) and `share_group_cluster` are clusters for tests of one package.
`tests.simulation.kafka.connections` carries the bytes on virtual time.
"""
