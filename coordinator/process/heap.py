"""Return freed memory to the system: the C library keeps what lies between allocations in use."""

import ctypes


def trim_heap() -> None:
    """Return free memory of the heap to the system, if the C library can do that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
