"""The port to a state log: records in, batches out, one sequence per state partition.

A log moves bytes.  It does not know what a record means, who owns a state partition, or what a share group
is.  The one promise that everything else stands on: when ``done`` reports no error, every later ``read``,
after any crash the log is built to survive, returns the records at the offset that was reported.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

from coordinator.errors import LogError

# Appends that wait, as their log knows them, and the offset that is next in each state partition.
PendingEntries = tuple[list[Any], list[int]]


class LoggedBatch(NamedTuple):
    """One Kafka record batch (magic 2) as it stands in the log of one state partition."""

    state_partition: int
    batch: bytes


# Records of an append, from the first to behind the last, that are stored all or none.
Unit = tuple[int, int]

# Of a log without a bound of its own: more than requests and what they add up to bring.
RECORD_BYTES_MAX = 1 << 30


class AppendCallback(Protocol):
    """What an append calls when its fate is known.

    ``base_offset`` is the log offset of the first record; with an error it is the offset the append would
    have had.
    """

    def __call__(self, base_offset: int, error: LogError | None) -> None: ...


class StateLog(Protocol):
    """The logs of all state partitions of one process.  All methods are called on the event loop's thread.

    Offsets of a state partition are dense: the records of an append take the offsets from the end offset up,
    and an append that failed takes none.  At most one append per state partition is under way at a time: that
    is the caller's duty, and what lets a caller know the offset of its records before they are durable.
    """

    @property
    def record_bytes_max(self) -> int:
        """The most bytes that key and value of a record may have, as long as the log is open."""
        ...

    async def open(self) -> None:
        """Get ready to read and append; recover first what an earlier process left behind.

        Raises LogLocked if another process holds the log, LogDamaged if acknowledged records cannot be read
        back, ConfigError if the log was made for other settings, and LogUnavailable if storage cannot be used
        at all.
        """
        ...

    async def close(self) -> None:
        """Finish the appends under way and let go of the storage.  Closing twice is harmless."""
        ...

    def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Give every batch of the state partitions, from each one's start to its end as of this call.

        Batches come in chunks of about 1 MiB, per state partition in log order; how partitions mix is not
        defined. Appends may go on meanwhile and are not seen.  Records that ``prune`` gave up may or may not
        come. Raises LogDamaged if a stored batch fails its checks and LogUnavailable if storage cannot be
        read.
        """
        ...

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        """Add (key, value) records to the end of a state partition, in order.

        Each record, and each of the `units` as a whole, is stored or not, whatever happens.  A log stores an
        append as one batch, or as several if it is larger than a batch may be; then an append that fails with
        LogOutcomeUnknown may have stored the first of them.  The keys and values of a unit, and
        `RECORD_BYTES_IN_BATCH` for each record but the first, take at most `record_bytes_max`.

        ``done`` is called exactly once, on the event loop, never from inside this call: without error when
        the records are durable (as far as the log promises durability), with LogUnavailable when they are not
        there and never will be, with LogOutcomeUnknown when that cannot be known, with LogFenced when the log
        belongs to someone else.  An append without records renews the lease, for which a shared log may write
        a record of its own; its ``done`` gets the offset of the next record.
        """
        ...

    def lease_left_s(self, state_partition: int) -> float:
        """Return for how many seconds reads may be answered from memory; 0 or less if they may not.

        Without a lease a read has to wait for an append that was begun after it came in.
        """
        ...

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        """Tell whether an append without records is to be made now; `read` says that reads come in."""
        ...

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Declare the records below a log offset not needed; their storage is freed later.

        A value below the start offset changes nothing; one above the end offset counts as the end offset.
        """
        ...

    def start_offset(self, state_partition: int) -> int:
        """Return the offset from which records are still promised.

        It never falls while the log is open.  After a reopening it may be lower than before, if storage had
        not been freed yet: more comes back than was asked for, never less.
        """
        ...

    def end_offset(self, state_partition: int) -> int:
        """Return the offset that the next record of the state partition gets."""
        ...

    def pinned(self, live_bytes: int) -> Mapping[int, int]:
        """Return the log offset up to which each state partition keeps the oldest storage from being freed.

        An entry ``state_partition: offset`` asks for a prune to at least that offset, for which all state
        whose latest snapshot lies below must be written again.  Empty when the log is no bigger than it
        should be, given that snapshots of all live state would take `live_bytes`.
        """
        ...

    def health(self) -> str | None:
        """Return None when appends can succeed, else one sentence that says why not, for a human."""
        ...

    def size_bytes(self) -> int:
        """Return the bytes that the log takes on its storage, or as much of them as this process knows of."""
        ...


class UnsharedLog:
    """The leases of a log that no other process can write to."""

    def lease_left_s(self, state_partition: int) -> float:
        """Return infinity: no other process becomes the owner."""
        return inf

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        """Return False: there is no lease."""
        return False


@runtime_checkable
class SharedLog(StateLog, Protocol):
    """A log that several processes can write to, so that each state partition needs an owner.

    Whoever wants to append calls `own`, then reads the state partition, then appends: it is the read that
    finds out whether the claim was accepted.  From then on appends say LogFenced once somebody else owns it,
    and nothing that a fenced owner writes reaches a reader.  `read` gives records that count, and no claims:
    offsets rise, and have gaps where other records are.
    """

    async def own(
        self,
        state_partition: int,
        release_wait_s: float = 0.0,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> int:
        """Become the owner of a state partition and return the owner epoch; the previous owner is fenced.

        Whoever owns it now is given `release_wait_s` to release it first; `may_claim` is asked at the last
        moment.  Owning it again makes a new ownership with a higher owner epoch; that is the way on after
        LogOutcomeUnknown, as nothing counts that was sent before and arrives after.  No append may be under
        way.  Raises LogFenced if somebody else is claiming it right now, LogUnavailable or LogOutcomeUnknown
        if the claim could not be made or nobody knows.
        """
        ...

    def served_in_s(self, state_partition: int) -> float:
        """Return how many seconds to wait, once the log was read, before anything is acknowledged.

        Until then an earlier owner may answer reads, and appends are refused.
        """
        ...

    async def release(self, state_partition: int) -> None:
        """Own a state partition no more, and say so in the log; no append may be under way.

        One that is not ours is left as it is.  Raises LogError if that could not be said.
        """
        ...


@runtime_checkable
class GroupCommitLog(StateLog, Protocol):
    """A log that writes what is appended at about the same time as one, and can be told when that is.

    It has one such commit under way at a time; what is flushed meanwhile is in the next one.
    """

    @property
    def committing(self) -> bool:
        """True while a commit is under way."""
        ...

    def set_commit_callback(self, over: Callable[[], None]) -> bool:
        """Have `over` called after each commit, whatever came of it, when its appends have been told.

        False: it is never called, because commits take no time to speak of.
        """
        ...

    def take_pending(self) -> PendingEntries | None:
        """Let appends wait until `flush`, which comes without any wait in between.

        Returns where until then the compiled way may put what `append` would take, and would accept; None:
        nowhere.
        """
        ...

    def flush(self) -> None:
        """Begin to write what was gathered.

        ``done`` of appends may be called from inside this call, where storage takes them at once.
        """
        ...
