"""Run the real journal on real files, record each disk call, and make disk calls fail (`faulty_disk.c`).

The recorded calls determine the possible contents of the disk after a crash at any call. After a kill, all
written bytes remain. After a power failure, any subset of unsynced sectors, file names and removals remains.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.simulation.disk import SimFile, SimStorage
from tests.unit.log.environments import STATE_PARTITIONS
from tests.unit.log.journals import make_record_value

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).with_name("faulty_disk.c")
HEAD = struct.Struct("<BBHIQ")
RUN_S = 120


class DiskEvent(NamedTuple):
    """A disk call or a note of the process. `faulty_disk.c` lists the values of `kind`."""

    kind: str
    name: str
    position: int
    data: bytes


def run_driver(
    built: Path, folder: Path, sync: str, commits: int, *, faults: str = "", pure: bool = False
) -> list[DiskEvent]:
    """Run `faulty_disk_driver` to its end, with the library `built` preloaded. Return the recorded events."""
    folder.mkdir()
    journal, trace = folder / "journal", folder / "trace"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(built),
        "FAULTY_DISK_FOLDER": str(journal),
        "FAULTY_DISK_TRACE": str(trace),
        "FAULTY_DISK_FAULTS": faults,
        "SHARE_COORDINATOR_PURE_PYTHON": "1" if pure else "",
    }
    subprocess.run(
        [sys.executable, "-m", "tests.unit.log.faulty_disk_driver", str(journal), sync, str(commits)],
        check=True,
        cwd=ROOT,
        env=environment,
        timeout=RUN_S,
    )
    return list(decode_events(trace.read_bytes()))


def decode_events(trace: bytes) -> Iterator[DiskEvent]:
    at = 0
    while at < len(trace):
        kind, _, path_bytes, data_bytes, position = HEAD.unpack_from(trace, at)
        name_at = at + HEAD.size
        data_at = name_at + path_bytes
        at = data_at + data_bytes
        yield DiskEvent(chr(kind), trace[name_at:data_at].decode(), position, trace[data_at:at])


class DiskImage:
    """The contents of the page cache and of the disk after a sequence of events."""

    def __init__(self) -> None:
        self.files: dict[str, SimFile] = {}
        # Files whose creation, or whose removal, is not durable yet.
        self._new: set[str] = set()
        self._removed: dict[str, SimFile] = {}

    def apply_disk_event(self, event: DiskEvent, rng: Random) -> None:
        file = self.files.get(event.name)
        if event.kind == "C":
            if file is None or event.position:
                self.files[event.name] = SimFile(0)
                self._new.add(event.name)
        elif event.kind == "W" and file is not None:
            file.write(event.position, event.data)
        elif event.kind == "S" and file is not None:
            file.sync(lambda sector: True)
        elif event.kind == "F" and file is not None:
            file.sync(lambda sector: rng.random() < 0.5)
        elif event.kind == "U" and file is not None:
            self._removed[event.name] = self.files.pop(event.name)
            self._new.discard(event.name)
        elif event.kind == "D":
            self._new.clear()
            self._removed.clear()

    def storage_after_crash(self, crash: str, rng: Random) -> SimStorage:
        """Return the storage after a crash.

        `crash` is "kill", or the effect of a power failure on unsynced sectors: "loses" (all are lost),
        "keeps" (all survive) or "draws" (random sectors survive).
        """
        chance = {"loses": 0.0, "keeps": 1.0, "draws": rng.random()}.get(crash, 1.0)
        storage = SimStorage(rng)
        shown = {**self.files}
        if crash != "kill":
            lost = {name for name in sorted(self._new) if rng.random() >= chance}
            back = {name: file for name, file in self._removed.items() if rng.random() >= chance}
            shown = {**back, **{name: file for name, file in shown.items() if name not in lost}}
        for name, file in shown.items():
            if name == "lock":
                continue
            copy = storage.files[name] = SimFile(len(file.shown))
            copy.durable[:] = file.durable
            if crash == "kill":
                copy.durable[:] = file.shown
            for sector in sorted(file.dirty):
                begin = sector * 512
                if crash != "kill" and rng.random() < chance:
                    copy.durable[begin : begin + 512] = file.shown[begin : begin + 512]
            copy.shown[:] = copy.durable
        return storage


class AcknowledgedAppends:
    """The acknowledged appends of a journal, which determine the records that the next process must find."""

    def __init__(self) -> None:
        self.done: list[dict[int, int]] = [{} for _ in range(STATE_PARTITIONS)]
        # Per prune: the end offset of the state partition at that time, and its new start offset.
        self.prunes: list[list[tuple[int, int]]] = [[(0, 0)] for _ in range(STATE_PARTITIONS)]
        self.asked: list[set[int]] = [set() for _ in range(STATE_PARTITIONS)]
        self.failed = 0

    def apply_driver_note(self, text: str) -> None:
        what, *numbers = text.split()
        values = list(map(int, numbers))
        if what == "append":
            self.asked[values[0]].add(values[1])
        elif what == "done":
            self.done[values[0]][values[2]] = values[1]
        elif what == "failed":
            self.failed += 1
        elif what == "prune":
            self.prunes[values[0]].append((values[2], values[1]))

    def check_records(
        self, found: dict[int, list[tuple[int, bytes | None, bytes | None]]], *, may_lose: bool
    ) -> None:
        """Compare the acknowledged records with the contents of a journal after a crash.

        With `may_lose`, the last records may be lost. Prunes after the lost records must not have taken
        effect.
        """
        for partition in range(STATE_PARTITIONS):
            records = {offset: content for offset, _, content in found.get(partition, [])}
            known = {make_record_value(number, 300 + number % 700) for number in self.asked[partition]}
            first, end = min(records, default=0), max(records, default=-1) + 1
            assert sorted(records) == list(range(first, end)), f"offsets of {partition} have a gap"
            assert {content for content in records.values()} <= known
            starts = [start for end_then, start in self.prunes[partition] if end_then <= end or not may_lose]
            for offset, number in self.done[partition].items():
                if offset >= max(starts) and not (may_lose and offset >= end):
                    assert records.get(offset) == make_record_value(number, 300 + number % 700), (
                        partition,
                        offset,
                    )
