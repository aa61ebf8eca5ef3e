"""Load the compiled module, if it was built. Without this module, Python code does the same work.

A *fast-path write* is a WriteShareGroupState without unknown tagged fields. A fast-path write may name a
share-partition several times, and its state batches may overlap, in any order. The compiled module decodes
the request, merges the written state batches into the states, and encodes the records and the response.
Responses, records and states are equal to those of the Python reference, byte for byte. If the compiled
module does not accept an operation, the Python reference executes this operation; the other operations of the
same append are not affected.

A *fast-path read* is a ReadShareGroupState or ReadShareGroupStateSummary that memory can answer now and that
writes no record. The compiled module encodes the response from the packed states.

The module also replays the records of a log into a shard, encodes record batches, and performs the
asynchronous syncs of the journal. The source of the compiled module is `_compiled.pyx`, which includes the
.pxi files.

`compiled` is the module, or None if it was not built (no C compiler) or if the environment variable
SHARE_COORDINATOR_PURE_PYTHON is set. The queue of a shard and its commits are compiled from their Python
source (`coordinator.compiled_sources`).
"""

from importlib import import_module
from types import ModuleType

from coordinator.compiled_sources import is_pure_python
from protocol import record_batch


def _import_compiled() -> ModuleType | None:
    if is_pure_python():
        return None
    try:
        return import_module("coordinator.fastpath._compiled")
    except ImportError:
        return None


compiled = _import_compiled()

encode_batch = record_batch.encode_batch if compiled is None else compiled.encode_batch
