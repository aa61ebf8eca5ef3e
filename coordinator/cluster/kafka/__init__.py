"""Connections, metadata and requests of a Kafka cluster. Only this package imports aiokafka.

`brokers` sends the requests of the state log, `group_client` those of the group of coordinators, and
`share_groups` and `user_topics` those about share groups and their topics. Importing the package itself does
not import aiokafka.
"""
