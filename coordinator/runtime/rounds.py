"""The turns that are due, of all shards: one callback of the event loop carries all of them out.

A shard that gets something to do while nothing of it is under way plans a turn.  What arrives for other
shards until the event loop comes to it is decided in the same go, so that their appends travel together, too.
"""

import asyncio
from typing import Protocol

from coordinator import hot
from coordinator.clock import Clock
from coordinator.log.base import Gathered, GatheringLog, StateLog
from coordinator.metrics import Metrics
from coordinator.runtime.limits import RuntimeLimits
from coordinator.topics import EveryTopic, TopicDirectory


class Due(Protocol):
    """One whose turn it is."""

    def turn(self) -> None:
        """Take the turn; what goes wrong in it is an exception."""
        ...

    def turn_failed(self, failure: Exception) -> None:
        """Recover from a turn that raised this in the middle."""
        ...


class Rounds:
    """Plans turns and carries them out, in the order in which they were planned."""

    def __init__(
        self, *, log: StateLog, clock: Clock, topics: TopicDirectory, metrics: Metrics, limits: RuntimeLimits
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._gathering_log = log if isinstance(log, GatheringLog) else None
        self._clock = clock
        self._metrics = metrics
        self._due: list[Due] = []
        # Takes the turns that begin with a plain write.
        self._plain = None
        if hot.compiled is not None:
            topics_to_ask = None if isinstance(topics, EveryTopic) else topics
            self._plain = hot.compiled.PlainTurns(
                log.append, topics_to_ask, limits.request_age_max_s, limits.operations_per_append_max
            )

    def plan(self, due: Due) -> None:
        """Let this one take its turn on the next turn of the event loop."""
        if not self._due:
            self._loop.call_soon(self._go)
        self._due.append(due)

    def _go(self) -> None:
        all_due, self._due = self._due, []
        log = self._gathering_log
        if log is None:
            self._carry_out(all_due, None)
            return
        gathered = log.gather()
        try:
            self._carry_out(all_due, gathered)
        finally:
            log.flush()

    def _carry_out(self, all_due: list[Due], gathered: Gathered | None) -> None:
        plain = self._plain
        if plain is not None:
            plain.begin(self._clock.now_ms(), self._loop.time(), self._log.health() is None, gathered)
        for due in all_due:
            try:
                if plain is None or not plain.turn(due):
                    due.turn()
            except Exception as failure:
                # It is not the fault of the others.
                self._loop.call_exception_handler({"message": "a turn failed", "exception": failure})
                due.turn_failed(failure)
        if plain is not None:
            self._metrics.write_operations(plain.taken)
