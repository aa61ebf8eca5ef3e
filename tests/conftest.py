"""Fixtures and markers that every test folder can use."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine that has other work to do is slow, and that is no counterexample.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
# For `make check`: fewer examples, in the tests that do not state a number.
settings.register_profile("quick", settings.get_profile("unhurried"), max_examples=25)


_HERE = Path(__file__).parent
# What has files that take minutes.
_LONG = ("chaos", "e2e", "deploy", "topic", "simulation", "recovery")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long: several workers then end at about the same time."""
    place = {name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: place.get(item.path.relative_to(_HERE).parts[0], len(_LONG)))


pytest_plugins = ["tests.kafka.fixtures", "tests.deploy.required_programs"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write transcripts as they go now")
