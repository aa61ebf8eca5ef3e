"""A Spark driver that archives a journal and is killed around the first commit.

    python -m tests.recovery.archive_driver before|after JOURNAL ARCHIVE

`before` kills the driver when all files are written and the commit is not. `after` kills it when the commit
is written, but Spark's checkpoint does not contain the micro-batch yet.
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from coordinator.recovery import archive
from coordinator.recovery.archive_stream import archive_stream
from coordinator.recovery.engines.spark_session import session
from coordinator.recovery.sources.journal import JournalSource

MAX_RECORDS = "100"


def die(*_: Any) -> NoReturn:
    """Kill this process, as in a machine failure."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def main() -> None:
    when, journal, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    spark = session("local[2]")
    if when == "before":
        archive.write_commit = die
    archive_stream(
        spark, JournalSource(journal), Path(folder), options={"max_records": MAX_RECORDS}, told=die
    )


if __name__ == "__main__":
    main()
