# cython: annotation_typing=False
"""Base classes of operations, their queues and the write kernel: compiled callers need no attribute look-up.

Compiled from this source where there is a compiler; see `coordinator.compiled_sources`.
"""

from typing import Any

from coordinator.fastpath.commit_batch import Commit, CommitBatch


class QueuedOperation:
    """An operation; `writes` tells whether it may leave a record of a client's making.

    An operation keeps the answer that was decided until its append is durable.
    """

    __slots__ = ("writes",)

    def answer_decided(self) -> None:
        """Give the answer that was decided."""
        raise AssertionError("an operation must define how it is answered")


class WriteDecider:
    """Decides consecutive writes of a batch; `fastpath.compiled.WriteKernel` is the only one."""

    __slots__ = ()

    def decide_writes(self, shard: Any, batch: CommitBatch, waiting: list[Any]) -> None:
        """Decide and apply the next operations of a batch while they are writes that are accepted."""
        raise AssertionError("a write decider must define how it decides")


class OperationQueue:
    """A queue of operations whose batches are scheduled and appended."""

    __slots__ = ()

    def submit(self, operation: Any) -> None:
        """Take an operation; it is answered exactly once, later or within this call."""
        raise AssertionError("a queue must define how operations are submitted")

    def queued_operations(self) -> int:
        """Return how many operations are queued."""
        raise AssertionError("a queue must define its length")

    def process_batch(self, commit: Commit) -> None:
        """Decide what is queued and append it; an exception is a defect."""
        raise AssertionError("a queue must define how a batch is processed")

    def batch_failed(self, failure: Exception) -> None:
        """Recover from a batch that raised this exception."""
        raise AssertionError("a queue must define how it recovers")

    def on_append_done(self, base_offset: int, error: Any) -> None:
        """Take the outcome of an append; `error` is a LogError or None."""
        raise AssertionError("a queue must define what follows an append")
