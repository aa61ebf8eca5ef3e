"""Damage to durable data: the journal refuses to open and reports the file and the position."""

from pathlib import Path
from random import Random

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import layout
from coordinator.log.journal.scan import segment_name
from tests.unit.log.environments import RealDiskEnvironment, SimulatedEnvironment
from tests.unit.log.journals import (
    FIRST_POSITION,
    copy_files,
    create_journal,
    encode_entry,
    expected_values,
    last_used_segment,
    make_record_value,
    open_damaged,
    reopen_and_append,
)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_flipped_bit_is_detected_or_harmless_at_any_position(end: str) -> None:
    noticed = 0
    pristine = SimulatedEnvironment()
    create_journal(pristine, 60, end)
    assert len(pristine.storage.files) >= 3
    for seed in range(250):
        rng = Random(seed)
        world = SimulatedEnvironment(seed)
        world.storage.files = copy_files(pristine)
        name = rng.choice(sorted(world.storage.files))
        data = bytes(world.storage.files[name].shown)
        world.storage.flip_bit(name, rng.randrange(min(len(data.rstrip(b"\0")) + 600, len(data))))
        try:
            assert reopen_and_append(world) == expected_values(60), f"seed {seed}"
        except LogDamaged:
            noticed += 1
    assert noticed > 125


def test_flipped_bit_in_the_last_commit_is_detected() -> None:
    """No commit follows, but the last commit is complete, so it may have been acknowledged."""
    pristine = SimulatedEnvironment()
    create_journal(pristine, 10, "killed")
    name, data = last_used_segment(pristine)
    last_frame = data.rfind(b"\xf5shc")
    for position in range(last_frame, len(data)):
        world = SimulatedEnvironment()
        world.storage.files = copy_files(pristine)
        world.storage.flip_bit(name, position)
        assert "commit 10 is not valid, though it was written as a whole" in str(open_damaged(world))


def test_lost_sector_is_detected_if_later_data_was_written() -> None:
    for end, lost_frames in (("killed", 9), ("closed", 10)):
        pristine = SimulatedEnvironment()
        create_journal(pristine, 10, end)
        name, data = last_used_segment(pristine)
        frames = [position for position in range(0, len(data), 64) if data[position:].startswith(b"\xf5shc")]
        for position in frames[:lost_frames]:
            world = SimulatedEnvironment()
            world.storage.files = copy_files(pristine)
            world.storage.write_zeros(name, position, 64)
            error = open_damaged(world)
            assert error.position == position
            assert "was durable before" in error.found


@pytest.mark.parametrize("damage", ["flipped bit", "end of the file missing"])
def test_damage_error_has_file_position_and_advice(tmp_path: Path, damage: str) -> None:
    world = RealDiskEnvironment(tmp_path / "journal")
    create_journal(world, 10, "closed")
    path = world.folder / segment_name(1)
    data = bytearray(path.read_bytes())
    position = data.find(make_record_value(5))
    data[position] ^= 1
    path.write_bytes(data if damage == "flipped bit" else data[:position])
    with pytest.raises(LogDamaged) as caught:
        reopen_and_append(world)
    error = caught.value
    assert error.file == str(path)
    assert FIRST_POSITION < error.position < position
    assert "backup" in error.advice
    # Apply the advice for an operator who accepts the loss.
    with path.open("r+b") as file:
        file.truncate(error.position)
        file.truncate(error.position + (1 << 20))
    (path.parent / layout.RECOVERY_POINT_NAME).unlink()
    (world.folder / segment_name(2)).unlink(missing_ok=True)
    assert reopen_and_append(world) == expected_values(5)
    assert reopen_and_append(world) == [*expected_values(5), b"one more"]


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("has_spare", [True, False])
def test_truncated_last_file_is_detected_if_data_is_missing(end: str, has_spare: bool) -> None:
    """An interrupted copy truncates the last file, and may omit the spare segment after this file."""
    pristine = SimulatedEnvironment()
    create_journal(pristine, 30, end)
    name, data = last_used_segment(pristine)
    assert name == segment_name(2)
    ends = [
        position for position in range(0, layout.align_up(len(data)), 64) if data[position:][:1] == b"\xf5"
    ]
    for size in (1, 8, 40, FIRST_POSITION - 1, *(near for end in ends for near in (end, end + 1, end + 64))):
        world = SimulatedEnvironment()
        world.storage.files = copy_files(pristine)
        if not has_spare:
            world.storage.files.pop(segment_name(3), None)
        truncate_file(world, name, size)
        error = open_damaged(world)
        if error.file.endswith(name):
            assert f"the file ends at byte {size}, and it was longer once" in error.found
            assert "copy the journal's folder again" in error.advice
        else:
            # The file is shorter than the header of a segment.
            assert has_spare
            assert size < FIRST_POSITION


def test_truncated_last_file_with_a_torn_tail_is_detected() -> None:
    """The header of the torn frame contains the frame's length, which shows that bytes are missing."""
    pristine = SimulatedEnvironment()
    create_journal(pristine, 10, "killed")
    name, data = last_used_segment(pristine)
    begin = layout.align_up(len(data))
    frame = layout.encode_frame(1, begin, 11, 10, 1, [encode_entry(10, 1000)])
    pristine.storage.files[name].shown[begin : begin + 512] = frame[:512]
    whole = begin + len(frame)
    for size in (begin + 8, begin + 64, begin + 512, whole, whole + layout.RESERVE_BYTES - 1):
        world = SimulatedEnvironment()
        world.storage.files = copy_files(pristine)
        truncate_file(world, name, size)
        assert "it was longer once" in open_damaged(world).found
    assert reopen_and_append(pristine) == expected_values(10)


def test_last_file_may_lack_unused_bytes_at_its_end() -> None:
    """No data is missing. The repair that the error message advises also leaves such a file."""
    world = SimulatedEnvironment()
    create_journal(world, 10, "killed")
    name, data = last_used_segment(world)
    truncate_file(world, name, layout.align_up(len(data)) + layout.RESERVE_BYTES)
    assert reopen_and_append(world) == expected_values(10)
    assert reopen_and_append(world) == [*expected_values(10), b"one more"]


def truncate_file(world: SimulatedEnvironment, name: str, size: int) -> None:
    """Cut a file to `size` bytes."""
    file = world.storage.files[name]
    del file.shown[size:], file.durable[size:]
