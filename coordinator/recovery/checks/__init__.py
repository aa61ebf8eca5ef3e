"""The checks of an audit: what can be wrong with a state log, and how each of it is found.

    catalogue    every check by its id: what it asks, what a finding means, what to do
    record_checks, histories, fidelity    what a range is asked, in columns, while it is read
    ending       what can only be asked of a whole share-partition, at the end of its history
    flow         what is asked of a state partition: holes, writers, transactions, clocks
    facts        what is asked of all of it: pruning, recovery time
    cluster, baseline    what is asked of the cluster, and of an earlier audit

The one thing to know: a history is checked where its records are, and what is left of it joins with its
neighbours (`histories`).  So ranges are read in any order by any number of processes, and the place of a cut
changes no finding; a property test cuts logs anywhere and compares.
"""
