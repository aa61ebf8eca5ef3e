"""Choose between the compiled and the Python form of modules that have both.

If the installation had a C compiler, some modules were compiled from their own Python source. The extension
module is in the same folder, and Python imports it instead of the source. A .pxd file declares C types only,
so the code is written once.

With SHARE_COORDINATOR_PURE_PYTHON=1, Python imports the source, and a module without a source is not found.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PURE_PYTHON_ENV = "SHARE_COORDINATOR_PURE_PYTHON"
# The extension modules in pyproject.toml that have a .py file in the same folder.
COMPILED_SOURCES = frozenset(
    {
        "coordinator.fastpath.histogram",
        "coordinator.fastpath.operation_queue",
        "coordinator.log.journal.pending",
        "coordinator.serve.runtime.commit_scheduler",
        "coordinator.serve.runtime.shard_queue",
        "coordinator.serve.server.connection",
        "coordinator.serve.server.request_memory",
        "protocol.field_codecs",
        "protocol.struct_codecs",
    }
)
# The extension module without a Python source. This module requires the compiled form of the modules above.
COMPILED_ONLY = "coordinator.fastpath._compiled"


def is_pure_python() -> bool:
    """Return whether the environment variable selects the Python sources."""
    return os.environ.get(PURE_PYTHON_ENV, "0") not in ("", "0")


class _SourceFinder:
    """Finds the Python source of compiled modules; a module without a source is not found."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == COMPILED_ONLY:
            raise ModuleNotFoundError(f"{name} is switched off by {PURE_PYTHON_ENV}", name=name)
        if name not in COMPILED_SOURCES:
            return None
        source = Path(__file__).parent.parent.joinpath(*name.split(".")).with_suffix(".py")
        return spec_from_file_location(name, source, loader=SourceFileLoader(name, str(source)))


def select_python_sources() -> None:
    """From now on, import Python sources instead of compiled modules, if the environment selects them."""
    if is_pure_python():
        sys.meta_path.insert(0, _SourceFinder)
