# Asynchronous syncs for the commits of the journal, and a timer for group commit.


cdef class Commits:
    """Writes with asynchronous syncs by the Linux kernel; its `eventfd` becomes readable when a sync is done.

    Raises OSError if the system does not support them.
    """

    cdef Syncs syncs

    def __cinit__(self):
        cdef int failure
        self.syncs.eventfd = -1
        with nogil:
            failure = prepare_syncs(&self.syncs)
        if failure:
            raise OSError(failure, os.strerror(failure))

    def __dealloc__(self):
        end_syncs(&self.syncs)

    @property
    def eventfd(self):
        return self.syncs.eventfd

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
        cdef int failure = take_result(&self.syncs)
        return None if failure == IN_PROGRESS else failure

    def close(self):
        """Wait for the sync in progress, and close the eventfd."""
        with nogil:
            end_syncs(&self.syncs)


@cython.final
cdef class SystemTimer:
    """A timer whose `file` becomes readable when it fires. Raises OSError if the system has none (timerfd)."""

    cdef readonly int file

    def __cinit__(self):
        self.file = new_timer()
        if self.file < 0:
            raise OSError("no timerfd")

    def __dealloc__(self):
        if self.file >= 0:
            close(self.file)

    def set(self, double seconds):
        """Fire once after this time, or never if it is 0."""
        set_timer(self.file, <int64_t> (seconds * 1e9 + 0.5))

    def take(self):
        """Return whether the timer has fired since the last call."""
        return take_timer(self.file) != 0
