"""Write files atomically and durably."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_durably(path: Path, data: bytes) -> None:
    """Write a file atomically and sync it to disk; a reader never sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Sync the content of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the entries of a directory to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
