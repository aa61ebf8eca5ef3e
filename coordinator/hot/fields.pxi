# Where the fields of Python objects lie, whose classes have slots.

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the numbers of a packed state do not lie where they are looked for")


cdef Py_ssize_t _member(kind, str name) except -1:
    cdef Py_ssize_t offset = member_offset(getattr(kind, name, None))
    if offset < 0:
        raise ImportError(f"the field {name} of {kind} does not lie where it is looked for")
    return offset


# Those of `Turns`, which is above this module and says itself who it is.
cdef Py_ssize_t STATUS, MAILBOX, QUEUED_SEEN, TURN_PLANNED, APPENDING, APPEND_BEGAN_S, APPEND_BYTES, WAITING, CHANGING
cdef Py_ssize_t NEXT_LOG_OFFSET, QUIET, RENEWAL_ASKED, ROUNDS, SHARD, STATE_PARTITION, DONE
# Those of its `Shard` and of the `Frontier` of that.
cdef Py_ssize_t STATES = _member(Shard, "_states"), POLICY = _member(Shard, "_policy")
cdef Py_ssize_t LIVE_BYTES = _member(Shard, "live_bytes"), FRONTIER = _member(Shard, "_frontier")
cdef Py_ssize_t END_LOG_OFFSET = _member(Frontier, "end_log_offset")
# Those of `Rounds`.
cdef Py_ssize_t PLANNED, DUE
cdef object ACTIVE = None
cdef object ZERO = 0


cdef int _locate(kind, rounds, active) except -1:
    global STATUS, MAILBOX, QUEUED_SEEN, TURN_PLANNED, APPENDING, APPEND_BEGAN_S, APPEND_BYTES, WAITING, CHANGING
    global NEXT_LOG_OFFSET, QUIET, RENEWAL_ASKED, ROUNDS, SHARD, STATE_PARTITION, DONE, PLANNED, DUE, ACTIVE
    STATUS = _member(kind, "status")
    MAILBOX = _member(kind, "_mailbox")
    QUEUED_SEEN = _member(kind, "_queued_seen")
    TURN_PLANNED = _member(kind, "_turn_planned")
    APPENDING = _member(kind, "_appending")
    APPEND_BEGAN_S = _member(kind, "_append_began_s")
    APPEND_BYTES = _member(kind, "_append_bytes")
    WAITING = _member(kind, "_waiting")
    CHANGING = _member(kind, "_changing")
    NEXT_LOG_OFFSET = _member(kind, "_next_log_offset")
    QUIET = _member(kind, "_quiet")
    RENEWAL_ASKED = _member(kind, "_renewal_asked")
    ROUNDS = _member(kind, "_rounds")
    SHARD = _member(kind, "shard")
    STATE_PARTITION = _member(kind, "state_partition")
    DONE = _member(kind, "_done")
    PLANNED = _member(rounds, "_planned")
    DUE = _member(rounds, "_due")
    ACTIVE = active
    return 0


# Those of a connection and of the room that all have together, likewise.
cdef Py_ssize_t GONE = 0, HANDLER, HANDLING, READING, WRITABLE, PARTIAL_BYTES, ACTIVE_S
cdef Py_ssize_t HELD_BYTES, BYTES_MAX, WAITING_FOR_ROOM, DRAINING


cdef int _locate_connection(kind, room) except -1:
    global GONE, HANDLER, HANDLING, READING, WRITABLE, PARTIAL_BYTES, ACTIVE_S
    global HELD_BYTES, BYTES_MAX, WAITING_FOR_ROOM, DRAINING
    HANDLER = _member(kind, "_handler")
    HANDLING = _member(kind, "_handling")
    READING = _member(kind, "_reading")
    WRITABLE = _member(kind, "_writable")
    PARTIAL_BYTES = _member(kind, "_partial_bytes")
    ACTIVE_S = _member(kind, "active_s")
    HELD_BYTES = _member(room, "held_bytes")
    BYTES_MAX = _member(room, "bytes_max")
    WAITING_FOR_ROOM = _member(room, "waiting")
    DRAINING = _member(room, "draining")
    GONE = _member(kind, "gone")
    return 0


cdef inline object _get(PyObject *state, Py_ssize_t member):
    return <object> get_member(state, member)


cdef inline void _set(state, Py_ssize_t member, value):
    cdef PyObject *before = get_member(<PyObject *> state, member)
    Py_INCREF(value)
    set_member(<PyObject *> state, member, <PyObject *> value)
    Py_XDECREF(before)
