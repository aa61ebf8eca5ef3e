"""Run Kafka's producer tool, and share consumers that acknowledge each record (`Consumers.java`)."""

from collections.abc import Sequence

from tests.kafka.jars import KafkaJars

RECORD_BYTES = 100
_PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
# Consumers that commit each record fetch few records at a time, so that every consumer gets records.
_POLL_RECORDS, _FEW_RECORDS = 500, 20
_BATCH_BYTES, _SMALL_BATCH_BYTES = 16_384, 1_000


def produce_records(
    jars: KafkaJars, bootstrap: str, topic: str, records: int, *, small_batches: bool
) -> None:
    """Produce records as fast as possible."""
    batch_bytes = _SMALL_BATCH_BYTES if small_batches else _BATCH_BYTES
    done = jars.run(
        _PRODUCER,
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={bootstrap}", f"batch.size={batch_bytes}"),
        seconds=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def consumer_arguments(
    bootstrap: str,
    topics: Sequence[str],
    groups: Sequence[str],
    *,
    consumers: int,
    records: int,
    seconds: float,
    commit: str,
    types: str = "A",
) -> tuple[str, ...]:
    """Return the main class and the arguments that `Consumers.java` describes."""
    poll_records = _FEW_RECORDS if commit == "record" else _POLL_RECORDS
    counts = (consumers, records, seconds)
    return (
        "Consumers",
        *(bootstrap, ",".join(topics), ",".join(groups)),
        *map(str, counts),
        *(commit, types, str(poll_records)),
    )
