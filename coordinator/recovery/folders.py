"""Read and write files durably, in a local directory or below a prefix of an object store.

A location is a path or a URI that `obstore` knows: `s3://bucket/prefix` (or `s3a://`, Spark's name for it),
`gs://` or `az://`.  Credentials come from the environment of each process, for example AWS_ACCESS_KEY_ID.

`write` and `create` make a file visible only with its whole content.  `create` never replaces a file, so of
several writers, one succeeds. After a failure, a file of `writer` may be incomplete, so readers use only
files that a complete file names.
"""

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4  # noqa: TID251

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.errors import CoordinatorError, LogUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Location = str | Path

_URI = re.compile(r"[a-z][a-z0-9+.-]+://.+", re.IGNORECASE)
_CONCURRENT_READS = 16
# A temporary file of this age, in seconds, belongs to a process that was killed.
_ABANDONED_S = 3_600
# Options of written files. Readers verify the checksums: a changed bit may decode to other values.
PARQUET_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}


class Folder:
    """A local directory.

    All methods raise OSError; reading a missing file raises FileNotFoundError.
    """

    def __init__(self, location: str) -> None:
        self.location = location

    def __str__(self) -> str:
        return self.location

    def __truediv__(self, name: str) -> "Folder":
        return type(self)(f"{self.location}/{name}")

    @property
    def uri(self) -> str:
        """The location for Spark."""
        return Path(self.location).absolute().as_uri()

    def resolved(self) -> str:
        """Return the absolute path without symbolic links, so that two locations can be compared."""
        return str(Path(self.location).resolve())

    def names(self) -> list[str]:
        """Return the sorted names of the files directly in this folder; empty if it does not exist."""
        return sorted(self._list()[0])

    def folder_names(self) -> list[str]:
        """Return the sorted names of the folders in this folder."""
        return sorted(self._list()[1])

    def _list(self) -> tuple[list[str], list[str]]:
        """Return the names of files and folders."""
        try:
            with os.scandir(self.location) as scanned:
                entries = list(scanned)
        except FileNotFoundError:
            return [], []
        files = [each.name for each in entries if each.is_file() and each.name[0] != "."]
        return files, [each.name for each in entries if each.is_dir()]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return Path(self.location, name).read_bytes()

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """Return the contents of several files, read concurrently because an object takes a round trip."""
        with ThreadPoolExecutor(_CONCURRENT_READS) as threads:
            return list(threads.map(self.read, names))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""
        with self._temporary_file(name, data) as path:
            path.replace(Path(self.location, name))

    def create(self, name: str, data: bytes) -> None:
        """Write a new file. Raises FileExistsError."""
        with self._temporary_file(name, data) as path:
            os.link(path, Path(self.location, name))

    @contextmanager
    def _temporary_file(self, name: str, data: bytes) -> Iterator[Path]:
        """Write a hidden temporary file durably, and yield its path; the caller renames the file.

        Delete the files that killed processes left.
        """
        path = Path(self.location, f".{name}.{uuid4().hex}.unfinished")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(data)
            _sync(path)
            abandoned_s = path.stat().st_mtime - _ABANDONED_S
            for each in path.parent.glob(f".*.{'[0-9a-f]' * 32}.unfinished"):
                with suppress(OSError):
                    if each.stat().st_mtime < abandoned_s:
                        each.unlink()
            yield path
        finally:
            path.unlink(missing_ok=True)
        _sync(path.parent)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it is durable at the end of the block."""
        path = Path(self.location, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)

    def delete(self, name: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        Path(self.location, name).unlink(missing_ok=True)

    def delete_all(self) -> None:
        """Delete the folder with its content."""
        shutil.rmtree(self.location)

    def _open_for_reading(self, name: str) -> "Path | _ObjectReader":
        """Return a path or a file object, from which pyarrow reads."""
        return Path(self.location, name)

    def open_parquet(self, name: str) -> pq.ParquetFile:
        """Open a Parquet file, without reading the whole file; the caller closes it."""
        return pq.ParquetFile(self._open_for_reading(name), pre_buffer=True, page_checksum_verification=True)

    def write_parquet(self, name: str, table: pa.Table) -> None:
        """Write a table to a new file."""
        with self.writer(name) as file:
            pq.write_table(table, file, **PARQUET_OPTIONS)

    def _parquet_files(self, name: str) -> tuple["Folder", list[str]]:
        """Return the folder and the names of a Parquet file, or of the files in a folder of such files."""
        if name in self.names():
            return self, [name]
        folder = self / name
        return folder, [each for each in folder.names() if each.endswith(".parquet")]

    def count_rows(self, name: str) -> int:
        """Return the number of rows of a Parquet file, or of a folder of such files; 0 if there is none."""
        folder, names = self._parquet_files(name)
        found = 0
        for each in names:
            with folder.open_parquet(each) as file:
                found += file.metadata.num_rows
        return found

    def read_parquet(self, name: str, filters: Any = None) -> pa.Table:
        """Return the rows of a Parquet file, or of a folder of such files."""
        folder, names = self._parquet_files(name)
        if not names:
            raise FileNotFoundError(f"{folder} has no Parquet file")
        return pa.concat_tables(
            pq.read_table(folder._open_for_reading(each), filters=filters, page_checksum_verification=True)
            for each in names
        )


class ObjectFolder(Folder):
    """The objects below a prefix. Raises LogUnavailable if the object store does not respond."""

    @property
    def uri(self) -> str:
        """The location for Spark."""
        return self.location

    def resolved(self) -> str:
        """Return the location unchanged; URIs have no links."""
        return self.location

    def _list(self) -> tuple[list[str], list[str]]:
        found = self._request("list_with_delimiter")
        # Some programs create an object with an empty name to mark a folder.
        return [each["path"] for each in found["objects"] if each["path"]], found["common_prefixes"]

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        with self._convert_errors():
            return bytes(self._store.get(name).bytes())

    def write(self, name: str, data: bytes) -> None:
        """Write an object, or replace it."""
        self._request("put", name, data)

    def create(self, name: str, data: bytes) -> None:
        """Write a new object. Raises FileExistsError."""
        from obstore.exceptions import AlreadyExistsError

        with self._convert_errors():
            try:
                self._store.put(name, data, mode="create")
            except AlreadyExistsError:
                raise FileExistsError(f"{self.location}/{name}") from None

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Open a new object for writing; it exists at the end of the block."""
        import obstore

        with self._convert_errors(), obstore.open_writer(self._store, name) as file:
            yield _ObjectWriter(file)  # type: ignore[misc]

    def delete(self, name: str) -> None:
        """Delete an object; do nothing if it does not exist."""
        with suppress(FileNotFoundError):
            self._request("delete", name)

    def delete_all(self) -> None:
        """Delete all objects below the prefix."""
        with self._convert_errors():
            for found in self._store.list():
                self._store.delete([each["path"] for each in found])

    def _open_for_reading(self, name: str) -> "_ObjectReader":
        def read_range(start: int, length: int) -> bytes:
            return bytes(self._request("get_range", name, start=start, length=length))

        return _ObjectReader(read_range, self._request("head", name)["size"])

    @property
    def _store(self) -> "ObjectStore":
        return _open_store(self.location)

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:
        with self._convert_errors():
            return getattr(self._store, method)(*arguments, **options)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            reason = str(error).partition("\n")[0]
            raise LogUnavailable(f"{self.location} cannot be used: {reason}") from None


@lru_cache(maxsize=64)
def _open_store(location: str) -> "ObjectStore":
    try:
        from obstore.store import from_url
    except ImportError:
        raise CoordinatorError(
            f"{location} requires obstore: pip install share-coordinator[recovery]"
        ) from None
    return from_url(location)


class _ObjectReader(io.RawIOBase):
    """A seekable, read-only file whose content is an object; each read is one request."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        buffer[:length] = self._read_range(self._at, length)
        self._at += length
        return length


class _ObjectWriter(io.RawIOBase):
    """A binary file that writes to an object; the caller closes the object's writer."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._file.write(bytes(data)))


def open_folder(location: Location) -> Folder:
    """Return the folder at a path or URI, without access to the directory or object store."""
    text = str(location)
    return ObjectFolder(text.rstrip("/")) if _URI.fullmatch(text) else Folder(text)


def _sync(path: Path) -> None:
    """Sync the content of a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
