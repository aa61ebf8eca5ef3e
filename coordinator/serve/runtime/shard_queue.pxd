from libc.stdint cimport int64_t

from coordinator.fastpath.histogram cimport Histogram
from coordinator.fastpath.operation_queue cimport CommitBatch, CommitContext, OperationQueue, QueuedOperation, WriteDecider
from coordinator.fastpath.operation_queue cimport new_batch
from coordinator.serve.runtime.commit_scheduler cimport CommitScheduler

cimport cython


cdef class ShardQueue(OperationQueue):
    cdef public object status
    cdef public object shard
    cdef public Py_ssize_t state_partition
    cdef public object _loop
    cdef public CommitScheduler _scheduler
    cdef public object _log
    cdef public object _decider
    cdef public object _metrics
    cdef public tuple _append_histograms
    cdef public object _limits
    cdef public Py_ssize_t _queue_max
    cdef public Py_ssize_t _batch_operations_max
    cdef public int64_t _batch_bytes_max
    cdef public list _queue
    cdef public bint _batch_scheduled
    cdef public list _records_in_flight
    cdef public double _append_started_s
    cdef public Py_ssize_t _append_bytes
    cdef public list _awaiting_append
    cdef public set _in_flight_keys
    cdef public set _queued_keys
    cdef public Py_ssize_t _in_flight_indexed
    cdef public Py_ssize_t _queued_indexed
    cdef public CommitBatch _batch
    cdef public int64_t _next_log_offset
    cdef public object _append_finished
    cdef public bint _reads_arrived
    cdef public object _append_callback

    cpdef submit(self, QueuedOperation operation)
    cpdef bytes state_to_read(self, key)
    cpdef _clear_queued_keys(self)
    cpdef _clear_in_flight_keys(self)
    @cython.locals(operations=list, batch=CommitBatch, last=Py_ssize_t, kernel=WriteDecider)
    cpdef process_batch(self, CommitContext commit)
    cpdef _schedule_batch(self)
    @cython.locals(state_partition=Py_ssize_t, pending=list, ends=list)
    cpdef _append(self, CommitBatch batch, CommitContext commit)
    @cython.locals(records=list, waiting=list, operation=QueuedOperation, was_active=bint)
    cpdef on_append_done(self, base_offset, error)
    @cython.locals(seconds=double, record_counts=Histogram, append_seconds=Histogram, append_bytes=Histogram)
    cdef _record_append_metrics(self, Py_ssize_t records, error)
    cpdef bint _mark_durable_or_recover(self, list records, int64_t base_offset, list waiting) except -1
    @cython.locals(log_offset=int64_t)
    cpdef _mark_append_durable(self, list records, int64_t base_offset)
