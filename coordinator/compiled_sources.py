"""Choose between the compiled and the Python form of modules that have both.

If there was a C compiler, some modules are compiled from their own Python source: an extension module stands
beside the source and is imported in its place.  The .pxd file beside it declares C types and nothing else, so
the meaning is written once.

With SHARE_COORDINATOR_PURE_PYTHON=1 the source itself is imported, and modules without one are not found.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PURE_PYTHON_ENV = "SHARE_COORDINATOR_PURE_PYTHON"
# Those that pyproject.toml lists as extension modules beside a .py file.
COMPILED_SOURCES = frozenset(
    {
        "coordinator.fastpath.commit_batch",
        "coordinator.fastpath.histogram",
        "coordinator.fastpath.operation_queue",
        "coordinator.runtime.commit_scheduler",
        "coordinator.runtime.shard_queue",
    }
)
# Those without a source in Python.  They use the compiled form of the others.
COMPILED_ONLY = frozenset({"coordinator.fastpath._compiled", "coordinator.fastpath._loading"})


def is_pure_python() -> bool:
    """Tell whether the environment asks for the Python sources alone."""
    return os.environ.get(PURE_PYTHON_ENV, "0") not in ("", "0")


class _SourceFinder:
    """Finds the sources of modules that have a compiled form, and none of the modules that have no source."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in COMPILED_ONLY:
            raise ModuleNotFoundError(f"{name} is switched off by {PURE_PYTHON_ENV}", name=name)
        if name not in COMPILED_SOURCES:
            return None
        source = Path(__file__).parent.parent.joinpath(*name.split(".")).with_suffix(".py")
        return spec_from_file_location(name, source, loader=SourceFileLoader(name, str(source)))


def import_sources_if_asked() -> None:
    """Import Python sources instead of their compiled forms from now on, if the environment asks for that."""
    if is_pure_python():
        sys.meta_path.insert(0, _SourceFinder)
