"""Simulate the real coordinator on virtual time, with faulty disks, networks and clients.

A seed determines the load, the limits and the faults, so the same seed reproduces a violation. `plan` draws
these parameters from the seed, and `loop` implements virtual time. `simulation` runs the phases of each kind
of simulation: `journal` simulates one coordinator with a journal, and `kafka` several coordinators on a Kafka
cluster.

The docstrings of `net` and `disk` list their faults. `process` runs the coordinator's process
from start to crash or stop, `clients` and `workloads` send requests, and `checkers` check the history of all
requests and responses.
"""
