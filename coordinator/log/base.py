"""Interface of a state log: append records and read batches, in one sequence per state partition.

A log stores bytes.  The interface does not depend on record contents, owners of state partitions, or share
groups.  The main guarantee: if ``done`` reports no error, every later ``read`` returns the records at the
reported offset. The guarantee holds after any crash that the log is designed to survive.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

from coordinator.errors import LogError

# A function that creates an append from a state partition, base offset, timestamp, (key, value) records and
# callback.
NewAppend = Callable[[int, int, int, Sequence[tuple[bytes, bytes | None]], Any], Any]
# The list of pending appends (objects of the log), the next offset of each state partition, and the function
# that creates an append for the list.
PendingEntries = tuple[list[Any], list[int], NewAppend]


# A callback for appends that are in the log. The observer gets a sequence of byte strings, each with an
# encoded record batch, and the number of bytes before the batch in each of them. It must not raise.
AppendObserver = Callable[[Sequence[bytes], int], None]


class LoggedBatch(NamedTuple):
    """One Kafka record batch (magic 2) as stored in the log of one state partition."""

    state_partition: int
    batch: bytes


# Index range (first, end) of the records of an append that the log must store together or not at all.
Unit = tuple[int, int]

# Limit for logs that have no smaller one; larger than any record that a request can produce.
RECORD_BYTES_MAX = 1 << 30


class AppendCallback(Protocol):
    """Callback for the outcome of an append.

    ``base_offset`` is the log offset of the first record.  With an error, ``base_offset`` is the offset that
    the append would have had.
    """

    def __call__(self, base_offset: int, error: LogError | None) -> None: ...


class StateLog(Protocol):
    """The logs of all state partitions of one process.  All methods are called on the event loop's thread.

    Offsets of a state partition are dense.  The records of an append take the offsets from the end offset up;
    a failed append takes none.  The caller must have at most one append per state partition in progress.  The
    caller therefore knows the offsets of its records before they are durable.
    """

    @property
    def record_bytes_max(self) -> int:
        """Maximum size in bytes of a record's key and value; valid while the log is open."""

    async def open(self) -> None:
        """Recover the data of an earlier process and prepare for reads and appends.

        Raises LogLocked if another process holds the log, and LogDamaged if acknowledged records cannot be
        read. Raises ConfigError if the log was created with other settings, and LogUnavailable for unusable
        storage.
        """

    async def close(self) -> None:
        """Complete the appends in progress and release the storage.  A second call is harmless."""

    def read(self, state_partitions: Collection[int]) -> AsyncIterator[list[LoggedBatch]]:
        """Yield every batch of the state partitions, from their start offsets to their ends as of this call.

        Chunks have about 1 MiB; batches of a state partition are in log order, and partitions mix in any
        order. Concurrent appends are not included.  Pruned records may be included. Raises LogDamaged if a
        stored batch fails validation, and LogUnavailable if storage cannot be read.
        """

    def append(
        self,
        state_partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        done: AppendCallback,
        units: Sequence[Unit] = (),
    ) -> None:
        """Append (key, value) records to the end of a state partition, in order.

        The records of each of the `units` are stored together or not at all. An append is stored as one
        batch, or as several if it exceeds the maximum batch size. If an append of several batches fails with
        LogOutcomeUnknown, its first batches may be stored. The size of a unit is at most
        `record_bytes_max`: keys, values, and `RECORD_BYTES_IN_BATCH` for each record except the first.

        ``done`` is called exactly once, on the event loop, never during this call.  ``done`` gets no error if
        the records are durable, as far as the log guarantees durability. ``done`` gets LogUnavailable if the
        records are not stored and never will be, LogOutcomeUnknown if that is not known, and LogFenced if
        another process owns the log.  An append without records renews the lease, for which a shared log may
        write a record of its own.  The ``done`` of an append without records gets the log offset of the next
        record.
        """

    def lease_left_s(self, state_partition: int) -> float:
        """Return for how many seconds reads may be served from memory; 0 or less if they may not.

        Without a lease, a read must wait for an append that began after the read arrived.
        """

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        """Return whether an append without records should renew the lease now.

        `read` is True if reads are arriving, which need a lease.
        """

    def prune(self, state_partition: int, before_offset: int) -> None:
        """Mark the records below a log offset as redundant; their storage is freed later.

        An offset below the start offset has no effect; one above the end offset counts as the end offset.
        """

    def start_offset(self, state_partition: int) -> int:
        """Return the offset of the first record that is still guaranteed.

        The start offset never decreases while the log is open.  After a restart the start offset may be
        lower, if storage was not freed yet; it is never higher.
        """

    def end_offset(self, state_partition: int) -> int:
        """Return the offset of the next record of the state partition."""

    def prune_offsets_freeing_storage(self, live_bytes: int) -> Mapping[int, int]:
        """Return the prune offsets that would free the oldest storage, by state partition.

        To prune to such an offset, each state whose latest snapshot is below it must be snapshotted again.
        The mapping is empty if the log has an adequate size for `live_bytes`, the size of snapshots of all
        live state.
        """

    def health(self) -> str | None:
        """Return None if appends can succeed, else one sentence with the reason."""

    def size_bytes(self) -> int:
        """Return the size of the log's storage in bytes, as far as this process knows it."""


class AppendReporter:
    """Base class of logs that pass the bytes of each append to an observer, if one is set."""

    @staticmethod
    def _append_observer(batches: Sequence[bytes], prefix_bytes: int, /) -> None:
        """Do nothing until an observer is set."""

    def observe_appends(self, observer: AppendObserver) -> None:
        self._append_observer = observer  # type: ignore[method-assign]


class UnsharedLog(AppendReporter):
    """Base class of logs that no other process can write to, so that they need no lease."""

    def lease_left_s(self, state_partition: int) -> float:
        """Return infinity: no other process can become the owner."""
        return inf

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        """Return False: there is no lease."""
        return False


@runtime_checkable
class SharedLog(StateLog, Protocol):
    """A log that several processes can write to, so that each state partition needs an owner.

    To append, a process calls `acquire_ownership`, reads the state partition, and then appends, because only
    the read shows whether the claim was accepted. Once another process owns the state partition, appends fail
    with LogFenced, and readers ignore all records of the fenced owner. `read` returns only valid records and
    no claims, so offsets may have gaps.
    """

    async def acquire_ownership(
        self,
        state_partition: int,
        release_wait_s: float = 0.0,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> int:
        """Become the owner of a state partition and return the owner epoch; the previous owner is fenced.

        The present owner has `release_wait_s` to release it first; `may_claim` is called immediately before
        the claim.  A second call creates a new ownership with a higher owner epoch.  After LogOutcomeUnknown,
        make a second call to continue, because records of the earlier ownership that arrive later are
        ignored.  No append may be in progress.  Raises LogFenced if another process is claiming the state
        partition now, LogUnavailable if the claim was not written, and LogOutcomeUnknown if that is not
        known.
        """

    def earlier_leases_left_s(self, state_partition: int) -> float:
        """Return the seconds until no earlier owner can have a lease; 0 if none can.

        Until then an earlier owner may serve reads, and appends are refused.
        """

    async def release(self, state_partition: int) -> None:
        """End the ownership of a state partition, and write a release record.

        No append may be in progress.  If this process is not the owner, nothing happens.  Raises LogError if
        the release could not be written.
        """


@runtime_checkable
class GroupCommitLog(StateLog, Protocol):
    """A log with group commit: it writes concurrent appends together and reports the end of each commit.

    One commit is in progress at a time; appends flushed meanwhile are part of the next one.
    """

    @property
    def committing(self) -> bool:
        """True while a commit is in progress."""

    def set_commit_callback(self, on_commit_finished: Callable[[], None]) -> bool:
        """Set a callback for the end of each commit; it is called after `done` of the commit's appends.

        Returns False if this log never calls the callback, because its commits do not wait for a disk.
        """

    def take_pending_entries(self) -> PendingEntries | None:
        """Suspend commits until `flush`, which the caller must call without an await in between.

        Returns the pending entries, to which the caller may add appends with records instead of calling
        `append`; None if appends are refused.
        """

    def flush(self) -> None:
        """Start to write the pending appends.

        If the write completes without waiting, ``done`` of the appends is called during this call.
        """
