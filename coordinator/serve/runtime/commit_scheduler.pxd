from coordinator.fastpath.operation_queue cimport CommitContext, OperationQueue, WriteDecider

cimport cython


cdef class CommitScheduler:
    cdef object _clock
    cdef object _group_commit_log
    cdef object _linger
    cdef object _log
    cdef object _loop
    cdef object _metrics
    cdef Py_ssize_t _work_per_run_max
    cdef bint _run_scheduled
    cdef list _scheduled
    cdef readonly WriteDecider kernel
    cdef readonly object topics_to_check

    cpdef schedule(self, queue)
    cpdef operation_arrived(self)
    cdef bint _must_wait(self) except -1
    cpdef _schedule_run(self)
    @cython.locals(commit=CommitContext, queue=OperationQueue, queues=list, at=Py_ssize_t)
    cdef Py_ssize_t _process_scheduled(self) except -1
