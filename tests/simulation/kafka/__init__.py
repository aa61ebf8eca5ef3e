"""Simulate several coordinators on a faulty Kafka cluster, with assignments that are often outdated.

`brokers` simulates the brokers, and `connections` the network between coordinators and brokers. `membership`
runs the real membership code of the group of coordinators. `world` holds the processes, and `nemesis` injects
faults.

`raw_log` decides independently of the coordinator which records of a log are accepted. `log_truncation`
checks histories of clusters that lost acknowledged records.
"""
