"""Define the interface of a source, which plans log ranges once, and then reads the records of each range.

A log range is a part of the log of one state partition. A journal mixes the records of state partitions, so
its log ranges have several state partitions.

A source object is pickled and sent to other processes and machines. Therefore, only `plan` and `read` open
files and connections.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from coordinator.errors import ConfigError, LogError
from coordinator.recovery import schema
from coordinator.recovery.records import Records
from coordinator.recovery.sources.checkpoints import StoredStatesLocation
from coordinator.recovery.tasks import NamedOutput

AnyT = TypeVar("AnyT")

# Used instead of a state partition's number if a range has records of several state partitions.
ALL = schema.ALL
END = 2**63 - 1
# Used instead of a range's number of records if the cost of the range does not depend on its records.
UNKNOWN_SIZE = -1


class LogCut(NamedTuple):
    """The end of the part of the log to read: a log offset for each state partition (exclusive), or a time.

    If neither is given, the cut is the end of the log when the plan is made. `since` omits the records below
    a log offset, because an archive has them already. A job that rebuilds states must not set `since`.
    """

    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None
    since: Mapping[int, int] | None = None

    @property
    def is_log_end(self) -> bool:
        """True if there is no cut, so that the log is read up to its end."""
        return self.offsets is None and self.time_ms is None

    def end(self, state_partition: int) -> int:
        """Return the log offset (exclusive) up to which to read a state partition; END: no limit."""
        return END if self.offsets is None else self.offsets.get(state_partition, END)

    def start(self, state_partition: int) -> int:
        """Return the log offset at which reading a state partition begins; 0 for the log start."""
        return 0 if self.since is None else self.since.get(state_partition, 0)


@dataclass(frozen=True)
class LogRange:
    """The log of one state partition, or of several, which one task reads in log order.

    `records` is the approximate number of records, if it is known. Only the source interprets `place`.
    `number` is the index of the range in its job. If `stored` is set, the range begins with these states of a
    checkpoint. `row_groups` is the number of row groups of an archive.
    """

    state_partition: int
    start: int
    end: int
    records: int = UNKNOWN_SIZE
    place: Any = None
    number: int = 0
    stored: StoredStatesLocation | None = None
    row_groups: int = 0


@dataclass(frozen=True)
class ReadPlan:
    """The ranges to read, fixed once, so that all tasks and retries read the same records.

    `starts` and `ends` are log offsets by state partition. `ends` lacks state partitions whose end is known
    only after reading.

    Pruning removes records that the latest snapshots replace. Therefore, the states at a cut are complete
    only if the log was not longer at its last pruning. `whole_from` has the end offsets of the log at its
    last pruning, if they are known. `doubtful` are state partitions whose states may be incomplete because of
    pruning.
    """

    ranges: tuple[LogRange, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    whole_from: Mapping[int, int] = field(default_factory=dict)
    doubtful: tuple[int, ...] = ()


class PrunedError(LogError):
    """Raised if records of the plan were pruned before they were read; `start` is the new log start offset.

    The job must plan the state partition again; `ALL` means all state partitions.
    """

    def __init__(self, state_partition: int, start: int) -> None:
        super().__init__(f"state partition {state_partition} was pruned up to {start} while it was read")
        self.state_partition = state_partition
        self.start = start


class Source(Protocol):
    """A log that a recovery job reads, from the log start of each state partition."""

    @property
    def text(self) -> str:
        """The source in the form of --from."""
        ...

    def identity(self) -> dict[str, str]:
        """Return the ids of the log (cluster id, topic id) by name; empty if it has none."""
        ...

    def plan(self, cut: LogCut) -> ReadPlan:
        """Plan the ranges to read. Raises LogError, OSError, and ConfigError if there is no such log."""
        ...

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Yield the records of a range, in log order for each state partition.

        Raises PrunedError, LogUnavailable, LogDamaged, OSError.
        """
        ...


# The function that an engine runs for each log range. Functions are pickled by name, so a task is a
# module-level function or class with bound arguments.
RangeTask = Callable[[LogRange], Iterable[NamedOutput]]


def run_coroutine_on_thread(main: Coroutine[Any, Any, AnyT]) -> AnyT:
    """Run a coroutine on a new thread, because a notebook's thread already has a running event loop."""
    with ThreadPoolExecutor(1, "recovery") as thread:
        return thread.submit(asyncio.run, main).result()


def offsets_after_time(source: Source, plan: ReadPlan, time_ms: int) -> dict[int, int]:
    """Return each state partition's log offset of the first record with a timestamp after a time.

    Writers set the timestamps, so timestamps do not always ascend. The function therefore reads the log up to
    these records. State partitions without such a record are not in the result.
    """
    found: dict[int, int] = {}
    for log_range in plan.ranges:
        if log_range.state_partition in found:
            continue
        for records in source.read(log_range):
            later = records.log_offset[records.timestamp_ms > time_ms]
            if len(later):
                first = int(later[0])
                found[records.state_partition] = min(found.get(records.state_partition, END), first)
                if log_range.state_partition != ALL:
                    break
    return found


def parse_offsets(text: str) -> dict[int, int]:
    """Parse `P:O,P:O`: pairs of state partition and log offset. Raises ConfigError."""
    found = {}
    for piece in text.split(","):
        partition, colon, offset = piece.strip().partition(":")
        if not (colon and piece.isascii() and partition.isdigit() and offset.isdigit()):
            raise ConfigError("--as-of-offset", text, "PARTITION:OFFSET,PARTITION:OFFSET")
        if int(partition) in found:
            raise ConfigError("--as-of-offset", text, f"one offset of state partition {int(partition)}")
        found[int(partition)] = min(int(offset), END)
    return found


def format_offsets(offsets: Mapping[int, int]) -> str:
    """Return offsets as the text that `parse_offsets` parses."""
    return ",".join(f"{state_partition}:{offset}" for state_partition, offset in offsets.items())
