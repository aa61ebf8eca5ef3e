# The fields of Python classes that are read and written here; their definition is `coordinator.hot.fields`.

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the numbers of a packed state do not lie where they are looked for")


cdef class ShardFields:
    cdef public object status
    cdef public object shard
    cdef public Py_ssize_t state_partition
    cdef public object _rounds
    cdef public list _mailbox
    cdef public Py_ssize_t _queued_seen
    cdef public bint _turn_planned
    cdef public list _appending
    cdef public double _append_began_s
    cdef public Py_ssize_t _append_bytes
    cdef public list _waiting
    cdef public set _changing
    cdef public int64_t _next_log_offset
    cdef public object _quiet
    cdef public bint _reads_come
    cdef public object _done


cdef class RoundsFields:
    cdef public list _due
    cdef public bint _planned


cdef class ConnectionFields:
    cdef public object _handler
    cdef public bint _handling
    cdef public bint _reading
    cdef public bint _writable
    cdef public Py_ssize_t _partial_bytes
    cdef public double active_s
    cdef public bint gone


cdef class RoomFields:
    cdef public Py_ssize_t held_bytes
    cdef public Py_ssize_t bytes_max
    cdef public set waiting
    cdef public bint draining
