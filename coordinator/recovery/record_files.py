"""Write records of a state log to Parquet files, and list the content of each row group."""

from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.recovery.folders import PARQUET_OPTIONS, Folder
from coordinator.recovery.records import Records
from coordinator.recovery.schema import RECORDS
from coordinator.recovery.sources.archive import RowGroup

# Maximum number of records in a file, and in a row group, which a reader loads into memory as a whole.
_FILE_RECORDS = 4_000_000
_GROUP_RECORDS = 1_000_000


class RecordFileWriter:
    """Writes records to Parquet files; a row group has consecutive log offsets of one state partition."""

    def __init__(self, folder: Folder, prefix: str) -> None:
        self.pieces: list[RowGroup] = []
        self._folder = folder
        self._prefix = prefix
        self._files = 0
        self._opened = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._name = ""
        self._row_groups = 0
        self._in_file = 0
        self._waiting: list[Records] = []
        self._waiting_records = 0

    def add_records(self, records: Records) -> None:
        """Add records; the records of a state partition must come in log order."""
        ends = np.flatnonzero(np.diff(records.log_offset) != 1) + 1
        for begin, end in pairwise([0, *ends.tolist(), len(records)]):
            self._add_consecutive(records.take(np.arange(begin, end)) if len(ends) else records)

    def _add_consecutive(self, records: Records) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and (
            last.state_partition != records.state_partition
            or int(last.log_offset[-1]) + 1 != records.log_offset[0]
            or self._waiting_records + len(records) > _GROUP_RECORDS
        ):
            self._write_row_group()
        self._waiting.append(records)
        self._waiting_records += len(records)

    def _write_row_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._writer is None:
            self._name = f"{self._prefix}-{self._files}.parquet"
            file = self._opened.enter_context(self._folder.writer(self._name))
            self._writer = self._opened.enter_context(pq.ParquetWriter(file, RECORDS, **PARQUET_OPTIONS))
            self._files += 1
            self._row_groups = self._in_file = 0
        table = pa.Table.from_batches([records.to_arrow() for records in waiting], RECORDS)
        self._writer.write_table(table, row_group_size=max(len(table), 1))
        self.pieces.append(
            RowGroup(
                state_partition=waiting[0].state_partition,
                start=int(waiting[0].log_offset[0]),
                end=int(waiting[-1].log_offset[-1]) + 1,
                records=len(table),
                file=self._name,
                row_group=self._row_groups,
                last_ms=max(int(records.timestamp_ms.max()) for records in waiting),
            )
        )
        self._row_groups += 1
        self._in_file += len(table)
        self._waiting_records = 0
        if self._in_file >= _FILE_RECORDS:
            self._end_file()

    def _end_file(self) -> None:
        self._writer = None
        self._opened.close()

    def close(self) -> None:
        """Write the remaining records, and make all record files durable."""
        if self._waiting:
            self._write_row_group()
        self._end_file()
