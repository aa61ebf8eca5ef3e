# The journal: entries, frames, and the syncs of its commits.


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Append:
    """See `coordinator.log.journal.pending.Append`."""

    cdef readonly Py_ssize_t state_partition
    cdef readonly int64_t base_offset
    cdef readonly int64_t end_offset
    cdef readonly bytes entry
    cdef readonly object done

    def __init__(self, Py_ssize_t state_partition, int64_t base_offset, int64_t timestamp_ms, list records, done):
        self.fill(state_partition, base_offset, timestamp_ms, records, done)

    cdef int fill(
        self, Py_ssize_t state_partition, int64_t base_offset, int64_t timestamp_ms, list records, done
    ) except -1:
        cdef uint8_t *begin
        self.state_partition = state_partition
        self.base_offset = base_offset
        self.end_offset = base_offset + len(records)
        self.entry = ENTRY_HEAD + encode_batch(base_offset, timestamp_ms, records)
        self.done = done
        begin = <uint8_t *> PyBytes_AS_STRING(self.entry)
        put16(begin, state_partition)
        put32(begin + 2, PyBytes_GET_SIZE(self.entry) - ENTRY_HEAD_BYTES)
        return 0


def new_append(Py_ssize_t state_partition, int64_t base_offset, int64_t timestamp_ms, list records, done):
    """Return an `Append`; calling the class takes longer."""
    cdef Append append = Append.__new__(Append)
    append.fill(state_partition, base_offset, timestamp_ms, records, done)
    return append


def take_frame_entries(list pending):
    """See `coordinator.log.journal.pending.take_frame_entries`."""
    cdef Append append
    cdef Py_ssize_t entry_bytes, entries_bytes = 0
    cdef list entries = []
    for append in pending:
        entry_bytes = PyBytes_GET_SIZE(append.entry)
        if entries_bytes and entries_bytes + entry_bytes > COMMIT_BYTES_MAX:
            break
        entries.append(append.entry)
        entries_bytes += entry_bytes
    return entries, _frame_bytes(entries_bytes)


cdef inline Py_ssize_t _frame_bytes(Py_ssize_t entries_bytes) noexcept:
    """See `coordinator.log.journal.layout.frame_bytes`."""
    return (FRAME_HEAD_BYTES + entries_bytes + 4 + FRAME_ALIGN_BYTES - 1) // FRAME_ALIGN_BYTES * FRAME_ALIGN_BYTES


def encode_frame(int64_t segment, int64_t position, int64_t commit, int64_t durable, int64_t oldest, list parts):
    """Write a frame of the journal; see `coordinator.log.journal.layout.encode_frame`."""
    cdef Py_ssize_t i, size = 0, frame_bytes
    cdef uint8_t *begin
    cdef uint8_t *out
    cdef uint8_t place[16]
    for i in range(len(parts)):
        size += PyBytes_GET_SIZE(<bytes?> parts[i])
    frame_bytes = _frame_bytes(size)
    frame = PyBytes_FromStringAndSize(NULL, frame_bytes)
    begin = <uint8_t *> PyBytes_AS_STRING(frame)
    out = begin + FRAME_HEAD_BYTES
    for i in range(len(parts)):
        memcpy(out, PyBytes_AS_STRING(parts[i]), PyBytes_GET_SIZE(parts[i]))
        out += PyBytes_GET_SIZE(parts[i])
    memcpy(out, b"end\n", 4)
    memset(out + 4, 0, begin + frame_bytes - out - 4)
    memcpy(begin, b"\xf5shc", 4)
    put32(begin + 4, size)
    put64(begin + 8, commit)
    put64(begin + 16, durable)
    put64(begin + 24, oldest)
    put32(begin + 32, <int32_t> crc32c_of(begin + FRAME_HEAD_BYTES, size, 0))
    put64(place, segment)
    put64(place + 8, position)
    put32(begin + 36, <int32_t> crc32c_of(begin, 36, crc32c_of(place, 16, 0)))
    return frame


def advance_end_offsets(list group, list ends, dict last_offsets):
    """See `coordinator.log.journal.pending.advance_end_offsets`."""
    cdef Append append
    for append in group:
        ends[append.state_partition] = append.end_offset
        last_offsets[append.state_partition] = append.end_offset - 1


cdef class Commits:
    """Writes with asynchronous syncs by the Linux kernel; the eventfd `told` becomes readable when a sync is done.

    Raises OSError if the system does not support them.
    """

    cdef Syncs syncs

    def __cinit__(self):
        cdef int failure
        self.syncs.told = -1
        with nogil:
            failure = prepare_syncs(&self.syncs)
        if failure:
            raise OSError(failure, os.strerror(failure))

    def __dealloc__(self):
        end_syncs(&self.syncs)

    @property
    def told(self):
        return self.syncs.told

    def begin(self, int file, int64_t position, bytes data):
        """Write to the page cache, which takes microseconds, and start to sync the file. Raises OSError."""
        cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef int failure
        with nogil:
            failure = write_all(file, at, size, position)
            if not failure:
                failure = begin_sync(&self.syncs, file)
        if failure:
            raise OSError(failure, os.strerror(failure))

    def outcome(self):
        """Return the result of the sync, 0 or an errno, once; None while the sync is in progress."""
        cdef int failure = take_outcome(&self.syncs)
        return None if failure == NOT_OVER else failure

    def close(self):
        """Wait for the sync in progress, and close the eventfd."""
        with nogil:
            end_syncs(&self.syncs)


def complete_appends(list group):
    """See `coordinator.log.journal.pending.complete_appends`."""
    cdef Append append
    for append in group:
        try:
            append.done(append.base_offset, None)
        except Exception as failure:
            report_failure("an append's done callback failed", failure)


def report_failure(message, failure):
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure})
