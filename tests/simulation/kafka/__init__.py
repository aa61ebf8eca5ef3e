"""Simulate several coordinators on a Kafka cluster with faults and a membership that is often wrong.

`brokers` has the faults of brokers, `membership` assigns shards, and `world` and `nemesis` inject faults.
`raw_log` has a second implementation of the claim rule. `log_truncation` checks histories if the cluster lost
acknowledged records.
"""
