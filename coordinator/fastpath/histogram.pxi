# Metrics.


@cython.final
@cython.no_gc
cdef class Histogram:
    """See `coordinator.metrics.histogram.Histogram`."""

    cdef tuple bounds
    cdef double *limits
    cdef uint64_t *counts
    cdef Py_ssize_t size
    cdef double sum

    def __init__(self, bounds):
        cdef Py_ssize_t i
        self.bounds = tuple(bounds)
        self.size = len(self.bounds)
        self.limits = <double *> PyMem_Realloc(self.limits, (self.size + 1) * sizeof(double))
        self.counts = <uint64_t *> PyMem_Realloc(self.counts, (self.size + 1) * sizeof(uint64_t))
        if self.limits == NULL or self.counts == NULL:
            raise MemoryError()
        for i in range(self.size):
            self.limits[i] = self.bounds[i]
        memset(self.counts, 0, (self.size + 1) * sizeof(uint64_t))

    def __dealloc__(self):
        PyMem_Free(self.limits)
        PyMem_Free(self.counts)

    def add(self, double value):
        """Count one value; a bound belongs to the range below it, as Prometheus wants."""
        self.count(value)

    cdef int count(self, double value) except -1:
        cdef Py_ssize_t i = 0
        while i < self.size and self.limits[i] < value:
            i += 1
        self.counts[i] += 1
        self.sum += value
        return 0

    def cumulative(self):
        """Return ([(upper bound, how many values up to it)], sum of all values), ready for a family."""
        cdef Py_ssize_t i
        cdef uint64_t seen = 0
        buckets = []
        for i in range(self.size + 1):
            seen += self.counts[i]
            buckets.append((repr(self.bounds[i]) if i < self.size else "+Inf", float(seen)))
        return buckets, self.sum
