"""The recovery jobs: what the state log holds, without a coordinator, ours or Kafka's.

Everything goes the same way, whatever the source and the engine::

    source   a live topic, segment files, a journal, an archive      sources/
      | ranges of the log, settled once, up to a cut
      v
    phase 1  a range at a time: parse -> decode -> own -> fold       parse, decode, ownership, fold
      | partial states, one row for each share-partition of a range
      v
    phase 2  which ranges count is known: join the partial states    settle, fold, states
      |
      v
    states   parquet, JSON, a table; or what a job makes of them

The one thing to know: a partial state is a summary of a stretch of the log that joins with its neighbours in
any grouping (`fold`), so ranges are read in any order, by any number of processes.  What a record means is
written in `coordinator.shard.state.advance` alone; property tests hold this package equal to it.

`schema` names the columns; `api` is for notebooks.  Numpy and pyarrow come with the extra `recovery`, PySpark
with `spark`; nothing here imports PySpark but `engines/spark*` and `sources/spark*`.
"""
