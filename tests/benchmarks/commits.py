"""Build another Git commit of this project, so that a benchmark can compare it with the working tree."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kafka.jars import REPOSITORY
from tests.kafka.served_process import ProgramBuild

_PROGRAM = "share-coordinator"
_PACKAGE = "coordinator"


class CommitBuild(NamedTuple):
    """A built Git commit: its short name, how to start it, and the directory of its Python package."""

    name: str
    build: ProgramBuild
    package: Path


@contextmanager
def built_commit(commit: str, folder: Path) -> Iterator[CommitBuild]:
    """Build a Git commit below `folder`, with compiled modules and the dependencies of this environment."""
    name = _run_command("git", "rev-parse", "--short", f"{commit}^{{commit}}").strip()
    tree, built = folder / "tree", folder / "built"
    _run_command("git", "worktree", "add", "--detach", str(tree), name)
    try:
        _run_command(
            sys.executable,
            *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--target", str(built), str(tree)),
        )
        project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        module, _, function = project["scripts"][_PROGRAM].partition(":")
        # -P keeps the working directory out of sys.path, because it contains the modules of the working tree.
        starter = f"import sys; from {module} import {function}; sys.exit({function}())"
        command = (sys.executable, "-P", "-c", starter)
        path = os.pathsep.join(filter(None, (str(built), os.environ.get("PYTHONPATH"))))
        yield CommitBuild(name, ProgramBuild(command, {"PYTHONPATH": path}), built / _PACKAGE)
    finally:
        _run_command("git", "worktree", "remove", "--force", str(tree))


def _run_command(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
