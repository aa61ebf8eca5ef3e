"""The port to where records come from: a plan of ranges, made once, and the records of each range.

A source is a value that can be pickled: it is read by other processes, and on other machines.  What it opens,
it opens in `plan` and `read`.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from coordinator.errors import ConfigError, LogError
from coordinator.recovery import schema
from coordinator.recovery.records import Records

AnyT = TypeVar("AnyT")

# The state partition of a range that holds records of all of them.
ALL = schema.ALL
END = 2**63 - 1

# Into how many records a partition is cut: enough that a range costs seconds, few enough that all cores work.
RANGE_RECORDS = 2_000_000


class Cut(NamedTuple):
    """Up to where the log is read: an offset for each state partition named (not included), or a time.

    Without either, up to the end as it is when the plan is made.  `since` leaves out what is below an offset:
    for a copy that goes on, never for a state.
    """

    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None
    since: Mapping[int, int] | None = None

    @property
    def is_the_end(self) -> bool:
        """Say whether the log is read up to its end."""
        return self.offsets is None and self.time_ms is None

    def end(self, state_partition: int) -> int:
        """Return the offset that a state partition is read up to at most."""
        return END if self.offsets is None else self.offsets.get(state_partition, END)

    def start(self, state_partition: int) -> int:
        """Return the offset that a state partition is read from at least."""
        return 0 if self.since is None else self.since.get(state_partition, 0)


@dataclass(frozen=True)
class LogRange:
    """A stretch of the log of one state partition, or of all: read by one task.

    `records` is about how many it has; `place` is for the source alone.  `number` tells the ranges of a job
    apart.
    """

    state_partition: int
    start: int
    end: int
    records: int
    place: Any = None
    number: int = 0


@dataclass(frozen=True)
class Plan:
    """What is read: settled once, so that every task, and a second run, reads the same.

    `starts` and `ends` are log offsets by state partition; an end that is not known before the records are
    read is missing.  The ranges of a state partition ascend and touch each other.  A log that was
    pruned is whole at a cut only if that is behind what was the end when it was pruned last: `whole_from` is
    that end, where it is known.  `doubtful` are the state partitions that may not be whole for that reason.
    """

    ranges: tuple[LogRange, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    whole_from: Mapping[int, int] = field(default_factory=dict)
    doubtful: tuple[int, ...] = ()

    @property
    def records(self) -> int:
        """About how many records there are to read."""
        return sum(each.records for each in self.ranges)


class PrunedError(LogError):
    """What was to be read is gone: `start` is where the log of the state partition begins now.

    Whoever meets it plans that state partition anew, or all of them if it is `ALL`.
    """

    def __init__(self, state_partition: int, start: int) -> None:
        super().__init__(f"state partition {state_partition} was pruned up to {start} while it was read")
        self.state_partition = state_partition
        self.start = start


class Source(Protocol):
    """A log that can be read, from the start of each state partition's log."""

    @property
    def text(self) -> str:
        """The source as a user writes it."""
        ...

    def identity(self) -> dict[str, str]:
        """Return the ids that tell this log from others, by name; empty if it has none."""
        ...

    def plan(self, cut: Cut, *, range_records: int = RANGE_RECORDS) -> Plan:
        """Settle what to read. Raises LogError, OSError, and ConfigError for a source that is none."""
        ...

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Give the records of a range that are within its offsets, in log order for each state partition.

        Raises PrunedError, LogUnavailable, LogDamaged, OSError.
        """
        ...


def run_on_thread(main: Coroutine[Any, Any, AnyT]) -> AnyT:
    """Run a coroutine on a thread of its own: this one may have a running loop, as in notebooks."""
    with ThreadPoolExecutor(1, "recovery") as thread:
        return thread.submit(asyncio.run, main).result()


def ends_after(source: Source, plan: Plan, time_ms: int) -> dict[int, int]:
    """Find, for each state partition, the offset of the first record that is later than a time.

    Times are those of the writers and may step back: a time is a way to find offsets and nothing more.  Takes
    reading everything; state partitions without a later record are not in the answer.
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
    """Read `P:O,P:O`, a log offset for each state partition. Raises ConfigError."""
    found = {}
    for piece in text.split(","):
        partition, colon, offset = piece.strip().partition(":")
        if not (colon and piece.isascii() and partition.isdigit() and offset.isdigit()):
            raise ConfigError("--as-of-offset", text, "PARTITION:OFFSET,PARTITION:OFFSET")
        if int(partition) in found:
            raise ConfigError("--as-of-offset", text, f"one offset of state partition {int(partition)}")
        found[int(partition)] = min(int(offset), END)
    return found
