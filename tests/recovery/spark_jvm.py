"""Options for the JVMs of Spark that start fastest on few cores."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.kafka.jars import QUICK_OPTIONS, WARNINGS_ASIDE, cache_directory, class_archive_options

# Serialize rows, start Python workers, shuffle, and write a file: the classes that most jobs load.
_JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.createDataFrame([(1, "a"), (2, "b")], "number int, name string")
rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("name").count().toArrow()
rows.write.parquet(r"%s")
spark.stop()
"""


@cache
def spark_jvm_options() -> str:
    """Return the options, with a class data sharing archive, which is written if it is missing.

    With the archive, a driver needs half of the processor time to start and run a first job.
    """
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    archive = class_archive_options(cache_directory() / "spark", [jars], QUICK_OPTIONS, _write_class_archive)
    return " ".join((*QUICK_OPTIONS, *WARNINGS_ASIDE, *archive))


def _write_class_archive(path: Path) -> None:
    """Run a job in a driver whose JVM writes the archive at exit."""
    options = " ".join((*QUICK_OPTIONS, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={path}"))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": options,
    }
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", _JOB % Path(scratch, "rows.parquet")]
        subprocess.run(command, env=environment, capture_output=True, check=True)
