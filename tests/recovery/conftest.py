"""Fixtures for tests of the recovery jobs: a Spark session, and the handling of a missing Spark.

If Java or PySpark is missing, tests with the marker `spark` are deselected, and one line at the end of the
run says so. With SHARE_COORDINATOR_REQUIRE_ALL=1 (CI), they fail instead.
"""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.toolchain import are_all_required, program_path
from tests.unit.cli.command_line import CommandLine

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

_left_out = pytest.StashKey[int]()
_LEFT_OUT = "spark_tests_left_out"
_HOW = "no Java or no PySpark here; to get them: apt-get install openjdk-17-jdk-headless, make install"

# Short-lived on few cores: the C1 compiler and the serial garbage collector start fastest.
SPARK_OPTIONS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def is_spark_installed() -> bool:
    return program_path("java") is not None and find_spec("pyspark") is not None


@pytest.fixture(scope="session")
def spark_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkEngine"]:
    """Spark on two cores of this machine."""
    from coordinator.recovery.engines.spark import SparkEngine
    from coordinator.recovery.engines.spark_session import get_or_start_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = get_or_start_session("local[2]", {**SPARK_OPTIONS, "spark.sql.warehouse.dir": str(warehouse)})
    yield SparkEngine(spark)
    spark.stop()


@pytest.fixture
def share_coordinator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line, called in this process."""
    return CommandLine(monkeypatch, capsys)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if are_all_required() or is_spark_installed():
        return
    wanting = [item for item in items if item.get_closest_marker("spark")]
    config.hook.pytest_deselected(items=wanting)
    items[:] = [item for item in items if item not in wanting]
    config.stash[_left_out] = len(wanting)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") and not is_spark_installed():
        pytest.fail(_HOW, pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_LEFT_OUT] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_left_out, 0):
        terminalreporter.write_line(f"left out, for want of Spark, tests: {count}; {_HOW}")
