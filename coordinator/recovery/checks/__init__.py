"""The checks of an audit, and how each is computed.

    catalogue           the checks by id: the meaning of a finding, and advice
    single_record       checks of each record
    adjacent_records    comparisons of a record with the record before it
    generations         comparisons of a snapshot with the records since the snapshot before it
    log_end             checks at the end of a share-partition's history
    writer_sequence     checks of a state partition: missing offsets, writers, transactions, clocks
    partition_stats     checks of a whole state partition: pruning, load time
    cluster, baseline   comparisons with the cluster, and with an earlier audit

A process checks the records of one log range and returns a summary. The summaries of consecutive ranges are
then merged, and the records at their boundaries are compared (`record_histories`). So any number of processes
can read the ranges in any order. A property test splits logs at random
offsets and compares the findings with those of the whole log.
"""
