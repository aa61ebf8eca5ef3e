"""Load the compiled module for fast-path writes, where it was built; without it Python decides everything.

A *fast-path* write is a WriteShareGroupState without unknown tagged fields.  It may name a share-partition
several times, with batches in any order that overlap.  The compiled module decodes it, decides and applies
it and encodes its records and its response: the same responses, records and states as the definition in
Python, to the byte.  An operation that the coordinator refuses is left to the definition, alone: the
operations before and after it in the same append are not affected.

It also has twins of what is done for each append whatever is in it: entries and frames of the journal, the
syncs of its commits, and the tallies of the metrics.

Loading has a compiled way too (`loading`): it replays the records of a log into a shard.

The sources are `_compiled.pyx` and `_loading.pyx`; the .pxi files are parts of them, by what they are about.

`compiled` and `loading` are the modules, or None: they were not built (there was no compiler), or the
environment variable SHARE_COORDINATOR_PURE_PYTHON is set.  Control flow is not here: the queue of a shard and
its commits are compiled from their Python source (`coordinator.compiled_sources`).
"""

from importlib import import_module
from types import ModuleType

from coordinator.compiled_sources import is_pure_python


def _load(name: str) -> ModuleType | None:
    if is_pure_python():
        return None
    try:
        return import_module(f"coordinator.fastpath.{name}")
    except ImportError:
        return None


compiled = _load("_compiled")
loading = _load("_loading")
