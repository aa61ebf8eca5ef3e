# Handle a fast-path request without the Python connection, if it is the connection's only request in progress.


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class ResponseSlot:
    """The position of a fast-path request in the order of a connection's responses; see `connection._ResponseSlot`."""

    cdef FastPath lane
    cdef readonly Py_ssize_t frame_bytes
    cdef readonly bytes response

    cdef int enter(self) except -1:
        """Append this slot to the connection's slots, and reserve the request memory of its frame."""
        self.lane.places.append(self)
        self.lane.hold(self.frame_bytes)
        return 0

    cdef int answer(self, bytes response) except -1:
        """Do the same as `_ResponseSlot.respond`; write the response directly if nothing else is pending."""
        cdef FastPath lane = self.lane
        cdef ConnectionFields connection = lane.connection
        assert self.response is None, "a request is answered once"
        self.response = response
        if (
            connection.disconnected
            or connection._handling
            or not connection._reading
            or len(lane.places) != 1
            or len(lane.frames_waiting)
            or len(lane.room.waiting)
            or lane.room.draining
        ):
            connection.response_ready(self)
            return 0
        lane.places.popleft()
        lane.hold(-self.frame_bytes)
        if not lane.is_closing():
            lane.send(response)
        return 0


@cython.final
cdef class FastPath:
    """The protocol of a connection's transport; it passes on all events that it does not handle.

    A fast-path request is handled here if it arrives in one read and no other request is in progress. The connection
    handles everything else. `handler` is the request handler after the login; `writes` handles fast-path requests.
    """

    cdef ConnectionFields connection
    cdef FastPathRequests writes
    cdef object handler
    cdef RequestMemoryFields room
    cdef object places
    cdef object frames_waiting
    cdef object write
    cdef object is_closing
    cdef object unsent_bytes
    # The file descriptor of the socket; -1 without a socket or with TLS.
    cdef int file
    cdef Py_ssize_t frame_bytes_max
    cdef bint one_at_a_time

    def __init__(self, connection, handler, FastPathRequests writes, Py_ssize_t frame_bytes_max, bint one_at_a_time):
        self.connection = connection
        self.handler = handler
        self.writes = writes
        self.frame_bytes_max = frame_bytes_max
        self.one_at_a_time = one_at_a_time
        self.room = connection._request_memory
        self.places = connection._response_slots
        self.frames_waiting = connection._queued_frames

    def connection_made(self, transport):
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.unsent_bytes = transport.get_write_buffer_size
        socket = transport.get_extra_info("socket")
        is_plain = socket is not None and transport.get_extra_info("sslcontext") is None
        self.file = socket.fileno() if is_plain else -1
        self.connection.connection_made(transport)

    def connection_lost(self, exc):
        self.write = self.is_closing = self.unsent_bytes = None
        self.file = -1
        self.connection.connection_lost(exc)

    def eof_received(self):
        return self.connection.eof_received()

    def pause_writing(self):
        self.connection.pause_writing()

    def resume_writing(self):
        self.connection.resume_writing()

    def data_received(self, data):
        """Do the same as `Connection.data_received`; take a request if no other one is in progress."""
        cdef ConnectionFields connection = self.connection
        try:
            if (
                not connection.disconnected
                and connection._handler is self.handler
                and connection._reading
                and connection._writable
                and not connection._partial_bytes
                and not len(self.places)
                and not len(self.frames_waiting)
                and self.take(data)
            ):
                return
        except Exception as failure:
            self.connection.handler_failed(failure)
            return
        self.connection.data_received(data)

    cdef bint take(self, bytes data) except -1:
        """Execute the data if it is one frame with a fast-path request; otherwise return False without any effect."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t frame_bytes = PyBytes_GET_SIZE(data) - SIZE_BYTES
        cdef ResponseSlot place
        cdef double now_s
        if frame_bytes < HEADER_BYTES_MIN or frame_bytes > self.frame_bytes_max or get32(begin) != frame_bytes:
            return False
        place = ResponseSlot.__new__(ResponseSlot)
        place.lane = self
        place.frame_bytes = frame_bytes
        now_s = self.writes.time()
        if not self.writes.carry_out(data, SIZE_BYTES, self.connection, place, now_s):
            return False
        self.connection.active_s = now_s
        if self.one_at_a_time or self.room.held_bytes >= self.room.bytes_max:
            self.connection._update_reading()
        return True

    cdef int send(self, bytes response) except -1:
        """Send directly on the socket if the transport's buffer is empty, and pass the remainder to the transport."""
        cdef Py_ssize_t sent = 0
        if self.file >= 0 and not self.unsent_bytes():
            sent = send_now(self.file, PyBytes_AS_STRING(response), PyBytes_GET_SIZE(response))
        if sent < PyBytes_GET_SIZE(response):
            self.write(response[sent:] if sent else response)
        return 0

    cdef int hold(self, Py_ssize_t frame_bytes) except -1:
        """Add to the reserved request memory; release with a negative number only if no connection waits for memory."""
        self.room.held_bytes += frame_bytes
        return 0
