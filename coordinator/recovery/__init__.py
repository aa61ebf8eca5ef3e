"""The recovery jobs: read a state log of this coordinator or of Kafka's, without a running coordinator.

All jobs read a log in the same way, whatever the source and the engine::

    source       a live topic, segment files, a journal, an archive                     sources/
      | a range for each state partition, planned once, up to a cut                     job
      v
    one task for each range, in log order:                                              engines/
      parse -> decode -> filter by claims -> an observer: states, findings, history     scan, states, checks/
      | tasks on the states: count, write, compare with a cluster, select               state_tasks
      v
    small outputs to the driver: totals, findings, what differs

A state partition has all records of its share-partitions, because Kafka hashes share-partitions to state
partitions. So tasks are independent, and an engine only maps a function over log ranges. Property tests
compare the rebuilt states with those of the coordinator's function `coordinator.shard.state.apply_record`.

`schema` names the columns; `api` is for notebooks.  Numpy and pyarrow come with the extra `recovery`, PySpark
with `spark`; only `engines/spark*`, `sources/spark` and `archive_stream` import PySpark.
"""
