"""Run libFuzzer on a target: `python -m tests.fuzz.fuzzer TARGET intact|planted SECONDS FINDINGS FOLDER...`.

libFuzzer writes inputs that reach new code to the first folder. The corpus in the repository is only read,
not changed.
"""

import ctypes
import sys
from importlib.util import find_spec

import atheris

from tests.fuzz import instrumented
from tests.fuzz.instrumented import COMPILED_TARGETS, MODULES, instrumented_module_path


def connect_modules() -> None:
    """Connect the coverage counters of the compiled modules to libFuzzer."""
    found = find_spec("atheris.core_with_libfuzzer")
    assert found is not None
    assert found.origin is not None
    library = ctypes.CDLL(found.origin)
    names = ("8bit_counters_init", "pcs_init", "trace_cmp4", "trace_cmp8")
    functions = [ctypes.cast(library[f"__sanitizer_cov_{name}"], ctypes.c_void_p) for name in names]
    for module in MODULES:
        ctypes.CDLL(str(instrumented_module_path(module))).connect_coverage(*functions)


def main() -> None:
    """Fuzz until the time limit or the first defect. libFuzzer ends the process."""
    name, decoder, seconds, findings, *folders = sys.argv[1:]
    with atheris.instrument_imports(include=["protocol", "coordinator.log.journal", "coordinator.security"]):
        from tests.fuzz.targets import TARGETS
    if decoder == "planted":
        from tests.fuzz.planted_defects import DEFECTS

        DEFECTS[name](setattr)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/{name}-", "-max_len=4096"]
    options += ["-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, *folders], TARGETS[name])
    if name in COMPILED_TARGETS:
        print(instrumented.pytest_report_header())
        connect_modules()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
