"""The compiled way of plain writes, where it was built; without it everything goes the general way.

A *plain* write is what nearly all requests are: a WriteShareGroupState without tagged fields and without a
share-partition named twice, to share-partitions that have state, by their leader, with ascending batches.
For those the compiled module does what decoding, deciding, applying and encoding do, and what a turn of a
shard does around that: same answers, same records, same states, to the byte.  It looks first, and whatever is
not plain it leaves alone, share-partition by share-partition: the general path is the definition, complete
without this package.

It also has twins of what is done for each append whatever is in it: entries and frames of the journal, the
syncs of its commits, and the tallies of the metrics.

Loading has a compiled way too (`loading`): it replays the records of a log into a shard.

The sources are `_compiled.pyx` and `_loading.pyx`; the .pxi files are parts of them, by what they are about.

`compiled` and `loading` are the modules, or None: they were not built (there was no compiler), or the
environment variable SHARE_COORDINATOR_PURE_PYTHON is set.
"""

import os
from importlib import import_module
from types import ModuleType

PURE_PYTHON_ENV = "SHARE_COORDINATOR_PURE_PYTHON"


def _load(name: str) -> ModuleType | None:
    if os.environ.get(PURE_PYTHON_ENV, "0") not in ("", "0"):
        return None
    try:
        return import_module(f"coordinator.hot.{name}")
    except ImportError:
        return None


compiled = _load("_compiled")
loading = _load("_loading")
