# The fields of Python classes that are read and written here; their definition is `coordinator.fastpath.fields`.

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the numbers of a packed state do not lie where they are looked for")


cdef class ShardFields:
    cdef public object status
    cdef public object shard
    cdef public Py_ssize_t state_partition
    cdef public object _scheduler
    cdef public list _queue
    cdef public Py_ssize_t _queued_indexed
    cdef public bint _batch_scheduled
    cdef public list _records_in_flight
    cdef public double _append_started_s
    cdef public Py_ssize_t _append_bytes
    cdef public list _awaiting
    cdef public set _in_flight_keys
    cdef public int64_t _next_log_offset
    cdef public object _append_finished
    cdef public bint _reads_come
    cdef public object _callback


cdef class SchedulerFields:
    cdef public list _scheduled
    cdef public bint _run_scheduled


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
