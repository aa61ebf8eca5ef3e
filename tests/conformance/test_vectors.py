"""Compare responses and records with the recorded responses and records of Apache Kafka."""

import asyncio
from typing import Any

import pytest

from coordinator.config import HostPort
from coordinator.serve.server import CoordinatorDirectory
from coordinator.shard.state import ShareState
from protocol.messages.find_coordinator import FindCoordinatorRequest
from protocol.state_batches import unpack
from protocol.state_records import decode_record, encode_record
from tests.conformance.differences import ERROR_CODES
from tests.conformance.vectors import (
    CODECS,
    RELEASES_WITH_LOG,
    RecordedRequest,
    read_json_lines,
    recorded_log,
    recorded_rpcs,
    replay_states,
    send_requests,
)


def result_fields(response: Any, recorded: RecordedRequest) -> list[dict[str, Any]]:
    """Return the results of a response in the notation of the vectors, with the recorded fields."""
    names = {
        "partition": "partition",
        "err": "error_code",
        "se": "state_epoch",
        "le": "leader_epoch",
        "so": "start_offset",
        "dcc": "delivery_complete_count",
    }
    found = []
    for topic in response.results:
        for result in topic.partitions:
            fields = {
                short: getattr(result, name)
                for short, name in names.items()
                if hasattr(result, name) and not (short == "dcc" and recorded.version == 0)
            }
            if hasattr(result, "state_batches"):
                fields["b"] = [list(batch) for batch in unpack(result.state_batches)]
            found.append(fields)
    return found


def test_responses_equal_kafkas_except_for_listed_differences() -> None:
    topics, requests = recorded_rpcs()
    responses, _ = asyncio.run(send_requests(topics, requests))
    seen_differences = set()
    for recorded, response in zip(requests, responses, strict=True):
        assert recorded.answers is not None or recorded.response is not None
        expected = recorded.answers
        if recorded.name in ERROR_CODES:
            assert expected is not None
            seen_differences.add(recorded.name)
            assert expected[0]["err"] != ERROR_CODES[recorded.name][0]
            expected = [{**expected[0], "err": ERROR_CODES[recorded.name][0]}]
        if expected is not None:
            assert result_fields(response, recorded) == expected, recorded.name
        if recorded.response is not None:
            body = CODECS[recorded.api_key].encode_response(response, recorded.version)
            assert body == recorded.response, recorded.name
    assert len(requests) == 599
    assert seen_differences == set(ERROR_CODES), "a listed difference does not exist any more"


def test_only_errors_have_a_message_and_it_is_a_sentence() -> None:
    topics, requests = recorded_rpcs()
    responses, _ = asyncio.run(send_requests(topics, requests))
    refused = 0
    for response in responses:
        for topic in response.results:
            for result in topic.partitions:
                if result.error_code:
                    refused += 1
                    assert result.error_message
                    assert result.error_message.endswith(".")
                else:
                    assert result.error_message is None
    assert refused == 20


@pytest.mark.parametrize("release", RELEASES_WITH_LOG)
def test_records_of_kafka_are_decoded_and_encoded_to_equal_bytes(release: str) -> None:
    log = recorded_log(release)
    assert len(log) > 500
    for line in log:
        record = decode_record(line.key, line.value)
        assert record is not None
        assert encode_record(record) == (line.key, line.value), line


def comparable_state_fields(state: ShareState) -> tuple[Any, ...]:
    return (
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.delivery_complete_count,
        [tuple(batch) for batch in unpack(state.batches)],
    )


def test_replay_of_kafkas_log_gives_the_states_of_this_coordinator() -> None:
    topics, requests = recorded_rpcs()

    async def read_own_states() -> dict[str, tuple[Any, ...]]:
        _, runtime = await send_requests(topics, requests)
        return {str(key): comparable_state_fields(state) async for key, state in runtime.share_partitions()}

    expected = asyncio.run(read_own_states())
    got = {
        str(key): comparable_state_fields(state)
        for key, state in replay_states(recorded_log("4.4.0")).items()
    }
    assert got == expected
    assert len(got) >= 5


# Share-partitions of the recorded requests whose final state in a release differs from 4.4.0, and the reason.
DIFFERENT_FINAL_STATES = {
    "4.1.1": {
        ("vec", 0): "a write with a higher state epoch was stored, and fenced all later writes",
        ("vec", 2): "a state epoch of -1 was accepted",
    },
    "4.3.1": {("vec", 2): "a state epoch of -1 was accepted"},
}


@pytest.mark.parametrize("release", list(DIFFERENT_FINAL_STATES))
def test_logs_of_older_releases_give_the_same_final_state(release: str) -> None:
    def final_states(release: str) -> dict[tuple[str, int], tuple[Any, ...]]:
        return {
            (key.group_id, key.partition): (state.state_epoch, state.start_offset, unpack(state.batches))
            for key, state in replay_states(recorded_log(release)).items()
        }

    got, expected = final_states(release), final_states("4.4.0")
    assert got.keys() == expected.keys()
    assert {key for key in expected if got[key] != expected[key]} == set(DIFFERENT_FINAL_STATES[release])


@pytest.mark.parametrize(
    "line", list(read_json_lines("kafka-4.4.0.find.jsonl")), ids=lambda line: str(line["keys"])
)
def test_find_coordinator_accepts_and_refuses_the_keys_that_kafka_does(line: dict[str, Any]) -> None:
    directory = CoordinatorDirectory(
        HostPort("coordinator", 9095), node_id_first=1_000_000, node_ids=4, state_partitions=50
    )
    response = directory.find(FindCoordinatorRequest(key_type=2, coordinator_keys=line["keys"]), 6)
    got = [{"key": found.key, "err": found.error_code} for found in response.coordinators]
    assert got == line["result"]
    for found in response.coordinators:
        if not found.error_code:
            assert (found.host, found.port) == ("coordinator", 9095)
            assert 1_000_000 <= found.node_id < 1_000_004
