"""Golden files of the journal format: the current code writes the same bytes, and reads the files.

To record a new format, create its folder and run `python -m tests.unit.log.test_journal_golden`.
"""

import asyncio
from pathlib import Path

import pytest

from coordinator.errors import LogDamaged
from coordinator.log.journal import Journal, layout
from coordinator.log.journal.disk import LOCK_NAME
from tests.unit.log.environments import append_durably, read_all
from tests.unit.log.journals import make_record_value

GOLDEN = Path(__file__).parents[2] / "golden" / "journal-1"
STATE_PARTITIONS = 3
SEGMENT_BYTES = 4096
# The sizes of the values, in bytes, which fill two segments. The second segment has a commit of several
# appends.
SIZES = (0, 1, 300, 511, 512, 513, 900, 40)


def new_journal(folder: Path) -> Journal:
    return Journal(folder, state_partitions=STATE_PARTITIONS, segment_bytes=SEGMENT_BYTES, sync="always")


async def write_golden_files(folder: Path) -> None:
    journal = new_journal(folder)
    await journal.open()
    for number, size in enumerate(SIZES):
        records = [(b"key", make_record_value(number, size)), (b"gone", None)]
        await append_durably(journal, number % STATE_PARTITIONS, records)
    await asyncio.gather(
        *(append_durably(journal, each, [(b"last", b"")]) for each in range(STATE_PARTITIONS))
    )
    await journal.close()


def file_contents(folder: Path) -> dict[str, bytes]:
    """Return the files without trailing zeros. Omit files that contain only zeros."""
    files = {path.name: path.read_bytes().rstrip(b"\0") for path in sorted(folder.iterdir())}
    return {name: data for name, data in files.items() if data and name != LOCK_NAME}


def test_journal_writes_the_bytes_of_the_golden_files(tmp_path: Path) -> None:
    asyncio.run(write_golden_files(tmp_path / "journal"))
    assert file_contents(tmp_path / "journal") == file_contents(GOLDEN)


async def test_golden_files_are_read_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for name, data in file_contents(GOLDEN).items():
        size = 512 if name == "recovery-point" else SEGMENT_BYTES
        (folder / name).write_bytes(data.ljust(size, b"\0"))
    journal = new_journal(folder)
    await journal.open()
    found = await read_all(journal, range(STATE_PARTITIONS))
    for partition in range(STATE_PARTITIONS):
        numbers = range(partition, len(SIZES), STATE_PARTITIONS)
        expected = [pair for number in numbers for pair in (make_record_value(number, SIZES[number]), None)]
        assert [content for _, _, content in found[partition]] == [*expected, b""]
    assert await append_durably(journal, 0, [(b"key", b"more")]) == len(found[0])
    await journal.close()


def test_sync_mode_of_a_later_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(layout, "SYNC_MODES", (*layout.SYNC_MODES, "later"))
        header = layout.encode_header(layout.SegmentHeader(1, "later", 0, 1, 0, 1, (0,) * STATE_PARTITIONS))
    with pytest.raises(ValueError, match=r"journal\.sync mode 2"):
        layout.decode_header(header)
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / f"{1:020}.journal").write_bytes(header.ljust(SEGMENT_BYTES, b"\0"))
    with pytest.raises(LogDamaged, match=r"journal\.sync mode 2"):
        asyncio.run(new_journal(folder).open())


if __name__ == "__main__":
    asyncio.run(write_golden_files(GOLDEN))
