# What stands before a connection while nothing but one fast-path write is under way on it.


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class ResponseSlot:
    """The place of a fast-path write in the order of a connection's answers; see `connection._ResponseSlot`."""

    cdef FastPath lane
    cdef readonly Py_ssize_t frame_bytes
    cdef readonly bytes response

    cdef int enter(self) except -1:
        """Take the place."""
        self.lane.places.append(self)
        self.lane.hold(self.frame_bytes)
        return 0

    cdef int answer(self, bytes response) except -1:
        """Do what `_ResponseSlot.respond` does: write the answer, if there is nothing else to see to."""
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
    """Stands in front of a connection, as the protocol of its transport.

    A fast-path write that comes as one piece to a connection with nothing under way is carried out here; everything else
    is for the connection. `handler` is what carries requests out, once the connection has it; `writes` its plain ones.
    """

    cdef ConnectionFields connection
    cdef FastPathWrites writes
    cdef object handler
    cdef RequestMemoryFields room
    cdef object places
    cdef object frames_waiting
    cdef object write
    cdef object is_closing
    cdef object unsent_bytes
    # The socket; -1: there is none, or what goes over it is not what is written.
    cdef int file
    cdef Py_ssize_t frame_bytes_max
    cdef bint one_at_a_time

    def __init__(self, connection, handler, FastPathWrites writes, Py_ssize_t frame_bytes_max, bint one_at_a_time):
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
        """Do what `Connection.data_received` does."""
        try:
            if self.is_idle() and self.take(data):
                return
        except Exception as failure:
            self.connection.handler_failed(failure)
            return
        self.connection.data_received(data)

    cdef bint is_idle(self) except -1:
        """Tell whether a request would be the only one, and could be handled at once."""
        cdef ConnectionFields connection = self.connection
        return (
            not connection.disconnected
            and connection._handler is self.handler
            and connection._reading
            and connection._writable
            and not connection._partial_bytes
            and not len(self.places)
            and not len(self.frames_waiting)
        )

    cdef bint take(self, bytes data) except -1:
        """Carry data out that is one frame with a fast-path write; False: it is not, and nothing has happened."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t frame_bytes = PyBytes_GET_SIZE(data) - SIZE_BYTES
        cdef ResponseSlot place
        cdef double now_s
        if frame_bytes < 2 or frame_bytes > self.frame_bytes_max or get32(begin) != frame_bytes:
            return False
        if get16(begin + SIZE_BYTES) != 85:
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
        """Write to the transport; but what its socket takes, with nothing before it, goes there without a detour."""
        cdef Py_ssize_t sent = 0
        if self.file >= 0 and not self.unsent_bytes():
            sent = send_now(self.file, PyBytes_AS_STRING(response), PyBytes_GET_SIZE(response))
        if sent < PyBytes_GET_SIZE(response):
            self.write(response[sent:] if sent else response)
        return 0

    cdef int hold(self, Py_ssize_t frame_bytes) except -1:
        """Count bytes in, or out while nobody waits for room."""
        self.room.held_bytes += frame_bytes
        return 0
