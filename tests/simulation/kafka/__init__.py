"""Simulate several coordinators on a faulty Kafka cluster, with group membership that is often wrong.

`brokers` simulates brokers with faults, and `connections` the network between coordinators and brokers.
`membership` assigns shards with the product's group membership. `world` has the processes, and `nemesis`
injects faults.

`raw_log` implements independently which records of a log an owner's claim accepts. `log_truncation` checks
histories if the cluster lost acknowledged records.
"""
