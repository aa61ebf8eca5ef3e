# The fields of Python classes that are read and written here; their definition is `coordinator.fastpath.fields`.

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the numbers of a packed state do not lie where they are looked for")


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
