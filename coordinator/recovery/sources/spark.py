"""The log as a Spark DataFrame of `RECORDS`: a Python data source over any of our sources.

    spark.dataSource.register(StateLogDataSource)
    spark.read.format("share_state").option("from", "kafka:__share_group_state")
        .option("bootstrap_servers", "b1:9092").load()

Offsets are settled when the frame is made, so that it is the same log however often it is read.  Filters on
state partition, log offset and time reach the source if `spark.sql.python.filterPushdown.enabled` and the
option `push_filters` are true: Spark refuses a reader that takes filters while the setting is false.
`readStream` follows the log; a micro-batch has the records between two log offsets.

Spark's own Kafka connector is the other way to a topic, where its jar is present; it has neither producers
nor batches.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from coordinator.log.claims import OWNER_EPOCH_HEADER
from coordinator.recovery.engines.spark_session import SparkMissing
from coordinator.recovery.records import Ints, Records
from coordinator.recovery.schema import NONE, RECORDS
from coordinator.recovery.sources import Cut, open_source
from coordinator.recovery.sources.base import ALL, END, LogRange, Plan, PrunedError, Source, parse_offsets
from coordinator.recovery.sources.topic import TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "share_state"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"
_RANGE_RECORDS = 500_000


@dataclass
class _Range(InputPartition):
    """A range as Spark hands it to a task."""

    log_range: LogRange

    def __init__(self, log_range: LogRange) -> None:
        self.log_range = log_range


class StateLogDataSource(DataSource):
    """Options: `from` (as on the command line), `as_of_offset` (P:O,...), `range_records`, `push_filters`.

    A topic also takes `bootstrap_servers` and `security`.  A stream also takes `starting_offsets` (P:O,...)
    and `max_records`, the most of one micro-batch.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> "StructType":
        """Return the columns of `RECORDS`."""
        return from_arrow_schema(RECORDS)

    def reader(self, schema: "StructType") -> "StateLogReader":
        """Return the reader of the whole log."""
        options = {name.lower(): value for name, value in self.options.items()}
        return (FilteringReader if options.get("push_filters") == "true" else StateLogReader)(options)

    def streamReader(self, schema: "StructType") -> "StateLogStreamReader":
        """Return the reader of what is appended to the log."""
        return StateLogStreamReader(dict(self.options))


def _source_of(options: Mapping[str, str]) -> Source:
    return open_source(
        options.get("from", ""),
        bootstrap_servers=options.get("bootstrap_servers", ""),
        security=ClientSecurity(**json.loads(options.get("security", "{}"))),
    )


@dataclass
class Bounds:
    """The rows that filters leave: an interval of each column, both ends included, and state partitions."""

    lowest: dict[str, int]
    highest: dict[str, int]
    state_partitions: set[int] | None = None

    def narrow(self, each: Filter) -> None:
        """Take one filter, if it is about a column that is known."""
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

    def _is_within(self, column: str, value: int) -> bool:
        return self.lowest.get(column, -END) <= value <= self.highest.get(column, END)

    def range_of(self, each: LogRange) -> LogRange | None:
        """Return the part of a range that can have such rows, None if no part has."""
        if each.state_partition == ALL:
            return each
        known = self.state_partitions
        if not self._is_within("state_partition", each.state_partition):
            return None
        if known is not None and each.state_partition not in known:
            return None
        start = max(each.start, self.lowest.get("log_offset", each.start))
        end = min(each.end, self.highest.get("log_offset", END - 1) + 1)
        return replace(each, start=start, end=end) if start < end else None

    def rows_of(self, records: Records) -> Records:
        """Return the records that the filters leave."""
        if not self._is_within("state_partition", records.state_partition):
            return records.between(0, 0)
        wanted = np.ones(len(records), np.bool_)
        for name in ("log_offset", "timestamp_ms"):
            column: Ints = getattr(records, name)
            wanted &= column >= self.lowest.get(name, -END)
            wanted &= column <= self.highest.get(name, END)
        return records if wanted.all() else records.take(wanted)


class StateLogReader(DataSourceReader):
    """Plans on the driver, reads a range in each task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        as_of = options.get("as_of_offset")
        self._source = _source_of(options)
        self._plan: Plan = self._source.plan(
            Cut(None if as_of is None else parse_offsets(as_of)),
            range_records=int(options.get("range_records", _RANGE_RECORDS)),
        )
        self._bounds = Bounds({}, {})

    def partitions(self) -> list[InputPartition]:
        """Return the ranges that can have rows."""
        narrowed = (self._bounds.range_of(log_range) for log_range in self._plan.ranges)
        # Spark takes a reader without partitions for one that has not planned any.
        return [_Range(each) for each in narrowed if each is not None] or [_Range(LogRange(ALL, 0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the records of a range. What was pruned meanwhile fails the query: it must be planned anew."""
        assert isinstance(partition, _Range)
        if not partition.log_range.end:
            return
        for records in self._source.read(partition.log_range):
            left = self._bounds.rows_of(records)
            if len(left):
                yield left.to_arrow()


class FilteringReader(StateLogReader):
    """A reader that plans and reads only what filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters on state partition, log offset and time; Spark applies all of them once more."""
        for each in filters:
            self._bounds.narrow(each)
        return filters


class StateLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets of a stream are log offsets by state partition, as text. Segments have no end that is known."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source = _source_of(options)
        self._options = options
        self._until: dict[str, int] | None = None

    def _ends(self) -> dict[str, int]:
        plan = self._source.plan(Cut())
        ends = {str(p): plan.ends.get(p, END) for p in plan.starts}
        if END in ends.values():
            raise ConfigError(
                "from", self._source.text, "kafka:TOPIC, journal:DIR or archive:DIR for a stream"
            )
        return ends

    def initialOffset(self) -> dict[str, int]:
        """Return where the stream begins: `starting_offsets`, else the start of the log."""
        given = self._options.get("starting_offsets")
        starts = {str(p): start for p, start in self._source.plan(Cut()).starts.items()}
        return starts | {str(p): o for p, o in ({} if not given else parse_offsets(given)).items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, if one is given."""
        given = self._options.get("max_records")
        return ReadMaxRows(int(given)) if given else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the log ends now: the query ends there."""
        self._until = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return where the next micro-batch ends: each state partition gets its share of the limit."""
        ends = self._until or self._ends()
        if not isinstance(limit, ReadMaxRows):
            return {p: max(end, start.get(p, 0)) for p, end in ends.items()}
        behind = {p: max(end - start.get(p, 0), 0) for p, end in ends.items()}
        total = sum(behind.values())
        part = min(1.0, limit.max_rows / total) if total else 0.0
        return {p: start.get(p, 0) + ceil(count * part) for p, count in behind.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Plan the log between two offsets; what was pruned meanwhile is not in it."""
        since = {int(p): offset for p, offset in start.items()}
        until = {int(p): offset for p, offset in end.items()}
        if all(since.get(p, 0) >= offset for p, offset in until.items()):
            return []
        count = int(self._options.get("range_records", _RANGE_RECORDS))
        return [
            _Range(each) for each in self._source.plan(Cut(until, since=since), range_records=count).ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the records of a range; what was pruned since it was planned is left out."""
        assert isinstance(partition, _Range)
        left = partition.log_range
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
        """Do nothing: pruning is the business of the coordinator."""


def records_frame(
    spark: "SparkSession",
    source: str,
    *,
    as_of_offsets: Mapping[int, int] | None = None,
    bootstrap_servers: str = "",
    security: ClientSecurity | None = None,
    range_records: int = _RANGE_RECORDS,
) -> "DataFrame":
    """Return the records of a source as a DataFrame."""
    spark.dataSource.register(StateLogDataSource)
    reader = spark.read.format(FORMAT).option("from", source).option("range_records", range_records)
    reader = reader.option("push_filters", spark.conf.get(PUSHDOWN_SETTING, "false") or "false")
    if as_of_offsets is not None:
        reader = reader.option("as_of_offset", ",".join(f"{p}:{o}" for p, o in as_of_offsets.items()))
    if bootstrap_servers:
        reader = reader.option("bootstrap_servers", bootstrap_servers)
    if security is not None:
        reader = reader.option("security", json.dumps(security._asdict()))
    return reader.load()


def connector_frame(spark: "SparkSession", source: TopicSource, ranges: Sequence[LogRange]) -> "DataFrame":
    """Return the records of a topic through Spark's own Kafka connector, in the ranges of a plan.

    Every offset is given: left to itself, each task would ask for them when it starts.  The connector cuts
    partitions as it sees fit.  What was pruned meanwhile fails the query.  Raises SparkMissing if the
    connector's jar is not there.
    """
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for each in ranges:
        name = str(each.state_partition)
        starts[name] = min(starts.get(name, each.start), each.start)
        ends[name] = max(ends.get(name, each.end), each.end)
    reader = spark.read.format("kafka").options(
        **{
            "kafka.bootstrap.servers": source.bootstrap_servers,
            **_connector_security(source.security),
            "assign": json.dumps({source.topic: [int(name) for name in starts]}),
            "startingOffsets": json.dumps({source.topic: starts}),
            "endingOffsets": json.dumps({source.topic: ends}),
            "minPartitions": str(len(ranges)),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
        }
    )
    try:
        found = reader.load()
    except Exception as error:
        if "kafka" in str(error) and "find" in str(error).lower():
            raise SparkMissing(
                f"Spark's Kafka connector is not there: --packages "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}, or leave it to our own reader"
            ) from None
        raise
    return from_connector(found)


def from_connector(frame: "DataFrame") -> "DataFrame":
    """Return what the connector gives, headers included, as rows of `RECORDS`."""
    return frame.selectExpr(*_CONNECTOR_COLUMNS)


def _connector_security(security: ClientSecurity) -> dict[str, str]:
    """Return the options of Java's Kafka client for the way to the brokers."""
    options = {"kafka.security.protocol": security.protocol}
    if security.username:
        scram = "scram.Scram" if security.mechanism.startswith("SCRAM") else "plain.Plain"
        options["kafka.sasl.mechanism"] = security.mechanism
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{scram}LoginModule required "
            f"username={json.dumps(security.username)} password={json.dumps(security.password)};"
        )
    if security.uses_tls:
        if security.ca_file:
            options |= {
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": security.ca_file,
            }
        if not security.check_hostname:
            options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


_CONNECTOR_COLUMNS = (
    "partition as state_partition",
    "offset as log_offset",
    "unix_millis(timestamp) as timestamp_ms",
    "key",
    "value",
    # The value of the header, if there is one, as a number.
    f"coalesce(cast(conv(hex(get(filter(headers, h -> h.key = '{OWNER_EPOCH_HEADER}'), 0).value), 16, 10) as "
    f"int), {NONE}) as owner_epoch",
    *(
        f"cast(null as {kind}) as {name}"
        for name, kind in (
            ("partition_leader_epoch", "int"),
            ("producer_id", "bigint"),
            ("producer_epoch", "smallint"),
            ("base_sequence", "int"),
            ("base_offset", "bigint"),
            ("attributes", "smallint"),
        )
    ),
)
