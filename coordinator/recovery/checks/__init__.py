"""The checks of an audit, by module.

* `catalogue` has the meaning of a finding and advice for each check.
* `single_record` checks each record.
* `histories` checks the records of each share-partition in log order.
* `writer_sequence` checks the log of a state partition: missing offsets, writers, transactions and clocks.
* `partition_audit` makes all these checks in one pass over a state partition.
* `partition_stats` checks the totals of a state partition: pruning and load time.
* `cluster` and `baseline` compare the states with the cluster, and with an earlier audit.

A property test divides logs at random offsets into chunks, and compares the findings with those of the whole
log.
"""
