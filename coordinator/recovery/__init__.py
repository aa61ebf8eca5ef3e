"""The recovery jobs: read a state log of this coordinator or of Kafka's, without a running coordinator.

All jobs have the same phases, whatever the source and the engine::

    source   a live topic, segment files, a journal, an archive      sources/
      | ranges of the log, fixed once, up to a cut
      v
    phase 1  for each range: parse -> decode -> filter by claims -> fold   parse, decode, claim_filter, fold
      | partial states, one row for each share-partition of a range
      v
    phase 2  the ranges that count are known: join the partial states      final_states, fold
      |
      v
    states   parquet, JSON, a table; or the input of a job

A partial state summarises a stretch of the log. It joins with its neighbours in any grouping (`fold`), so
ranges are read in any order, by any number of processes.  `coordinator.shard.state.advance` defines the
meaning of a record; property tests compare this package with it.

`schema` names the columns; `api` is for notebooks.  Numpy and pyarrow come with the extra `recovery`, PySpark
with `spark`; only `engines/spark*` and `sources/spark*` import PySpark.
"""
