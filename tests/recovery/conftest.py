"""Fixtures for tests of the recovery jobs. tests.deploy.required_programs handles a missing Java."""

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.recovery.spark_jvm import spark_jvm_options
from tests.unit.cli.command_line import CommandLine

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine
    from coordinator.recovery.tasks import NamedOutput

SPARK_OPTIONS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set the options of the JVMs that this test or a subprocess of it starts."""
    if item.get_closest_marker("spark"):
        os.environ["SPARK_SUBMIT_OPTS"] = spark_jvm_options()


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
def fetched_outputs(spark_engine: "SparkEngine", monkeypatch: pytest.MonkeyPatch) -> "list[NamedOutput]":
    """The task outputs that Spark's executors return to the driver."""
    fetched: list[NamedOutput] = []
    inner = type(spark_engine).run

    def record_outputs(engine: Any, *arguments: Any) -> "list[NamedOutput]":
        found = inner(engine, *arguments)
        fetched.extend(found)
        return found

    monkeypatch.setattr(type(spark_engine), "run", record_outputs)
    return fetched


@pytest.fixture
def share_coordinator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A function that runs the `share-coordinator` command in this process."""
    return CommandLine(monkeypatch, capsys)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.needs("java"))
