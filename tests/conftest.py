"""Fixtures and markers that every test folder can use."""

import pytest

pytest_plugins = ["tests.kafka.fixtures", "tests.deploy.needs"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write transcripts as they go now")
