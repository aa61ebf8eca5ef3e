"""Define the interface of a source: a plan of log ranges, which is made once, and the records of each range.

A range is the log of one state partition. A journal mixes the records of state partitions, so its ranges have
several.

A source is pickled, because other processes and machines read it.  So files and connections are opened only
in `plan` and `read`.
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

# In place of a number: the range has records of several state partitions.
ALL = schema.ALL
END = 2**63 - 1
# In place of a number of records: the cost of a range does not depend on records that are read.
UNKNOWN_SIZE = -1


class LogCut(NamedTuple):
    """The end of the part of the log to read: a log offset for each state partition (exclusive), or a time.

    Without both, the cut is the end of the log when the plan is made. `since` omits the records below an
    offset, for an archive that has them already. A job that rebuilds states must not set `since`.
    """

    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None
    since: Mapping[int, int] | None = None

    @property
    def is_log_end(self) -> bool:
        """True if the log is read up to its end."""
        return self.offsets is None and self.time_ms is None

    def end(self, state_partition: int) -> int:
        """Return the end offset of a state partition (exclusive); END without a limit."""
        return END if self.offsets is None else self.offsets.get(state_partition, END)

    def start(self, state_partition: int) -> int:
        """Return the log offset at which reading a state partition begins; 0 for the log start."""
        return 0 if self.since is None else self.since.get(state_partition, 0)


@dataclass(frozen=True)
class LogRange:
    """The log of one state partition, or of several, which one task reads in log order.

    `records` is the approximate number of records, if it is known. Only the source uses `place`.  `number`
    is the index of the range in its job.  With `stored`, the range begins with the states of a checkpoint.
    """

    state_partition: int
    start: int
    end: int
    records: int = UNKNOWN_SIZE
    place: Any = None
    number: int = 0
    stored: StoredStatesLocation | None = None


@dataclass(frozen=True)
class ReadPlan:
    """The ranges to read, fixed once, so that all tasks and retries read the same records.

    `starts` and `ends` are log offsets by state partition. Ends that are known only after reading are
    missing.

    Pruning removes records that the latest snapshots replace. So the states at a cut are complete only if the
    cut is at or after the end of the log at the last pruning. `whole_from` has the ends of the log at the
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
    """Records of the plan were pruned before they were read; `start` is the new log start offset.

    The job must plan the state partition again, or all state partitions if it is `ALL`.
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


# What an engine runs for each range. Tasks are pickled by name, so they are module-level functions or classes
# with bound arguments.
RangeTask = Callable[[LogRange], Iterable[NamedOutput]]


def run_coroutine_on_thread(main: Coroutine[Any, Any, AnyT]) -> AnyT:
    """Run a coroutine on a new thread, because a notebook's thread already has a running event loop."""
    with ThreadPoolExecutor(1, "recovery") as thread:
        return thread.submit(asyncio.run, main).result()


def offsets_after_time(source: Source, plan: ReadPlan, time_ms: int) -> dict[int, int]:
    """Return for each state partition the log offset of the first record with a later timestamp.

    Writers set the timestamps, so a later record may have an earlier time. The function reads the log up to
    these records. State partitions without a later record are not in the result.
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
