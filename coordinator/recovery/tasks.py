"""Define the two functions of a job, which any engine can run, and the rows that they exchange.

The functions are pickled by name for other processes and machines. So they are module-level functions, with
arguments bound by `functools.partial`::

    read(chunks) -> outputs                       the records of a range to small named tables
    join(state_partition, tables) -> outputs      all tables of a state partition, by name, to results

Between them, the driver reads the summaries of all ranges, and computes which owner epochs are valid.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from coordinator.recovery.records import Records


class NamedOutput(NamedTuple):
    """A named table about one state partition: a result of a range or of a join."""

    name: str
    state_partition: int
    rows: pa.RecordBatch


Tables = Mapping[str, Sequence[pa.RecordBatch]]
ReadTask = Callable[[Iterable[Records]], Iterable[NamedOutput]]
JoinTask = Callable[[int, Tables], Iterable[NamedOutput]]
# Applied to one table of a state partition; its outputs must be small.
TableTask = Callable[[int, pa.RecordBatch], Iterable[NamedOutput]]
