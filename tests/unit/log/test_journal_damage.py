"""Damage to what was durable: it is refused, named, and never taken for a torn tail."""

from pathlib import Path
from random import Random

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal.scan import segment_name
from tests.unit.log.journals import (
    FIRST_POSITION,
    copied,
    damage,
    expected,
    fill,
    filled,
    last_used,
    reopened,
    value,
)
from tests.unit.log.worlds import RealWorld, SimWorld


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_flipped_bit_is_noticed_or_harmless_wherever_it_is(end: str) -> None:
    noticed = 0
    pristine = SimWorld()
    filled(pristine, 60, end)
    assert len(pristine.storage.files) >= 3
    for seed in range(250):
        rng = Random(seed)
        world = SimWorld(seed)
        world.storage.files = copied(pristine)
        name = rng.choice(sorted(world.storage.files))
        used = len(bytes(world.storage.files[name].shown).rstrip(b"\0"))
        world.storage.flip(name, rng.randrange(used + 600))
        try:
            assert reopened(world) == expected(60), f"seed {seed}"
        except LogDamaged:
            noticed += 1
    assert noticed > 125


def test_a_flipped_bit_in_the_last_commit_is_noticed() -> None:
    """Nothing follows it, but it was written as a whole, so it may have been answered."""
    pristine = SimWorld()
    filled(pristine, 10, "killed")
    name, data = last_used(pristine)
    last_frame = data.rfind(b"\xf5shc")
    for position in range(last_frame, len(data)):
        world = SimWorld()
        world.storage.files = copied(pristine)
        world.storage.flip(name, position)
        assert "commit 10 is not valid, though it was written as a whole" in str(damage(world))


def test_a_lost_sector_is_noticed_if_something_was_written_later() -> None:
    for end, lost_frames in (("killed", 9), ("closed", 10)):
        pristine = SimWorld()
        filled(pristine, 10, end)
        name, data = last_used(pristine)
        frames = [position for position in range(0, len(data), 64) if data[position:].startswith(b"\xf5shc")]
        for position in frames[:lost_frames]:
            world = SimWorld()
            world.storage.files = copied(pristine)
            world.storage.wipe(name, position, 64)
            error = damage(world)
            assert error.position == position
            assert "was durable before" in error.found


def test_damage_names_the_file_the_position_and_what_to_do(tmp_path: Path) -> None:
    world = RealWorld(tmp_path / "journal")

    async def main() -> None:
        journal = world.journal()
        await journal.open()
        await fill(journal, 10)
        await journal.close()

    world.run(main())
    path = world.folder / segment_name(1)
    data = bytearray(path.read_bytes())
    position = data.find(value(5))
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged) as caught:
        reopened(world)
    error = caught.value
    assert error.file == str(path)
    assert FIRST_POSITION < error.position < position
    assert "backup" in error.advice
    # The way out that the advice names, for who accepts the loss.
    with path.open("r+b") as file:
        file.truncate(error.position)
    (world.folder / segment_name(2)).unlink(missing_ok=True)
    assert reopened(world) == expected(5)
    assert reopened(world) == [*expected(5), b"one more"]
