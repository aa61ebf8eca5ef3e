from libc.stdint cimport uint64_t

cimport cython


@cython.final
cdef class Histogram:
    # BOUNDS_MAX, and one more for values above the last bound
    cdef double[16] _bounds
    cdef uint64_t[17] _counts
    cdef Py_ssize_t _size
    cdef double _sum

    @cython.locals(at=Py_ssize_t)
    cpdef add(self, double value)
    @cython.locals(at=Py_ssize_t)
    cpdef cumulative_counts(self)
