cdef class Commit:
    cdef public object now_ms
    cdef public double now_s
    cdef public bint accepts_writes
    cdef public object gathered


cdef class CommitScheduler:
    cdef object _clock
    cdef object _gathering_log
    cdef object _linger
    cdef object _log
    cdef object _loop
    cdef object _metrics
    cdef bint _run_scheduled
    cdef list _scheduled
    cdef readonly object kernel

    cpdef schedule(self, queue)
    cdef bint _must_wait_for_commit(self) except -1
