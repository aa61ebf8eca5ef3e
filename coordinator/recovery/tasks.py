"""Define the outputs of the tasks that read a log: small named tables, which tasks return to the driver."""

from typing import NamedTuple

import pyarrow as pa


class NamedOutput(NamedTuple):
    """A named table about one state partition."""

    name: str
    state_partition: int
    rows: pa.RecordBatch
