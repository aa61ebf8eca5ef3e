"""The recovery jobs: read a state log of this coordinator or of Kafka's, without a running coordinator.

All jobs read a log in the same four steps:

1. A source (`sources`: a live topic, segment files, a journal or an archive) plans a log range for each state
   partition, up to a cut (`job`).
2. An engine (`engines`) runs one task for each log range. The task parses and decodes the records in log
   order, removes the records of fenced owners, and passes the others to an observer (`scan`).
3. The observer folds the records to states (`states`), checks them (`checks`), or selects them (`history`).
4. Further tasks process the states of each state partition (`state_tasks`). Only small results, such as
   totals, findings and differences, are returned to the driver.

A state partition has all records of its share-partitions, because Kafka hashes share-partitions to state
partitions. So tasks are independent, and an engine only maps a function over log ranges. Property tests
compare the rebuilt states with those of the coordinator's function `coordinator.shard.state.apply_record`.

`schema` names the columns; `api` is for notebooks.  Numpy and pyarrow come with the extra `recovery`, PySpark
with `spark`; only `engines/spark*`, `sources/spark` and `archive_stream` import PySpark.
"""
