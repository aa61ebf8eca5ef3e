"""The responses of the echo server, which benchmarks use as a server that does no work."""

from protocol.messages import write_share_group_state as write_api
from tests.benchmarks.echo import make_response
from tests.benchmarks.loads import WriteLoad, write_frame


def test_echo_response_has_one_share_partition_without_error() -> None:
    frame = write_frame(WriteLoad(1, 1, 4), bytes(16), 0).data[4:]
    answered = make_response(frame)
    assert int.from_bytes(answered[:4], "big") == len(answered) - 4
    assert (answered[4:8], answered[8]) == (frame[4:8], 0)
    (topic,) = write_api.decode_response(answered, 9, 1).results
    assert [(part.partition, part.error_code) for part in topic.partitions] == [(0, 0)]
