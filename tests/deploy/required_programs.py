"""Deselect tests with the marker `needs(program, ...)` or `browser` if a program is missing.

One line at the end of the test report says how to install the missing programs. With
SHARE_COORDINATOR_REQUIRE_ALL=1 (CI), the tests fail instead. tests.kafka.fixtures does the same for tests
with a real broker.
"""

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from tests.browser.chromium import find_chromium
from tests.kafka.toolchain import are_all_required, program_path

# The Debian package of each program.
PACKAGES = {
    "chromium": "chromium",
    "curl": "curl",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "dockerd": "docker.io",
    "gcc": "gcc",
    "git": "git",
    "mmdebstrap": "mmdebstrap",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
}
# Programs that Debian does not package, with the command that installs each.
OTHER_SOURCES = {"helm": "go install helm.sh/helm/v3/cmd/helm@v3.22.0"}
# "root" is no program, but the permission to mount. The private engine needs it; root in a container may lack
# it.
ROOT = "root"

_left_out = pytest.StashKey[list[str]]()
# The key under which a pytest-xdist worker reports the missing programs to the controller process.
_LEFT_OUT = "deploy_tests_left_out"


def missing_programs(needed: Iterable[str]) -> list[str]:
    """Return the elements of `needed` that are missing."""
    return [name for name in needed if not _is_installed(name)]


@cache
def _is_installed(name: str) -> bool:
    if name == "chromium":
        return find_chromium() is not None
    return _can_mount() if name == ROOT else program_path(name) is not None


def _can_mount() -> bool:
    attempt = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/mnt",
    ]
    return os.geteuid() == 0 and subprocess.run(attempt, capture_output=True, check=False).returncode == 0


def install_hint(names: Iterable[str]) -> str:
    """Return one line with the missing names and the command that installs them."""
    names = list(dict.fromkeys(names))
    packages = sorted({PACKAGES[name] for name in names if name in PACKAGES})
    hints = [f"apt-get install {' '.join(packages)}"] if packages else []
    hints += [OTHER_SOURCES[name] for name in names if name in OTHER_SOURCES]
    hints += ["run as root with the right to mount"] if ROOT in names else []
    return f"no {', '.join(names)} here; to get them: {', '.join(hints)}"


def _missing_programs_of(item: pytest.Item) -> list[str]:
    needed = [name for mark in item.iter_markers("needs") for name in mark.args]
    if item.get_closest_marker("browser"):
        needed.append("chromium")
    return missing_programs(needed)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*programs): needs these programs, or root")
    config.stash[_left_out] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if are_all_required():
        return
    wanting = {item: names for item in items if (names := _missing_programs_of(item))}
    config.hook.pytest_deselected(items=list(wanting))
    items[:] = [item for item in items if item not in wanting]
    config.stash[_left_out] = [" ".join(names) for names in wanting.values()]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if names := _missing_programs_of(item):
        pytest.fail(install_hint(names), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_LEFT_OUT] = session.config.stash[_left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Read the missing programs from one pytest-xdist worker; all workers report the same programs."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get(_LEFT_OUT, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash[_left_out]:
        names = sorted({name for wanted in left_out for name in wanted.split()})
        terminalreporter.write_line(
            f"left out, tests of deploy/ and of the page: {len(left_out)}; {install_hint(names)}"
        )
