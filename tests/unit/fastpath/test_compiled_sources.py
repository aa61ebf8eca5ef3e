"""Modules that are compiled from their own Python source."""

import os
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from coordinator.compiled_sources import COMPILED_SOURCES, PURE_PYTHON_ENV
from coordinator.serve.runtime.shard_queue import ShardQueue
from coordinator.serve.runtime.shard_runner import ShardRunner

ROOT = Path(__file__).parents[3]


def source_path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def test_compiled_sources_are_those_of_the_build_configuration() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extensions = project["tool"]["setuptools"]["ext-modules"]
    assert {each["name"] for each in extensions if each["sources"][0].endswith(".py")} == COMPILED_SOURCES
    for module in COMPILED_SOURCES:
        assert source_path(module).with_suffix(".pxd").is_file()


@pytest.mark.parametrize("module", sorted(COMPILED_SOURCES))
def test_compiled_module_is_not_older_than_its_source(module: str) -> None:
    source = source_path(module)
    built = [
        source.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES if source.with_suffix(suffix).exists()
    ]
    if not built:
        pytest.skip("it was not built: is there a C compiler?")
    assert built[0].stat().st_mtime >= source.stat().st_mtime, "run `make install`"


@pytest.mark.slow
def test_environment_switch_imports_the_python_sources() -> None:
    program = (
        "import sys, importlib; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program, *sorted(COMPILED_SOURCES)],
        env={**os.environ, PURE_PYTHON_ENV: "1"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert imported == [str(source_path(module)) for module in sorted(COMPILED_SOURCES)]


@pytest.mark.slow
def test_no_module_is_installed_if_one_did_not_compile(tmp_path: Path) -> None:
    """Compiled modules use each other's C types, so an import fails if only some modules are compiled.

    The test builds C modules, because they need no Cython.
    """
    program = (
        "import sys, types\n"
        "sys.modules['Cython'] = sys.modules['Cython.Build'] = types.ModuleType('Cython')\n"
        "sys.modules['Cython.Build'].cythonize = lambda extensions, nthreads: extensions\n"
        "import setuptools\n"
        "from distutils.core import run_setup\n"
        "built = run_setup(sys.argv[1], stop_after='init')\n"
        "built.ext_modules = [\n"
        "    setuptools.Extension(name, [f'{name}.c'], optional=True) for name in ('good', sys.argv[2])\n"
        "]\n"
        "build = built.get_command_obj('build_ext')\n"
        "build.build_lib = build.build_temp = 'with-' + sys.argv[2]\n"
        "build.ensure_finalized()\n"
        "build.run()\n"
    )
    for name, source in (("good", "int good;"), ("other", "int other;"), ("bad", "#error")):
        (tmp_path / f"{name}.c").write_text(f"{source}\n")
    for other, count in (("other", 2), ("bad", 0)):
        command = [sys.executable, "-c", program, str(ROOT / "setup.py"), other]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        assert len(list(tmp_path.glob(f"with-{other}/*.so"))) == count, other


def test_runner_of_a_shard_adds_no_instance_dictionary_to_the_compiled_queue() -> None:
    """With an instance dictionary, each call of a compiled method first searches it for an override."""
    assert ShardRunner.__dictoffset__ == ShardQueue.__dictoffset__
