"""Fixtures and markers for all test directories."""

import asyncio
import gc
import inspect
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Import it before `protocol`: it selects the Python sources with SHARE_COORDINATOR_PURE_PYTHON=1.
import coordinator  # noqa: F401

# Disable Hypothesis deadlines, because a slow example on a busy machine is not a defect.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
# `make check` uses fewer examples.
settings.register_profile("quick", settings.get_profile("unhurried"), max_examples=5)

# Without garbage collections, the imports and the collection of the tests take a fifth less time.
gc.disable()


_HERE = Path(__file__).parent
# Directories with test files that run for minutes.
_LONG = ("e2e", "deploy", "topic", "simulation", "recovery")
# The longest files, which one worker runs for minutes, begin before all others.
_LONGEST = (
    *("deploy/test_containers.py", "recovery/test_spark_cluster.py"),
    *("e2e/test_share_consumer.py", "docs/test_readme.py"),
    *("recovery/test_time_travel.py", "recovery/test_secured_spark.py", "e2e/test_relay.py"),
)
# Tests that may take longer than the timeout in pyproject.toml.
_LONG_MARKERS = ("broker", "browser", "e2e", "slow", "spark")
_LONG_TIMEOUT_S = 600
# Directories with CPU-bound tests: virtual time, models, random values. Tests with Spark are not included,
# because the processes of Spark must connect to each other within 10 s, also on a busy machine.
_COMPUTING = ("simulation", "model", "property", "transcripts", "unit/shard", "unit/protocol")


def _is_computing(path: Path) -> bool:
    """Return whether the tests of a file can run at a low priority without an effect on their results."""
    folder = path.parent.relative_to(_HERE).as_posix()
    return any(folder == each or folder.startswith(f"{each}/") for each in _COMPUTING)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of the other part, because each worker would need seconds to import them."""
    part = config.getoption("--part")
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if part is None or not is_test or not collection_path.is_relative_to(_HERE):
        return None
    return _is_computing(collection_path) != (part == "computing") or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort long tests first, so that several workers end at about the same time. Give them more time."""
    if part := config.getoption("--part"):
        # `pytest_ignore_collect` is not called for files of the command line.
        items[:] = [item for item in items if _is_computing(item.path) == (part == "computing")]
    if config.getoption("--timeout") is None:
        for item in items:
            is_long = any(item.get_closest_marker(name) for name in _LONG_MARKERS)
            if is_long and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S))
    if hasattr(config, "workerinput"):
        order = {name: place for place, name in enumerate((*_LONGEST, *_LONG))}

        def place_of(item: pytest.Item) -> int:
            path = item.path.relative_to(_HERE)
            return order.get(path.as_posix(), order.get(path.parts[0], len(order)))

        items.sort(key=place_of)


def pytest_collection_finish() -> None:
    """Exclude the modules and the collected tests from all later garbage collections."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test with asyncio.run, or as its marker `run_with` says.

    `run_with(function=f)` calls f with the coroutine; `run_with(fixture="name")` calls a fixture's `run`.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = pyfuncitem.funcargs
    arguments = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    marker = pyfuncitem.get_closest_marker("run_with")
    if marker is None:
        run = asyncio.run
    elif "fixture" in marker.kwargs:
        run = fixtures[marker.kwargs["fixture"]].run
    else:
        run = marker.kwargs["function"]
    run(pyfuncitem.obj(**arguments))
    return True


pytest_plugins = ["tests.deploy.required_programs", "tests.kafka.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="replace the results in the transcripts")
    parser.addoption(
        "--part",
        choices=("computing", "waiting"),
        help="one of the two parts that `make test` runs at a time",
    )
