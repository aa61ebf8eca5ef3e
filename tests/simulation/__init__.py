"""Simulate the real coordinator on virtual time, with faulty disks, networks and clients.

One seed determines the load, the limits, the faults and their rates, so a seed reproduces a defect.  `plan`
draws these parameters from the seed, and `loop` implements virtual time. `simulation` runs the phases of all
kinds: `journal` simulates one coordinator with a journal, and `kafka` several coordinators on a cluster.

`net`, `pipes` and `disk` inject faults, which their docstrings list. `process` runs the coordinator's process
from start to crash or stop, `clients` and `workloads` send requests, and `checkers` check the history of all
requests and responses.
"""
