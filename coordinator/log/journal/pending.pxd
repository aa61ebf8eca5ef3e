from libc.stdint cimport int64_t

cimport cython


@cython.final
cdef class Append:
    cdef readonly Py_ssize_t state_partition
    cdef readonly int64_t base_offset
    cdef readonly int64_t end_offset
    cdef readonly bytes entry
    cdef readonly object done


@cython.locals(append=Append)
cpdef Append new_append(Py_ssize_t state_partition, int64_t base_offset, timestamp_ms, list records, done)
cpdef call_done(Append append, error)
@cython.locals(append=Append)
cpdef advance_end_offsets(list group, list ends, dict last_offsets)
@cython.locals(append=Append, entries=list, entry_bytes=Py_ssize_t, entries_bytes=Py_ssize_t)
cpdef tuple take_frame_entries(list pending)
