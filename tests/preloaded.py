"""Compile C libraries that tests preload into processes (LD_PRELOAD)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compile_preloaded(source: Path, folder: Path) -> Path:
    """Compile a library. Skip the test if Linux or a C compiler is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    built = folder / source.with_suffix(".so").name
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(built), str(source)]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return built
