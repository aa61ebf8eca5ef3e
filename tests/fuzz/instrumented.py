"""Build and import the compiled modules with AddressSanitizer, UBSan and coverage.

`python -m tests.fuzz.instrumented COMMAND...` builds the modules and runs a command. The command imports the
instrumented modules if it imports this file, as pytest does with `-p tests.fuzz.instrumented`.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "coordinator/fastpath"
BUILT = ROOT / "build/instrumented"
MODULES = ("_compiled",)
# The fuzz targets that execute compiled modules. AddressSanitizer hides functions of libFuzzer from Atheris,
# so the coverage of Python code is lost. Therefore the other targets run without AddressSanitizer.
COMPILED_TARGETS = ("loading", "writes")
_COVERAGE = Path(__file__).with_name("coverage.c")
# The variable has no SHARE_COORDINATOR_ prefix, because the coordinator refuses unknown settings.
_ENABLED_ENV = "INSTRUMENTED_MODULES"
FLAGS = (
    *("-shared", "-fPIC", "-O1", "-g1", "-w", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)
_COVERAGE_FLAGS = ("-fsanitize-coverage=trace-pc,trace-cmp",)


def instrumented_module_path(module: str) -> Path:
    return BUILT / f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"


def build_modules() -> None:
    """Compile outdated modules concurrently. Raises CalledProcessError."""
    BUILT.mkdir(parents=True, exist_ok=True)
    coverage = BUILT / "coverage.o"
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", str(_COVERAGE), "-o", str(coverage)], check=True)
    include = sysconfig.get_paths()["include"]
    running = []
    for module in MODULES:
        source, target = SOURCES / f"{module}.c", instrumented_module_path(module)
        newest = max(path.stat().st_mtime for path in (source, _COVERAGE, Path(__file__)))
        if not target.exists() or target.stat().st_mtime < newest:
            files = [f"-I{SOURCES}", f"-I{include}", str(source), str(coverage), "-o", str(target)]
            running.append(subprocess.Popen(["gcc", *FLAGS, *_COVERAGE_FLAGS, *files]))
    for process in running:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)


def instrumented_environment() -> dict[str, str]:
    """Return the environment of a process that imports the instrumented modules."""
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return {
        **os.environ,
        _ENABLED_ENV: "1",
        "LD_PRELOAD": str(Path(runtime).resolve()),
        # CPython frees little memory at exit, so leaks are ignored. With malloc, AddressSanitizer detects
        # accesses beyond a single Python object.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


class _InstrumentedModuleFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the instrumented modules instead of the installed ones."""
        package, _, name = fullname.rpartition(".")
        if package == "coordinator.fastpath" and name in MODULES:
            return spec_from_file_location(fullname, instrumented_module_path(name))
        return None


if os.environ.get(_ENABLED_ENV):
    sys.meta_path.insert(0, _InstrumentedModuleFinder())


def pytest_report_header() -> str:
    """Import the instrumented modules. Fail if other modules were imported."""
    for module in MODULES:
        assert import_module(f"coordinator.fastpath.{module}").__file__ == str(
            instrumented_module_path(module)
        )
    return "compiled modules: with AddressSanitizer and UBSan"


if __name__ == "__main__":
    build_modules()
    raise SystemExit(subprocess.run(sys.argv[1:], env=instrumented_environment(), check=False).returncode)
