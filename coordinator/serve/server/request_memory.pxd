cdef class RequestMemory:
    cdef public Py_ssize_t held_bytes
    cdef public Py_ssize_t bytes_max
    cdef public set waiting
    cdef public bint draining
    cdef object _loop

    cpdef adjust_held_bytes(self, Py_ssize_t frame_bytes)
