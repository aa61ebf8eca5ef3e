"""Test that deploy/image/*.lock pin every dependency of the images in pyproject.toml, with hashes."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.files import DEPLOY
from tests.kafka.jars import REPOSITORY

EXTRAS = {"serve": ["kafka"], "recovery": ["kafka", "recovery"], "spark": ["kafka", "spark"]}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def list_pins(image: str) -> list[tuple[str, str]]:
    """Return names and versions; a name may have one version for each range of Python releases."""
    text = (DEPLOY / "image" / f"{image}.lock").read_text("utf-8")
    return [(canonicalize_name(name), pinned) for name, pinned in _PIN.findall(text)]


@pytest.mark.parametrize("image", EXTRAS)
def test_every_requirement_is_pinned_to_an_accepted_version(image: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in EXTRAS[image]:
        wanted += project["optional-dependencies"][extra]
    pinned = list_pins(image)
    for requirement in map(Requirement, wanted):
        versions = [each for name, each in pinned if name == canonicalize_name(requirement.name)]
        assert versions, f"{requirement.name} is not pinned: run make lock"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: {versions}; run make lock"


@pytest.mark.parametrize("image", EXTRAS)
def test_every_pin_has_hashes(image: str) -> None:
    text = (DEPLOY / "image" / f"{image}.lock").read_text("utf-8")
    entries = re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(list_pins(image))
    assert all("--hash=sha256:" in entry for entry in entries)
