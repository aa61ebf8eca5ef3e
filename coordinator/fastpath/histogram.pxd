from libc.stdint cimport uint64_t

cimport cython


@cython.final
cdef class Histogram:
    cdef double[::1] _bounds
    cdef uint64_t[::1] _counts
    cdef Py_ssize_t _size
    cdef double _sum

    @cython.locals(at=Py_ssize_t)
    cpdef add(self, double value)
    @cython.locals(at=Py_ssize_t)
    cpdef cumulative(self)
