"""Store the observations of groups in a file, so that a restart does not reset the retention times.

A stored observation is used only if the group's epoch confirms it (see `observations`).  If the file is
missing, unreadable or of another cluster, all retention times start again.  State then expires late, never
early.
"""

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from coordinator.operate.expiry.observations import GroupObservation

_logger = logging.getLogger(__name__)

_VERSION = 1


class StoredObservations(msgspec.Struct, frozen=True):
    """The observations of one cluster's groups by name."""

    cluster_id: str
    groups: dict[str, GroupObservation]
    version: int = _VERSION


class ObservationStore:
    """A file that is replaced atomically. A failure to write is logged once and has no other effect."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    async def load(self) -> StoredObservations | None:
        """Return the stored observations, or None."""
        return await asyncio.to_thread(self._load_observations)

    async def save(self, memory: StoredObservations) -> None:
        """Replace the stored observations."""
        data = msgspec.json.encode(memory)
        await asyncio.to_thread(self._save_observations, data)

    def _load_observations(self) -> StoredObservations | None:
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=StoredObservations)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _logger.warning("Cannot read %s: %s. Retention times start again.", self._path, error)
            return None
        return memory if memory.version == _VERSION else None

    def _save_observations(self, data: bytes) -> None:
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
                    "Cannot write %s: %s. Retention times will start again at a restart.", self._path, error
                )
            self._failed = True
        else:
            self._failed = False
