"""What a job is made of, for whatever engine: two functions and the rows that pass between them.

Both are found by their module's name, because they travel to other processes and machines (arguments are
bound with `functools.partial`)::

    read(chunks) -> outputs            a range of records to small tables, each named, of one state partition
    join(state_partition, tables)      all tables of a state partition, by name, to outputs again

Between them the driver reads the summaries of the ranges, from which it settles which records count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from coordinator.recovery.records import Records


class Output(NamedTuple):
    """Rows that a range amounts to, under a name, of one state partition."""

    name: str
    state_partition: int
    rows: pa.RecordBatch


Tables = Mapping[str, Sequence[pa.RecordBatch]]
ReadTask = Callable[[Iterable[Records]], Iterable[Output]]
JoinTask = Callable[[int, Tables], Iterable[Output]]
# Applied to one stored table of a state partition; its outputs must be small.
TableTask = Callable[[int, pa.RecordBatch], Iterable[Output]]
