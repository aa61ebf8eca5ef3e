"""What was seen of groups, kept in a file, so that a restart does not begin every clock anew.

What the file says is believed as far as the groups themselves bear it out (see `watch`).  Without it, or with
one that cannot be read, or of another cluster, all begins anew: late is the safe side.
"""

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from coordinator.expiry.observations import GroupObservation

_logger = logging.getLogger(__name__)

_VERSION = 1


class StoredObservations(msgspec.Struct, frozen=True):
    """Groups of one cluster by name."""

    cluster_id: str
    groups: dict[str, GroupObservation]
    version: int = _VERSION


class ObservationStore:
    """A file that is replaced as a whole. Not being able to write it is said once, and does no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    async def load(self) -> StoredObservations | None:
        """Return what was kept last, or None."""
        return await asyncio.to_thread(self._load)

    async def save(self, memory: StoredObservations) -> None:
        """Keep this instead of what was there."""
        data = msgspec.json.encode(memory)
        await asyncio.to_thread(self._save, data)

    def _load(self) -> StoredObservations | None:
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=StoredObservations)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _logger.warning("%s cannot be read, groups are watched from now on: %s", self._path, error)
            return None
        return memory if memory.version == _VERSION else None

    def _save(self, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            if not self._failed:
                _logger.warning(
                    "%s cannot be written, so a restart begins to watch groups anew: %s", self._path, error
                )
            self._failed = True
        else:
            self._failed = False
