"""Test the hint that says how to install the missing programs of deploy tests."""

from tests.deploy.engine import NEEDED
from tests.deploy.required_programs import install_hint


def test_hint_names_everything_that_containers_need() -> None:
    assert install_hint([*NEEDED, "docker-compose", "promtool"]) == (
        "no docker, dockerd, mmdebstrap, root, docker-compose, promtool here; to get them: "
        "apt-get install docker-compose docker.io mmdebstrap prometheus, run as root with the right to mount"
    )
