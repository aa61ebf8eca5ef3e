"""A Spark driver that archives a journal and is killed when all files are written and the commit is not.

python -m tests.recovery.archive_driver JOURNAL ARCHIVE
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from coordinator.recovery import archive
from coordinator.recovery.archive_stream import archive_stream
from coordinator.recovery.engines.spark_session import get_or_start_session
from coordinator.recovery.sources.journal import JournalSource

BATCH_RECORDS_MAX = 100


def kill_self(*_: Any) -> NoReturn:
    """Kill this process, as in a machine failure."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def main() -> None:
    journal, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    spark = get_or_start_session("local[2]")
    archive.write_commit = kill_self
    archive_stream(spark, JournalSource(journal), Path(folder), batch_records_max=BATCH_RECORDS_MAX)


if __name__ == "__main__":
    main()
