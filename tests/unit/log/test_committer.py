"""Both threads that write with a sync: the compiled one and the one in Python."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import hot
from coordinator.log.journal.committer import Committer, CompiledCommitter, ThreadCommitter

KINDS = [ThreadCommitter]
if hot.compiled is not None:
    KINDS.append(CompiledCommitter)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def committer(request: pytest.FixtureRequest) -> Iterator[Committer]:
    committer = request.param()
    yield committer
    committer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(20))
    return path


async def commit(committer: Committer, descriptor: int, position: int, data: bytes) -> OSError | None:
    over: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    committer.commit(descriptor, position, data, over.set_result)
    assert not over.done(), "done was called from within commit"
    return await over


def test_what_is_committed_is_in_the_file(committer: Committer, path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)

    async def main() -> None:
        assert await commit(committer, descriptor, 3, b"one") is None
        assert await commit(committer, descriptor, 10, b"another") is None

    # An event loop of its own each time, as tools have it.
    asyncio.run(main())
    asyncio.run(main())
    os.close(descriptor)
    assert path.read_bytes() == bytes(3) + b"one" + bytes(4) + b"another" + bytes(3)


def test_a_write_that_fails_says_why_and_the_next_one_goes_on(committer: Committer, path: Path) -> None:
    read_only, descriptor = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)

    async def main() -> None:
        error = await commit(committer, read_only, 0, b"no")
        assert error is not None
        assert error.errno == errno.EBADF
        assert await commit(committer, descriptor, 0, b"yes") is None

    asyncio.run(main())
    os.close(read_only)
    os.close(descriptor)
    assert path.read_bytes() == b"yes" + bytes(17)
