"""Render all metrics in Prometheus' text format or as OpenMetrics, optionally per share-partition.

The series per share-partition are written while the state is traversed in slices. As families of
prometheus_client, the series of 10 000 share-partitions would block the event loop for 150 to 350 ms.
"""

from collections.abc import AsyncIterator, Callable

from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from coordinator.metrics.families import PREFIX
from coordinator.metrics.recorder import Metrics
from coordinator.shard import ShareState
from protocol.state_batches import unpack
from protocol.state_records import SharePartitionKey, topic_id_text

_FAMILIES = (
    ("start_offset", "Share-partition start offset."),
    ("in_flight_records", "Offsets at or above the start offset that have a delivery state."),
    ("max_delivery_count", "Highest delivery count of in-flight records."),
)

_OPENMETRICS_END = b"# EOF\n"


async def render_exposition(
    metrics: Metrics,
    share_partitions: AsyncIterator[tuple[SharePartitionKey, ShareState]] | None = None,
    share_partitions_max: int = 0,
    *,
    encoder: Callable[[Collector], bytes] = generate_latest,
) -> bytes:
    """Render all metrics with an encoder of prometheus_client.

    With `share_partitions`, add three series for each of the first `share_partitions_max` share-partitions.
    """
    text = encoder(metrics.registry)
    if share_partitions is None:
        return text
    families = text.removesuffix(_OPENMETRICS_END)
    added = await _share_partition_families(share_partitions, share_partitions_max)
    return families + added + text[len(families) :]


async def _share_partition_families(
    share_partitions: AsyncIterator[tuple[SharePartitionKey, ShareState]], share_partitions_max: int
) -> bytes:
    samples: list[list[str]] = [[], [], []]
    left = share_partitions_max
    async for key, state in share_partitions:
        if left == 0:
            break
        left -= 1
        labels = _format_labels(key)
        for family, (name, _), value in zip(samples, _FAMILIES, _sample_values(state), strict=True):
            family.append(f"{PREFIX}share_partition_{name}{labels} {value}\n")
    text = b""
    for family, (name, meaning) in zip(samples, _FAMILIES, strict=True):
        full_name = f"{PREFIX}share_partition_{name}"
        text += f"# HELP {full_name} {meaning}\n# TYPE {full_name} gauge\n{''.join(family)}".encode()
    return text


def _sample_values(state: ShareState) -> tuple[int, int, int]:
    records = delivery_count_max = 0
    for first_offset, last_offset, _, delivery_count in unpack(state.batches):
        records += last_offset - first_offset + 1
        delivery_count_max = max(delivery_count_max, delivery_count)
    return state.start_offset, records, delivery_count_max


def _format_labels(key: SharePartitionKey) -> str:
    group = key.group_id.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{{group="{group}",topic="{topic_id_text(key.topic_id)}",partition="{key.partition}"}}'
