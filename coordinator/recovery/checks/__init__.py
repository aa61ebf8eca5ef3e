"""The checks of an audit, and how each is computed.

    catalogue           the checks by their ids: meaning of a finding, what to do
    single_record, adjacent_records, generations    records and their neighbours, while a range is read
    log_end             checks at the end of a share-partition's history
    writer_sequence     checks of a state partition: missing offsets, writers, transactions, clocks
    partition_stats     checks of a whole state partition: pruning, load time
    cluster, baseline   comparisons with the cluster, and with an earlier audit

A history is checked where its records are read, and its rest joins with its neighbours (`record_histories`).
So ranges are read in any order by any number of processes, and the place of a cut does not change the
findings. A property test cuts logs anywhere and compares.
"""
