"""The compiled way of plain writes, where it was built; without it everything goes the general way.

A *plain* write is what nearly all requests are: a WriteShareGroupState without tagged fields and without a
share-partition named twice, to share-partitions that have state, by their leader, with ascending batches, and
no snapshot due.  For those the compiled module does in one go what decoding, deciding, applying and encoding
do: same answers, same records, same states, to the byte.  It looks first, and whatever is not plain it leaves
alone, share-partition by share-partition: the general path is the definition, complete without this package.

`compiled` is the module, or None: it was not built (there was no compiler), or the environment variable
SHARE_COORDINATOR_PURE_PYTHON is set.
"""

import os
from importlib import import_module
from types import ModuleType

PURE_PYTHON_ENV = "SHARE_COORDINATOR_PURE_PYTHON"


def _load() -> ModuleType | None:
    if os.environ.get(PURE_PYTHON_ENV, "0") not in ("", "0"):
        return None
    try:
        return import_module("coordinator.hot._compiled")
    except ImportError:
        return None


compiled = _load()
