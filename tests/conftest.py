"""Fixtures and markers that every test folder can use."""

import pytest
from hypothesis import HealthCheck, settings

# A machine that has other work to do is slow, and that is no counterexample.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

pytest_plugins = ["tests.kafka.fixtures", "tests.deploy.needs"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write transcripts as they go now")
