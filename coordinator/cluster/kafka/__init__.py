"""Connections, metadata and requests of a Kafka cluster. Only this package imports aiokafka.

`cluster` is the interface of the state log to a cluster, in plain values; `brokers` implements it. Importing
the package itself does not import aiokafka.
"""
