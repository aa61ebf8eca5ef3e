"""Read a state log as a Spark DataFrame of `RECORDS`: a Python data source for every kind of source.

    spark.dataSource.register(StateLogDataSource)
    spark.read.format("share_state").option("from", "kafka:__share_group_state")
        .option("bootstrap_servers", "b1:9092").load()

Log offsets are fixed when the DataFrame is made, so that each read has the same records.  Filters on state
partition, log offset and time are pushed down to the source if `spark.sql.python.filterPushdown.enabled` and
the option `push_filters` are true. If only the option is true, Spark rejects the reader. `readStream` follows
the log; a micro-batch has the records between two log offsets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from coordinator.client import ClientSecurity
from coordinator.errors import ConfigError
from coordinator.recovery.records import Ints, Records
from coordinator.recovery.schema import RECORDS
from coordinator.recovery.sources import LogCut, open_source
from coordinator.recovery.sources.base import (
    ALL,
    END,
    LogRange,
    PrunedError,
    ReadPlan,
    Source,
    format_offsets,
    parse_offsets,
)
from coordinator.recovery.sources.topic import TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "share_state"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class StateLogDataSource(DataSource):
    """Options: `from` (as on the command line), `as_of_offset` (P:O,...), `push_filters`.

    Further options of a topic: `bootstrap_servers` and `security`.  Further options of a stream:
    `starting_offsets` (P:O,...) and `max_records`, the maximum number of records in a micro-batch.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source for `spark.read.format`."""
        return FORMAT

    def schema(self) -> "StructType":
        """Return the schema, which has the columns of `RECORDS`."""
        return from_arrow_schema(RECORDS)

    def reader(self, schema: "StructType") -> "StateLogReader":
        """Return the batch reader of the whole log."""
        options = {name.lower(): value for name, value in self.options.items()}
        return (FilteringReader if options.get("push_filters") == "true" else StateLogReader)(options)

    def streamReader(self, schema: "StructType") -> "StateLogStreamReader":
        """Return the streaming reader, which follows the log."""
        return StateLogStreamReader(dict(self.options))


def source_options(source: Source) -> dict[str, str]:
    """Return the options of the data source for a source."""
    options = {"from": source.text}
    if isinstance(source, TopicSource):
        options |= {
            "bootstrap_servers": source.bootstrap_servers,
            "security": json.dumps(source.security._asdict()),
        }
    return options


def _open_source(options: Mapping[str, str]) -> Source:
    return open_source(
        options.get("from", ""),
        bootstrap_servers=options.get("bootstrap_servers", ""),
        security=ClientSecurity(**json.loads(options.get("security", "{}"))),
    )


@dataclass
class FilterBounds:
    """The rows that pass pushed-down filters: an inclusive interval for each column, and state partitions."""

    lowest: dict[str, int]
    highest: dict[str, int]
    state_partitions: set[int] | None = None

    def apply_filter(self, each: Filter) -> None:
        """Apply one filter, if it is on state partition, log offset or timestamp."""
        column = ".".join(getattr(each, "attribute", ()))
        value = getattr(each, "value", None)
        if column not in ("state_partition", "log_offset", "timestamp_ms") or value is None:
            return
        if isinstance(each, In):
            values = set(each.value)
            if column == "state_partition":
                known = self.state_partitions
                self.state_partitions = values if known is None else known & values
            low, high = min(values), max(values)
        elif isinstance(each, EqualTo):
            low = high = value
        elif isinstance(each, GreaterThan | GreaterThanOrEqual):
            low, high = value + isinstance(each, GreaterThan), END
        elif isinstance(each, LessThan | LessThanOrEqual):
            low, high = -END, value - isinstance(each, LessThan)
        else:
            return
        self.lowest[column] = max(low, self.lowest.get(column, -END))
        self.highest[column] = min(high, self.highest.get(column, END))

    def _is_within_bounds(self, column: str, value: int) -> bool:
        return self.lowest.get(column, -END) <= value <= self.highest.get(column, END)

    def restrict_range(self, each: LogRange) -> LogRange | None:
        """Return the part of a log range that can have rows that pass the filters; None if there is none."""
        if each.state_partition == ALL:
            return each
        known = self.state_partitions
        if not self._is_within_bounds("state_partition", each.state_partition):
            return None
        if known is not None and each.state_partition not in known:
            return None
        start = max(each.start, self.lowest.get("log_offset", each.start))
        end = min(each.end, self.highest.get("log_offset", END - 1) + 1)
        return replace(each, start=start, end=end) if start < end else None

    def filter_records(self, records: Records) -> Records:
        """Return the records that pass the filters."""
        if not self._is_within_bounds("state_partition", records.state_partition):
            return records.select_offsets(0, 0)
        wanted = np.ones(len(records), np.bool_)
        for name in ("log_offset", "timestamp_ms"):
            column: Ints = getattr(records, name)
            wanted &= column >= self.lowest.get(name, -END)
            wanted &= column <= self.highest.get(name, END)
        return records if wanted.all() else records.take(wanted)


class StateLogReader(DataSourceReader):
    """A batch reader, which plans on the driver and reads one log range in each task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        as_of = options.get("as_of_offset")
        self._source = _open_source(options)
        self._plan: ReadPlan = self._source.plan(LogCut(None if as_of is None else parse_offsets(as_of)))
        self._bounds = FilterBounds({}, {})

    def partitions(self) -> list[InputPartition]:
        """Return the log ranges that can have rows."""
        narrowed = (self._bounds.restrict_range(log_range) for log_range in self._plan.ranges)
        # If this method returns no partition, Spark assumes that it is not implemented, so return an empty
        # range.
        ranges = [each for each in narrowed if each is not None] or [LogRange(ALL, 0, 0, 0)]
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range. If records were pruned since the plan, the query fails."""
        if not partition.value.end:
            return
        for records in self._source.read(partition.value):
            left = self._bounds.filter_records(records)
            if len(left):
                yield left.to_arrow()


class FilteringReader(StateLogReader):
    """A batch reader that plans and reads only log ranges and rows that pass the filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on state partition, log offset and time; Spark applies all filters again."""
        for each in filters:
            self._bounds.apply_filter(each)
        return filters


class StateLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader. The offsets of the stream map state partitions (as text) to log offsets.

    Segment files cannot be streamed, because their end offset is not known.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source = _open_source(options)
        self._options = options
        self._until: dict[str, int] | None = None

    def _read_end_offsets(self) -> dict[str, int]:
        plan = self._source.plan(LogCut())
        ends = {str(p): plan.ends.get(p, END) for p in plan.starts}
        if END in ends.values():
            raise ConfigError(
                "from", self._source.text, "kafka:TOPIC, journal:DIR or archive:DIR for a stream"
            )
        return ends

    def initialOffset(self) -> dict[str, int]:
        """Return the log offsets at which the stream begins: `starting_offsets`, or the log start offsets."""
        given = self._options.get("starting_offsets")
        starts = {str(p): start for p, start in self._source.plan(LogCut()).starts.items()}
        return starts | {str(p): o for p, o in ({} if not given else parse_offsets(given)).items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch: `max_records`, or none."""
        given = self._options.get("max_records")
        return ReadMaxRows(int(given)) if given else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Store the current end of the log, at which the query ends."""
        self._until = self._read_end_offsets()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the end offsets of the next micro-batch; `max_records` is divided among state partitions."""
        ends = self._until or self._read_end_offsets()
        if not isinstance(limit, ReadMaxRows):
            return {p: max(end, start.get(p, 0)) for p, end in ends.items()}
        behind = {p: max(end - start.get(p, 0), 0) for p, end in ends.items()}
        total = sum(behind.values())
        part = min(1.0, limit.max_rows / total) if total else 0.0
        return {p: start.get(p, 0) + ceil(count * part) for p, count in behind.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Plan the log ranges between two stream offsets, without records that were pruned since."""
        since = {int(p): offset for p, offset in start.items()}
        until = {int(p): offset for p, offset in end.items()}
        if all(since.get(p, 0) >= offset for p, offset in until.items()):
            return []
        return [InputPartition(each) for each in self._source.plan(LogCut(until, since=since)).ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, without records that were pruned since the plan."""
        left: LogRange = partition.value
        while left.start < left.end:
            try:
                for records in self._source.read(left):
                    if len(records):
                        yield records.to_arrow()
                        left = replace(left, start=int(records.log_offset[-1]) + 1)
                return
            except PrunedError as pruned:
                if pruned.start <= left.start:
                    return
                left = replace(left, start=pruned.start)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing when a micro-batch is complete, because only the coordinator prunes the log."""


def records_frame(
    spark: "SparkSession", source: Source, *, as_of_offsets: Mapping[int, int] | None = None
) -> "DataFrame":
    """Return the records of a source as a DataFrame."""
    spark.dataSource.register(StateLogDataSource)
    reader = spark.read.format(FORMAT).options(**source_options(source))
    reader = reader.option("push_filters", spark.conf.get(PUSHDOWN_SETTING, "false") or "false")
    if as_of_offsets is not None:
        reader = reader.option("as_of_offset", format_offsets(as_of_offsets))
    return reader.load()
