"""Files that are read again when they change, without a restart."""

import asyncio
import logging
import os

from coordinator.clock import seconds_since_boot
from coordinator.errors import ConfigError

_logger = logging.getLogger(__name__)

# Files that are changed again and again, and are never good, are complained of this often.
_LOG_INTERVAL_S = 60.0

_Signatures = tuple[tuple[int, ...] | None, ...]


class ReloadingFiles:
    """What was read from some files. A subclass calls `_load` at the end of its `__init__`."""

    def __init__(self, what: str, paths: tuple[str, ...]) -> None:
        self._description = what
        self._paths = paths
        self._signatures = self._read_signatures()
        self._logged_s = -_LOG_INTERVAL_S
        self._last_error = ""

    def _load(self) -> None:
        """Read the files. Raises ConfigError, and has changed nothing then, if they are of no use."""
        raise NotImplementedError

    def reload_if_changed(self) -> bool:
        """Read the files again if they are others than before; return True if they were, and are good.

        Files that are of no use change nothing, which the log says. May be called on any thread, by one at
        a time.
        """
        looks = self._read_signatures()
        if looks == self._signatures:
            return False
        self._signatures = looks
        try:
            self._load()
        except ConfigError as error:
            now_s, complaint = seconds_since_boot(), str(error)
            if complaint != self._last_error or now_s - self._logged_s >= _LOG_INTERVAL_S:
                self._logged_s, self._last_error = now_s, complaint
                _logger.error(
                    "the new %s are of no use, the old ones stay in use: %s", self._description, complaint
                )
            return False
        _logger.info("%s were read again", self._description, extra={"file": self._paths[0]})
        return True

    async def watch(self, interval_s: float) -> None:
        """Look at the files every so often, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            # Keys with passwords take long to open: not on the event loop.
            await asyncio.to_thread(self.reload_if_changed)

    def _read_signatures(self) -> _Signatures:
        return tuple(_file_signature(path) for path in self._paths)


def _file_signature(path: str) -> tuple[int, ...] | None:
    """Return what changes with a file, also when a link on the way to it does; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
