"""The recovery jobs: read a state log of this coordinator or of Kafka's, without a running coordinator.

All jobs have the same phases, whatever the source and the engine::

    source   a live topic, segment files, a journal, an archive      sources/
      | ranges of the log, planned once, up to a cut (log offsets or a time)
      v
    phase 1  for each range: parse -> decode -> filter by claims -> fold   parse, decode, claim_filter, fold
      | partial states, one row for each share-partition of a range
      v
    phase 2  drop fenced owner epochs, and join the partial states         final_states, fold
      |
      v
    states   parquet, JSON, a table; or the input of a job

A partial state summarises a range of the log for one share-partition. Partial states of adjacent ranges join
in any grouping (`fold`), so any number of processes reads the ranges in any order.  Property tests compare
the states with those of the coordinator's own function, `coordinator.shard.state.apply_record`.

`schema` names the columns; `api` is for notebooks.  Numpy and pyarrow come with the extra `recovery`, PySpark
with `spark`; only `engines/spark*` and `sources/spark*` import PySpark.
"""
