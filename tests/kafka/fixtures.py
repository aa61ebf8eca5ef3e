"""Pytest fixtures for tests with a real broker.

A test that uses these fixtures has the marker `broker`; tests.deploy.required_programs handles missing
programs. All tests with one Kafka release share one rig (the broker, its clients and the coordinator), so
each test needs unique names for topics and groups.
"""

from collections.abc import Generator, Iterator

import pytest

from tests.deploy.required_programs import PACKAGES
from tests.kafka.built_in import BuiltInCoordinator, prepare_coordinator
from tests.kafka.jars import RELEASES, KafkaJars, fetch_jars
from tests.kafka.rig import (
    BuiltInRig,
    ReplicatedRig,
    StandaloneRig,
    built_in_rig,
    end_of_logs,
    standalone_rig,
)
from tests.kafka.toolchain import BROKER_PACKAGES

PACKAGES.update(BROKER_PACKAGES)
NEWEST = RELEASES[-1]
_OURS = "ours-"
STANDALONE = [f"{_OURS}{release}" for release in RELEASES]
BUILT_IN = f"built-in-{NEWEST}"
only_ours = pytest.mark.parametrize("rig", STANDALONE, indirect=True)

# Kafka's coordinator is slow on a busy machine. A long timeout prevents timeout errors in the comparison.
_PATIENT = {"share.coordinator.write.timeout.ms": "30000"}


@pytest.fixture(scope="session")
def newest_jars() -> KafkaJars:
    """The jars of the newest Kafka release, whose behaviour this coordinator reproduces."""
    return fetch_jars(NEWEST)


@pytest.fixture(scope="session")
def built_in(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltInRig]:
    """A broker of the newest release with its built-in share coordinator."""
    with built_in_rig(newest_jars, tmp_path_factory.mktemp(f"built-in-{NEWEST}"), overrides=_PATIENT) as rig:
        yield rig


@pytest.fixture(scope="session", params=[*STANDALONE, BUILT_IN])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltInRig]:
    """A broker of each release with this coordinator, and a broker with its built-in coordinator.

    The built-in coordinator is the control: if a test fails with it, the test expects behaviour that Kafka
    does not have.
    """
    if request.param == BUILT_IN:
        yield request.getfixturevalue("built_in")
        return
    release = request.param.removeprefix(_OURS)
    with standalone_rig(fetch_jars(release), tmp_path_factory.mktemp(f"standalone-{release}")) as standalone:
        yield standalone


@pytest.fixture
def standalone(rig: BuiltInRig) -> StandaloneRig:
    """The rig for tests marked `only_ours`. They kill the coordinator, so they do not run with Kafka's."""
    assert isinstance(rig, StandaloneRig)
    return rig


@pytest.fixture(scope="session")
def built_in_coordinator(built_in: BuiltInRig) -> BuiltInCoordinator:
    """Kafka's own share coordinator with every state partition loaded, and a topic for its state."""
    return prepare_coordinator(built_in, topic="conformance", partitions=4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("broker"):
            item.add_marker(pytest.mark.needs(*BROKER_PACKAGES))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the log of every process to the report of a failed test."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        rigs = [value for value in item.funcargs.values() if isinstance(value, BuiltInRig | ReplicatedRig)]
        if rigs:
            report.sections.append(("logs of the rig", end_of_logs(rigs[0])))
    return report
