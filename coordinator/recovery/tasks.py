"""Define the outputs of the tasks that read a log: small named tables, which tasks return to the driver."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa


class NamedOutput(NamedTuple):
    """A named table about one state partition."""

    name: str
    state_partition: int
    rows: pa.RecordBatch

    @classmethod
    def from_rows(cls, name: str, state_partition: int, *rows: Mapping[str, Any]) -> "NamedOutput":
        """Return an output with rows for this project's use; their values determine the column types."""
        return cls(name, state_partition, pa.RecordBatch.from_pylist(list(rows)))
