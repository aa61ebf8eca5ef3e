"""Provide aiokafka with the token for OAUTHBEARER."""

import asyncio
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from coordinator.errors import LogUnavailable


class FileTokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """A token in a file that another program keeps valid; the file is read at each login."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def token(self) -> str:
        """Return the token. Raises LogUnavailable if the file cannot be read, because it may appear later."""
        try:
            return (await asyncio.to_thread(self._file.read_text, "utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LogUnavailable(f"no token in {self._file}: {error}") from None
