"""Test that a rebuild of logs written by Kafka releases gives the state that Kafka returned."""

import asyncio
from itertools import groupby
from typing import Any

import pytest

from coordinator.recovery.parse import parse
from protocol.record_batch import encode_batch
from protocol.state_batches import unpack
from protocol.state_records import topic_id_text
from tests.conformance.vectors import (
    RELEASES_WITH_LOG,
    recorded_log,
    recorded_rpcs,
    replay_states,
    send_requests,
)
from tests.recovery.log_strategies import comparable_rows, fold_records_to_state_rows, shard_core_rows


def rebuild_release(release: str, records_in_chunk: int) -> list[dict[str, Any]]:
    """Rebuild the states of a recorded log, cut into chunks."""
    chunks = []
    for state_partition, lines in groupby(
        sorted(recorded_log(release)), key=lambda line: line.state_partition
    ):
        batches = [
            encode_batch(line.log_offset, line.timestamp_ms, [(line.key, line.value)]) for line in lines
        ]
        for begin in range(0, len(batches), records_in_chunk):
            data = b"".join(batches[begin : begin + records_in_chunk])
            chunks.append(parse(state_partition, data).records)
    return fold_records_to_state_rows(chunks)


@pytest.mark.parametrize("records_in_chunk", [7, 1_000_000])
@pytest.mark.parametrize("release", RELEASES_WITH_LOG)
def test_recorded_log_folds_to_state_of_shard_core(release: str, records_in_chunk: int) -> None:
    rows = rebuild_release(release, records_in_chunk)
    assert comparable_rows(rows) == shard_core_rows(replay_states(recorded_log(release)))
    assert len(rows) >= 5


def test_rebuilt_state_equals_recorded_answers_of_kafka() -> None:
    topics, requests = recorded_rpcs()

    async def expected_states() -> dict[tuple[str, str, int], tuple[Any, ...]]:
        _, runtime = await send_requests(topics, requests)
        return {
            (key.group_id, topic_id_text(key.topic_id), key.partition): (
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                [batch._asdict() for batch in unpack(state.batches)],
            )
            async for key, state in runtime.share_partitions()
        }

    names = ("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count", "state_batches")
    got = {
        (row["group_id"], row["topic_id"], row["partition"]): tuple(row[name] for name in names)
        for row in rebuild_release("4.4.0", 50)
    }
    assert got == asyncio.run(expected_states())
