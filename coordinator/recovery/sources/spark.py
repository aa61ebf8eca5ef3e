"""The log as a Spark DataFrame of `RECORDS`: a Python data source over any of our sources.

    spark.dataSource.register(StateLogDataSource)
    spark.read.format("share_state").option("from", "kafka:__share_group_state")
        .option("bootstrap_servers", "b1:9092").load()

Offsets are settled when the frame is made, so that it is the same log however often it is read.  Spark's own
Kafka connector is the other way to a topic, where its jar is present; it does not tell producers and batches.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from coordinator.client import ClientSecurity
from coordinator.log.claims import OWNER_EPOCH_HEADER
from coordinator.recovery.engines.spark_session import SparkMissing
from coordinator.recovery.schema import NONE, RECORDS
from coordinator.recovery.sources import Cut, open_source
from coordinator.recovery.sources.base import LogRange, Plan, Source, parse_offsets
from coordinator.recovery.sources.topic import TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "share_state"
_RANGE_RECORDS = 500_000


@dataclass
class _Range(InputPartition):
    """A range as Spark hands it to a task."""

    log_range: LogRange

    def __init__(self, log_range: LogRange) -> None:
        self.log_range = log_range


class StateLogDataSource(DataSource):
    """Options: `from` (as on the command line), `as_of_offset` (P:O,...), `range_records`, and a topic's."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` takes."""
        return FORMAT

    def schema(self) -> "StructType":
        """Return the columns of `RECORDS`."""
        return from_arrow_schema(RECORDS)

    def reader(self, schema: "StructType") -> "StateLogReader":
        """Return the reader of the whole log."""
        return StateLogReader(dict(self.options))


class StateLogReader(DataSourceReader):
    """Plans on the driver, reads a range in each task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        as_of = options.get("as_of_offset")
        security = ClientSecurity(**json.loads(options.get("security", "{}")))
        self._source: Source = open_source(
            options.get("from", ""),
            bootstrap_servers=options.get("bootstrap_servers", ""),
            security=security,
        )
        self._plan: Plan = self._source.plan(
            Cut(None if as_of is None else parse_offsets(as_of)),
            range_records=int(options.get("range_records", _RANGE_RECORDS)),
        )

    def partitions(self) -> list[InputPartition]:
        """Return the ranges."""
        return [_Range(log_range) for log_range in self._plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the records of a range. What was pruned meanwhile fails the query: it must be planned anew."""
        assert isinstance(partition, _Range)
        for records in self._source.read(partition.log_range):
            yield records.to_arrow()


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
