# cython: annotation_typing=False
"""Base classes of operations, queues and the write kernel, which compiled callers call without look-ups.

If a C compiler is available, this source is compiled; see `coordinator.compiled_sources`.
"""

from typing import Any

from coordinator.fastpath.commit_batch import CommitBatch, CommitContext


class QueuedOperation:
    """An operation; `writes` is true if a client's request may create a record.

    After the decision, an operation holds its response until the append is durable.
    """

    __slots__ = ("writes",)

    def answer_decided(self) -> None:
        """Send the response that was decided."""
        raise AssertionError("an operation must define how it is answered")


class WriteDecider:
    """Decides consecutive writes of a batch; implemented by `fastpath.compiled.WriteKernel`."""

    __slots__ = ()

    def decide_writes(self, shard: Any, batch: CommitBatch, waiting: list[Any]) -> None:
        """Decide and apply the next operations of a batch, until one is not a write or is refused."""
        raise AssertionError("a write decider must define how it decides")


class OperationQueue:
    """A queue of operations whose batches are scheduled and appended."""

    __slots__ = ()

    def submit(self, operation: Any) -> None:
        """Accept an operation; it gets exactly one response, during this call or later."""
        raise AssertionError("a queue must define how operations are submitted")

    def state_to_read(self, key: Any) -> bytes | None:
        """Return the packed state of a share-partition if memory may answer a read of it now."""
        raise AssertionError("a queue must define which reads memory may answer")

    def process_batch(self, commit: CommitContext) -> None:
        """Decide the queued operations and append their records; an exception is a defect."""
        raise AssertionError("a queue must define how a batch is processed")

    def batch_failed(self, failure: Exception) -> None:
        """Recover after `process_batch` raised this exception."""
        raise AssertionError("a queue must define how it recovers")

    def on_append_done(self, base_offset: int, error: Any) -> None:
        """Complete an append; `error` is a LogError or None."""
        raise AssertionError("a queue must define what follows an append")
