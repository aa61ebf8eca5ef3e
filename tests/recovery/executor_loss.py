"""A Spark driver whose executors are killed between two phases, while the log is pruned.

    python -m tests.recovery.executor_loss PHASE MASTER SEGMENTS MARKER PID,PID WORK

Before the named phase begins, all executors of these workers are killed. From then on, the source reports
that every state partition was pruned.  Prints JSON: the states and the number of records, or the error.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import CoordinatorError
from coordinator.recovery.engines import open_engine
from coordinator.recovery.progress import Phases
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.sources.base import Cut, LogRange, Plan, PrunedError
from coordinator.recovery.sources.segments import SegmentSource
from tests.recovery.log_strategies import by_key, comparable
from tests.recovery.spark_cluster import kill_executors


@dataclass(frozen=True)
class PrunableSource:
    """Segments that are pruned up to their end as soon as a marker file exists."""

    inner: SegmentSource
    marker: str
    text: str = "prunable"

    def plan(self, cut: Cut, *, range_records: int = 100) -> Plan:
        """Plan small ranges."""
        return self.inner.plan(cut, range_records=60)

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Read a range unless it was pruned."""
        if Path(self.marker).exists():
            raise PrunedError(log_range.state_partition, log_range.end)
        yield from self.inner.read(log_range)


class KillBefore(Phases):
    """Kills all executors and prunes the log before a phase begins."""

    def __init__(self, phase: str, marker: Path, workers: tuple[int, ...]) -> None:
        self.killed = 0
        self._phase = phase
        self._marker = marker
        self._workers = workers

    def phase(self, what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a phase."""
        if what == self._phase:
            self._marker.touch()
            self.killed = kill_executors(self._workers)
        return super().phase(what, total, unit)


def main() -> None:
    phase, master, segments, marker, workers, work = sys.argv[1:]
    phases = KillBefore(phase, Path(marker), tuple(map(int, workers.split(","))))
    engine = open_engine("spark", master=master, work=work)
    try:
        run = rebuild(engine, PrunableSource(SegmentSource(segments), marker), phases=phases)
    except CoordinatorError as error:
        print(json.dumps({"killed": phases.killed, "error": str(error)}))
    else:
        states = comparable(by_key(run.states.to_pylist()))
        records = run.manifest["totals"]["records"]
        print(json.dumps({"killed": phases.killed, "states": states, "records": records}))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
