"""Reload files when they change, without a restart."""

import asyncio
import logging
import os

from coordinator.errors import ConfigError
from coordinator.process.clock import seconds_since_boot

_logger = logging.getLogger(__name__)

# If files change often and are never valid, the error is logged at this interval.
_LOG_INTERVAL_S = 60.0

_FileStats = tuple[tuple[int, ...] | None, ...]


class ReloadingFiles:
    """Base class for content that is loaded from files. A subclass calls `_load` at the end of `__init__`."""

    def __init__(self, what: str, paths: tuple[str, ...]) -> None:
        self._description = what
        self._paths = paths
        self._file_stats = self._read_file_stats()
        self._logged_s = -_LOG_INTERVAL_S
        self._last_error = ""

    def _load(self) -> None:
        """Read the files. If files are invalid, raise ConfigError and change nothing."""
        raise NotImplementedError

    def reload_if_changed(self) -> bool:
        """Reload the files if they have changed; return True if the new content is valid and in use.

        If the files are invalid or cannot be read, the error is logged, and the next call tries again.
        May be called on any thread, but not concurrently.
        """
        file_stats = self._read_file_stats()
        if file_stats == self._file_stats:
            return False
        try:
            self._load()
        except Exception as error:
            # Any other error than ConfigError must not end `watch` either. Its text may contain a secret.
            reason = str(error) if isinstance(error, ConfigError) else type(error).__name__
            now_s = seconds_since_boot()
            if reason != self._last_error or now_s - self._logged_s >= _LOG_INTERVAL_S:
                self._logged_s, self._last_error = now_s, reason
                _logger.error(
                    "The new %s are invalid, and the previous ones stay in use: %s",
                    self._description,
                    reason,
                )
            return False
        self._file_stats, self._last_error = file_stats, ""
        _logger.info("Reloaded the %s.", self._description, extra={"file": self._paths[0]})
        return True

    async def watch(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            # Decrypting a key takes long, so it runs on a thread.
            await asyncio.to_thread(self.reload_if_changed)

    def _read_file_stats(self) -> _FileStats:
        return tuple(_read_file_stat(path) for path in self._paths)


def _read_file_stat(path: str) -> tuple[int, ...] | None:
    """Return a value that changes with the file or with a symbolic link to it; None for a missing file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
