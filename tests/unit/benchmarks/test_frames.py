"""The requests of a load: what they ask for, and which numbers in them move on."""

import pytest

from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import unpack
from tests.benchmarks.frames import TURNS_A_LAP, Load, frames, offsets_a_lap, write_frame
from tests.benchmarks.held import added_frames
from tests.benchmarks.many_states import GROUP_PARTITIONS, keys

TOPIC_ID = bytes(range(16))
HEADER_BYTES = 4 + 8 + 2 + len("bench") + 1


def moved_on(data: bytes, places: list[int], step: int) -> bytes:
    """Do what the generator does at the end of a lap."""
    out = bytearray(data)
    for place in places:
        out[place : place + 8] = (int.from_bytes(out[place : place + 8]) + step).to_bytes(8)
    return bytes(out)


@pytest.mark.parametrize("load", [Load(1, 1, 4), Load(8, 50, 20), Load(1, 200, 1), Load(1, 10, 130)])
def test_start_offset_and_batches_move_on_and_nothing_else(load: Load) -> None:
    frame = write_frame("group", TOPIC_ID, load, 0)
    before = write_api.decode_request(frame.data, HEADER_BYTES, 1)
    after = write_api.decode_request(moved_on(frame.data, frame.offset_places, 1000), HEADER_BYTES, 1)
    (old,), (new,) = before.topics, after.topics
    assert len(new.partitions) == load.partitions
    for one, other in zip(old.partitions, new.partitions, strict=True):
        assert other.start_offset == one.start_offset + 1000
        assert (other.partition, other.state_epoch, other.leader_epoch) == (one.partition, 0, 0)
        assert unpack(other.state_batches) == [
            batch._replace(first_offset=batch.first_offset + 1000, last_offset=batch.last_offset + 1000)
            for batch in unpack(one.state_batches)
        ]


def test_a_lap_begins_where_the_last_one_ended() -> None:
    load = Load(1, 1, 4)
    _, written = frames("group", TOPIC_ID, load)
    assert len(written) == TURNS_A_LAP
    again = moved_on(written[0].data, written[0].offset_places, offsets_a_lap(load))
    assert again == write_frame("group", TOPIC_ID, load, TURNS_A_LAP).data


def test_share_partitions_are_counted_group_by_group() -> None:
    made = list(keys(2 * GROUP_PARTITIONS + 1, TOPIC_ID, "held"))
    assert len(set(made)) == 2 * GROUP_PARTITIONS + 1
    assert [key.group_id for key in made[::GROUP_PARTITIONS]] == ["held-000000", "held-000001", "held-000002"]
    # Each group is initialized, and then written to.
    assert len(added_frames(4 * GROUP_PARTITIONS, "added")) == 2 * 4
