from libc.stdint cimport int64_t

cimport cython


@cython.final
cdef class CommitContext:
    cdef public object now_ms
    cdef public double now_s
    cdef public bint accepts_writes
    cdef public tuple gathered
    cdef public Py_ssize_t work_left
    cdef public Py_ssize_t decided


@cython.final
cdef class CommitBatch:
    cdef public list operations
    cdef public Py_ssize_t last
    cdef public Py_ssize_t work_left
    cdef public Py_ssize_t done
    cdef public int64_t bytes_max
    cdef public object now_ms
    cdef public list records
    cdef public list encoded
    cdef public list units
    cdef public Py_ssize_t append_bytes

    cpdef bint may_continue(self)


@cython.locals(batch=CommitBatch)
cpdef CommitBatch new_batch(list operations, Py_ssize_t last, Py_ssize_t work_left, int64_t bytes_max, now_ms)


cdef class QueuedOperation:
    cdef public bint writes

    cpdef answer_decided(self)


cdef class WriteDecider:
    cpdef decide_writes(self, shard, CommitBatch batch, list waiting)


cdef class OperationQueue:
    cpdef submit(self, QueuedOperation operation)
    cpdef bytes state_to_read(self, key)
    cpdef process_batch(self, CommitContext commit)
    cpdef batch_failed(self, failure)
    cpdef on_append_done(self, base_offset, error)
