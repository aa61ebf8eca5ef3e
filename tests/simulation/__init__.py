"""The simulator: the real coordinator on virtual time, with a disk, a network and clients that misbehave.

One seed decides everything: what is drawn from it is the load, the limits, the faults and their rates, so
that a seed is a bug report.  `plan` draws, `loop` is time, `net`, `log` and `disk` break things (each says
in prose what may break), `process` is one life of the coordinator, `clients` and `workloads` ask,
`checkers` judge.
"""
