from coordinator.serve.server.request_memory cimport RequestMemory

cimport cython


cdef class Connection


@cython.final
cdef class ResponseSlot:
    cdef readonly Connection connection
    cdef public Py_ssize_t frame_bytes
    cdef public object response

    cpdef release_memory(self)
    @cython.locals(connection=Connection)
    cpdef respond(self, response)


cdef class Connection:
    cdef public bint _awaits_turn
    cdef public object _closing_reason
    cdef public double _closing_since_s
    cdef public object _listener
    cdef public bint _draining
    cdef public object _fast_path
    cdef public int _file
    cdef public Py_ssize_t _frame_bytes_max
    cdef public object _handler
    cdef public bint _handling
    cdef public object _limits
    cdef public object _loop
    cdef public object _metrics
    cdef public double _partial_since_s
    cdef public object _queued_frames
    cdef public object _reader
    cdef public bint _reading
    cdef public RequestMemory _request_memory
    cdef public Py_ssize_t _requests_in_flight_max
    cdef public object _response_slots
    cdef public object _transport
    cdef public object _trust
    cdef public bytearray _unsplit
    cdef public double _unwritable_since_s
    cdef public bint _writable
    cdef public double last_active_s
    cdef public bint disconnected
    cdef public bint is_authorized
    cdef public object network
    cdef public Py_ssize_t partial_bytes
    cdef public object sasl_authenticator

    @cython.locals(body_bytes=Py_ssize_t, memory=RequestMemory)
    cpdef data_received(self, bytes data)
    cdef bint _may_accept_request(self) except -1
    @cython.locals(slot=ResponseSlot)
    cdef Py_ssize_t _handle_frame(self, bytes frame) except -1
    @cython.locals(sent=Py_ssize_t, answers=bytes)
    cpdef _flush(self)
