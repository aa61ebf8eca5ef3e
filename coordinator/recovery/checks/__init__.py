"""The checks of an audit, by module.

    catalogue           the checks by id: the meaning of a finding, and advice
    single_record       checks of each record
    histories           checks of the records of each share-partition, in log order
    writer_sequence     checks of a state partition: missing offsets, writers, transactions, clocks
    partition_audit     makes all of these in one pass over a state partition
    partition_stats     checks of a whole state partition: pruning, load time
    cluster, baseline   comparisons with the cluster, and with an earlier audit

A property test divides logs at random offsets into chunks, and compares the findings with those of the whole
log.
"""
