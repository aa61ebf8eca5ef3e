"""The simulator: the real coordinator on virtual time, with faulty disks, networks and clients.

One seed determines the load, the limits, the faults and their rates, so a seed reproduces a defect.  `plan`
draws them, and `loop` implements virtual time. `net`, `log` and `disk` inject faults, which their docstrings
list. `process` is one run of the coordinator's process, `clients` and `workloads` send requests, and
`checkers` check the history.
"""
