"""Report the progress of Spark jobs by polling their finished tasks."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coordinator.recovery.engines.base import Advance

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PAUSE_S = 0.25


@contextmanager
def report_progress(spark: "SparkSession", weights: Sequence[int], advance: Advance) -> Iterator[None]:
    """Report the jobs that run during the block; `weights` are the weights of the tasks in order.

    If Spark provides no progress (Spark Connect), nothing is reported before the end.
    """
    done = threading.Event()
    watcher: threading.Thread | None = None
    group = f"share-coordinator-{id(done)}"
    context = _spark_context(spark)
    if context is not None:
        context.setJobGroup(group, "share-coordinator recovery")
        tracker = context.statusTracker()

        def watch_tasks() -> None:
            told = 0
            while not done.wait(_PAUSE_S):
                finished = 0
                for job in tracker.getJobIdsForGroup(group):
                    info = tracker.getJobInfo(job)
                    stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
                    finished = max([finished, *(stage.numCompletedTasks for stage in stages if stage)])
                finished = min(finished, len(weights))
                if finished > told:
                    advance(sum(weights[told:finished]))
                    told = finished

        watcher = threading.Thread(target=watch_tasks, name="spark progress", daemon=True)
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if watcher is not None and context is not None:
            watcher.join()
            context.setJobGroup("", "")


def _spark_context(spark: "SparkSession") -> "SparkContext | None":
    try:
        return spark.sparkContext
    except Exception:
        return None
