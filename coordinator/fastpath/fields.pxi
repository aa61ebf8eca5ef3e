# Fields that this module shares with Python classes; `coordinator.fastpath.fields` has the Python form.

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the C struct StateNumbers does not have the layout of packed_state.NUMBERS")


cdef class ConnectionFields:
    cdef public object _handler
    cdef public bint _handling
    cdef public bint _reading
    cdef public bint _writable
    cdef public Py_ssize_t _partial_bytes
    cdef public double active_s
    cdef public bint disconnected


cdef class RequestMemoryFields:
    cdef public Py_ssize_t held_bytes
    cdef public Py_ssize_t bytes_max
    cdef public set waiting
    cdef public bint draining
