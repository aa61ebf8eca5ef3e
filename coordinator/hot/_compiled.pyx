# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled way of plain writes. What a plain write is, and what this may do, says `coordinator.hot`.

Every part has its definition elsewhere, in Python, and is held equal to it by tests/property/test_hot.py,
but for Commits, which tests/unit/log/test_committer.py does:

    PlainWrites.take   write_share_group_state.decode_request, encode_response; Service; routing
    Lane               server.Connection, while it has nothing under way but one plain write
    PlainTurns         Rounds._carry_out, Turns.turn; decisions.decide_write, state.advance, state_records.encode_record
    Appended           Turns._appended; Shard.settle_updates
    _submit, _plan     Turns.submit, Rounds.plan
    _normalise, _lay   batches.normalise, batches.combine
    encode_batch       record_batch.encode_batch
    Append, next_entries, encode_frame, note_ends, tell_all    those of coordinator.log.journal
    Commits            what ThreadCommitter does in coordinator.log.journal.committer
    Tally              metrics.Tally
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT32_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import asyncio
import os

from coordinator.shard import Result, Shard
from coordinator.shard.frontier import Frontier
from coordinator.shard.packed import NUMBERS
from coordinator.shard.state import RECORD_OVERHEAD_BYTES
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.record_batch import MAGIC
from protocol.routing import state_partition
from protocol.state_records import UPDATE_TYPE, SharePartitionKey, StateRecord, encode_record

cdef extern from "wire.h":
    int64_t get64(const uint8_t *at)
    void put64(uint8_t *at, int64_t value)
    int32_t get32(const uint8_t *at)
    void put32(uint8_t *at, int32_t value)
    int get16(const uint8_t *at)
    void put16(uint8_t *at, int value)
    int get_uvarint(const uint8_t *at, const uint8_t *end, uint32_t *value)
    int put_uvarint(uint8_t *at, uint64_t value)
    int uvarint_bytes(uint64_t value)
    Py_ssize_t member_offset(object descriptor)
    PyObject *get_member(PyObject *instance, Py_ssize_t offset)
    void set_member(PyObject *instance, Py_ssize_t offset, PyObject *value)
    const char *STATE_NUMBERS
    ctypedef struct StateNumbers:
        int64_t start_offset, create_timestamp, write_timestamp, last_write_ms, updates, update_bytes
        int32_t snapshot_epoch, state_epoch, leader_epoch, leader_epoch_max, complete_count, unreadable_bytes
    bytes packed_state(const StateNumbers *numbers, const uint8_t *batches, Py_ssize_t batches_bytes)
    void make_crc_table()
    uint32_t crc_by_table(uint32_t crc, const uint8_t *at, const uint8_t *end)
    Py_ssize_t send_now(int file, const char *data, Py_ssize_t size)
    uint32_t crc32c_of(const uint8_t *at, Py_ssize_t size, uint32_t before)

cdef extern from "syncs.h":
    enum:
        NOT_OVER
    ctypedef struct Syncs:
        int told
    int prepare_syncs(Syncs *syncs) nogil
    int write_all(int file, const uint8_t *data, Py_ssize_t size, int64_t position) nogil
    int begin_sync(const Syncs *syncs, int file) nogil
    int take_outcome(const Syncs *syncs)
    void end_syncs(Syncs *syncs) nogil

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object mapping, object key) except? NULL

cdef enum:
    BATCH_BYTES = 20
    GROUP_BYTES_MAX = 32767
    # What may come to a larger record, or to one that the log does not take, goes the general way.
    PLAIN_RECORD_BYTES_MAX = 65536
    # More than all in a record of state but its batches and what a _Topic knows of its key.
    RECORD_REST_BYTES = 128
    # What is remembered of topics and their partitions, and about what one of them takes beside the group's name.
    REMEMBERED_BYTES_MAX = 67108864
    TOPIC_BYTES = 1024
    PARTITION_BYTES = 256
    FRAME_HEAD_BYTES = 40
    FRAME_ALIGN_BYTES = 64
    COMMIT_BYTES_MAX = 8388608
    # A state partition and the size of a batch, before each batch in the journal.
    ENTRY_HEAD_BYTES = 6
    SIZE_BYTES = 4
    NO_START_OFFSET = -1
    NO_COMPLETE_COUNT = -1

cdef int64_t OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES
cdef object WRITE_STATE = Shard.write_state
cdef bytes ENTRY_HEAD = bytes(ENTRY_HEAD_BYTES)
cdef object STORED = Result((), None)
cdef tuple STORED_KEY = (write_api.API_KEY, 0)


# Requests.


@cython.final
@cython.no_gc
cdef class _Partition:
    """A share-partition as it was named before: its key and its shard."""

    cdef object key
    cdef object runner
    # The number of the request that named it last, to notice one that is named twice.
    cdef uint64_t named_by


@cython.final
@cython.no_gc
cdef class _Topic:
    """A topic as one group consumes it, with the partitions that were named so far."""

    cdef object group_id
    cdef bytes topic_id
    # What the key of a ShareUpdate record begins with.
    cdef bytes record_key
    cdef dict partitions
    cdef uint64_t named_by

    def __cinit__(self, group_id, bytes topic_id):
        group = group_id.encode()
        self.group_id = group_id
        self.topic_id = topic_id
        self.record_key = UPDATE_TYPE.to_bytes(2, "big") + len(group).to_bytes(2, "big") + group + topic_id
        self.partitions = {}


@cython.final
@cython.no_gc
cdef class _Request:
    """A write on its way; answered when no share-partition is missing."""

    cdef PlainWrites owner
    cdef object origin
    # A Place, or what is called with the answer.
    cdef object respond
    cdef double received_s
    cdef Py_ssize_t missing
    cdef int version
    # The whole answer if everything is stored, as it nearly always is.
    cdef bytes answer
    # What is not stored: place -> PartitionResult.
    cdef dict refused

    cdef int put(self, int place, object result, double now_s) except -1:
        if result is not None and result.error_code:
            if self.refused is None:
                self.refused = {}
            self.refused[place] = result
        self.missing -= 1
        if self.missing:
            return 0
        error_code = 0
        answer = self.answer
        if self.refused is not None:
            answer, error_code = _with_refusals(answer, self.version, self.refused)
        if type(self.respond) is Place:
            (<Place> self.respond).answer(answer)
        else:
            self.respond(answer)
        return self.owner.count(error_code, now_s - self.received_s)


def _with_refusals(answer, version, refused):
    """Return an answer, with its size, in which some results are others; and the first error code."""
    response = write_api.decode_response(answer, 9, version)
    place = error_code = 0
    for topic in response.results:
        for position in range(len(topic.partitions)):
            result = refused.get(place)
            place += 1
            if result is not None:
                topic.partitions[position] = result
                error_code = error_code or int(result.error_code)
    body = write_api.encode_response(response, version)
    return (len(body) + 5).to_bytes(4, "big") + answer[4:9] + body, error_code


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class WritePart:
    """The `Operation` of one share-partition within a plain write."""

    cdef _Request request
    cdef int place
    # What decides it: the shard of its key.
    cdef object runner
    cdef readonly object key
    cdef bytes record_key
    cdef bytes frame
    cdef Py_ssize_t batches_at
    cdef Py_ssize_t batch_count
    cdef int64_t start_offset
    cdef int32_t partition
    cdef int32_t state_epoch
    cdef int32_t leader_epoch
    cdef int32_t complete_count

    @property
    def decide(self):
        return WRITE_STATE

    @property
    def writes(self):
        return True

    @property
    def origin(self):
        return self.request.origin

    @property
    def received_s(self):
        return self.request.received_s

    @property
    def unit(self):
        """The part as the general path knows it."""
        part = write_api.PartitionData(
            self.partition,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.complete_count,
            self.frame[self.batches_at : self.batches_at + self.batch_count * BATCH_BYTES],
        )
        return [part]

    def answer(self, result):
        self.request.put(self.place, result, self.request.owner.time())

    def refuse(self, error_code, error_message):
        result = write_api.PartitionResult(self.partition, int(error_code), error_message)
        self.request.put(self.place, result, self.request.owner.time())


@cython.final
cdef class PlainWrites:
    """Takes the plain ones among the requests to write.

    `runners` are the shards in order; `time` is the loop's; `requests` counts those that were answered by API key and
    first error code, `seconds` how long that took; in a mailbox with `mailbox_max` operations there is no room.
    """

    cdef list runners
    cdef object time
    cdef dict requests_done
    cdef Tally seconds
    cdef Py_ssize_t mailbox_max
    # Group as on the wire -> topic id -> _Topic.
    cdef dict groups
    cdef Py_ssize_t remembered_bytes
    cdef uint64_t requests

    def __init__(self, list runners, time, requests, Tally seconds, Py_ssize_t mailbox_max):
        self.runners = runners
        self.mailbox_max = mailbox_max
        self.time = time
        self.requests_done = <dict> requests
        self.seconds = seconds
        self.groups = {}

    def take(self, bytes frame, origin, respond):
        """Carry out a request that is plain, and return True; or return False, and nothing has happened.

        `frame` begins with the request header; `respond` is called once with the answer and its size.
        """
        return self.carry_out(frame, 0, origin, respond, self.time())

    cdef bint carry_out(self, bytes data, Py_ssize_t skipped, origin, respond, double received_s) except -1:
        """Do what `take` does, with a frame that begins behind so many bytes."""
        cdef _Request request = _Request.__new__(_Request)
        cdef list parts = []
        cdef Py_ssize_t place
        request.answer = self.split(data, skipped, request, parts)
        if request.answer is None:
            return False
        request.owner = self
        request.origin = origin
        request.respond = respond
        request.received_s = received_s
        request.missing = len(parts)
        if type(respond) is Place:
            (<Place> respond).enter()
        for place in range(len(parts)):
            _submit(<WritePart> parts[place], self.mailbox_max)
        return True

    cdef int count(self, int error_code, double seconds) except -1:
        """Do what `metrics.request_done` does."""
        key = STORED_KEY if not error_code else (write_api.API_KEY, error_code)
        cdef PyObject *before = PyDict_GetItemWithError(self.requests_done, key)
        self.requests_done[key] = 1 if before is NULL else <object> before + 1
        return self.seconds.count(seconds)

    cdef bytes split(self, bytes frame, Py_ssize_t skipped, _Request request, list parts):
        """Make the parts of a plain request, and return the answer for when all is stored; None: it is not plain."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(frame) + skipped
        cdef const uint8_t *end = begin + PyBytes_GET_SIZE(frame) - skipped
        cdef const uint8_t *at = begin
        cdef const uint8_t *group_at
        cdef bytes answer
        cdef uint8_t *out
        cdef uint32_t topics, partitions, batches, size
        cdef Py_ssize_t i, batch, fixed_bytes
        cdef int used
        cdef int32_t partition
        cdef _Topic topic
        cdef _Partition named
        cdef WritePart part
        if end - at < 16 or get16(at) != 85 or not 0 <= get16(at + 2) <= 1:
            return None
        request.version = get16(at + 2)
        fixed_bytes = 20 if request.version == 0 else 24
        if get16(at + 8) < -1:
            return None
        at += 10 + max(get16(at + 8), 0)
        # No tagged fields in the header, and a group.
        if end - at < 2 or at[0]:
            return None
        at += 1
        used = get_uvarint(at, end, &size)
        group_at = at + used
        if not used or not 1 < size <= GROUP_BYTES_MAX + 1 or end - group_at < <Py_ssize_t> size:
            return None
        at = group_at + size - 1
        used = get_uvarint(at, end, &topics)
        if not used or topics < 2:
            return None
        at += used
        self.requests += 1
        if self.remembered_bytes > REMEMBERED_BYTES_MAX:
            self.groups.clear()
            self.remembered_bytes = 0
        # An answer is shorter than its request.
        answer = PyBytes_FromStringAndSize(NULL, end - begin + 16)
        out = <uint8_t *> PyBytes_AS_STRING(answer) + 4
        memcpy(out, begin + 4, 4)
        out[4] = 0
        out += 5
        out += put_uvarint(out, topics)
        for _ in range(topics - 1):
            if end - at < 17:
                return None
            topic = self.topic(
                PyBytes_FromStringAndSize(<char *> group_at, size - 1),
                PyBytes_FromStringAndSize(<char *> at, 16),
            )
            if topic is None or topic.named_by == self.requests:
                return None
            topic.named_by = self.requests
            memcpy(out, at, 16)
            at += 16
            out += 16
            used = get_uvarint(at, end, &partitions)
            if not used or partitions < 2:
                return None
            at += used
            out += put_uvarint(out, partitions)
            for _ in range(partitions - 1):
                if end - at < fixed_bytes + 1:
                    return None
                partition = get32(at)
                if partition < 0:
                    return None
                named = self.partition(topic, partition)
                if named is None or named.named_by == self.requests:
                    return None
                named.named_by = self.requests
                part = WritePart.__new__(WritePart)
                part.request = request
                part.place = len(parts)
                part.key = named.key
                part.record_key = topic.record_key
                part.frame = frame
                part.partition = partition
                part.state_epoch = get32(at + 4)
                part.leader_epoch = get32(at + 8)
                part.start_offset = get64(at + 12)
                part.complete_count = NO_COMPLETE_COUNT if request.version == 0 else get32(at + 20)
                at += fixed_bytes
                used = get_uvarint(at, end, &batches)
                at += used
                if not used or not batches or end - at <= <int64_t> (batches - 1) * BATCH_BYTES:
                    return None
                part.batches_at = skipped + (at - begin)
                part.batch_count = batches - 1
                # No tagged fields in a batch, and none behind them.
                for batch in range(part.batch_count):
                    if at[19]:
                        return None
                    at += BATCH_BYTES
                if at[0]:
                    return None
                at += 1
                part.runner = named.runner
                parts.append(part)
                put32(out, partition)
                put32(out + 4, 0)
                out += 8
            if at >= end or at[0]:
                return None
            at += 1
            out[0] = 0
            out += 1
        if end - at != 1 or at[0]:
            return None
        out[0] = 0
        size = <uint32_t> (out + 1 - <uint8_t *> PyBytes_AS_STRING(answer))
        put32(<uint8_t *> PyBytes_AS_STRING(answer), size - 4)
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(answer), size)

    cdef _Topic topic(self, bytes group, bytes topic_id):
        """Return a topic of a group, remembered or made; None if the group is not UTF-8."""
        cdef PyObject *topics = PyDict_GetItemWithError(self.groups, group)
        cdef PyObject *topic = NULL if topics is NULL else PyDict_GetItemWithError(<dict> topics, topic_id)
        if topic is not NULL:
            return <_Topic> topic
        try:
            made = _Topic(group.decode(), topic_id)
        except UnicodeDecodeError:
            return None
        self.groups.setdefault(group, {})[topic_id] = made
        # The group's name is in it as it is on the wire, in text, and in keys of records.
        self.remembered_bytes += TOPIC_BYTES + 3 * len(group)
        return made

    cdef _Partition partition(self, _Topic topic, int32_t number):
        """Return a partition of a topic, remembered or made; None if there is no room to remember it."""
        partition = number
        cdef PyObject *known = PyDict_GetItemWithError(topic.partitions, partition)
        if known is not NULL:
            return <_Partition> known
        if self.remembered_bytes > REMEMBERED_BYTES_MAX:
            # The next request begins with none.
            return None
        cdef _Partition made = _Partition.__new__(_Partition)
        made.key = SharePartitionKey(topic.group_id, topic.topic_id, partition)
        made.runner = self.runners[state_partition(made.key, len(self.runners))]
        topic.partitions[partition] = made
        self.remembered_bytes += PARTITION_BYTES
        return made


# Connections.


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Place:
    """The place of a plain write in the order of a connection's answers; see `connection._Place`."""

    cdef Lane lane
    cdef readonly Py_ssize_t frame_bytes
    cdef readonly bytes response

    cdef int enter(self) except -1:
        """Take the place."""
        self.lane.places.append(self)
        self.lane.hold(self.frame_bytes)
        return 0

    cdef int answer(self, bytes response) except -1:
        """Do what `_Place.respond` does: write the answer, if there is nothing else to see to."""
        cdef Lane lane = self.lane
        cdef PyObject *at = <PyObject *> lane.connection
        assert self.response is None, "a request is answered once"
        self.response = response
        if (
            _get(at, GONE) is not False
            or _get(at, HANDLING) is not False
            or _get(at, READING) is not True
            or len(lane.places) != 1
            or len(lane.frames_waiting)
            or len(<set> _get(<PyObject *> lane.room, WAITING_FOR_ROOM))
            or _get(<PyObject *> lane.room, DRAINING) is not False
        ):
            lane.connection.answered(self)
            return 0
        lane.places.popleft()
        lane.hold(-self.frame_bytes)
        if not lane.is_closing():
            lane.send(response)
        return 0


@cython.final
cdef class Lane:
    """Stands in front of a connection, as the protocol of its transport.

    A plain write that comes as one piece to a connection with nothing under way is carried out here; everything else
    is for the connection. `handler` is what carries requests out, once the connection has it; `writes` its plain ones.
    """

    cdef object connection
    cdef PlainWrites writes
    cdef object handler
    cdef object room
    cdef object places
    cdef object frames_waiting
    cdef object write
    cdef object is_closing
    cdef object unsent_bytes
    # The socket; -1: there is none, or what goes over it is not what is written.
    cdef int file
    cdef Py_ssize_t frame_bytes_max
    cdef bint one_at_a_time

    def __init__(self, connection, handler, PlainWrites writes, Py_ssize_t frame_bytes_max, bint one_at_a_time):
        if not GONE:
            _locate_connection(type(connection), type(connection._room))
        self.connection = connection
        self.handler = handler
        self.writes = writes
        self.frame_bytes_max = frame_bytes_max
        self.one_at_a_time = one_at_a_time
        self.room = connection._room
        self.places = connection._places
        self.frames_waiting = connection._frames_waiting

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
            self.connection.handling_failed(failure)
            return
        self.connection.data_received(data)

    cdef bint is_idle(self) except -1:
        """Tell whether a request would be the only one, and could be handled at once."""
        cdef PyObject *at = <PyObject *> self.connection
        return (
            _get(at, GONE) is False
            and _get(at, HANDLER) is self.handler
            and _get(at, READING) is True
            and _get(at, WRITABLE) is True
            and _get(at, PARTIAL_BYTES) is ZERO
            and not len(self.places)
            and not len(self.frames_waiting)
        )

    cdef bint take(self, bytes data) except -1:
        """Carry data out that is one frame with a plain write; False: it is not, and nothing has happened."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t frame_bytes = PyBytes_GET_SIZE(data) - SIZE_BYTES
        cdef Place place
        if frame_bytes < 2 or frame_bytes > self.frame_bytes_max or get32(begin) != frame_bytes:
            return False
        if get16(begin + SIZE_BYTES) != 85:
            return False
        place = Place.__new__(Place)
        place.lane = self
        place.frame_bytes = frame_bytes
        now_s = self.writes.time()
        if not self.writes.carry_out(data, SIZE_BYTES, self.connection, place, now_s):
            return False
        _set(self.connection, ACTIVE_S, now_s)
        if self.one_at_a_time or _get(<PyObject *> self.room, HELD_BYTES) >= _get(<PyObject *> self.room, BYTES_MAX):
            self.connection._pace()
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
        cdef Py_ssize_t held_bytes = _get(<PyObject *> self.room, HELD_BYTES)
        _set(self.room, HELD_BYTES, held_bytes + frame_bytes)
        return 0


# Where fields lie.

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


# Turns.


cdef int _submit(WritePart part, Py_ssize_t mailbox_max) except -1:
    """Do what `Turns.submit` does."""
    turns = part.runner
    cdef PyObject *at = <PyObject *> turns
    mailbox = <list> _get(at, MAILBOX)
    if _get(at, STATUS) is not ACTIVE or len(mailbox) >= mailbox_max:
        turns.submit(part)
        return 0
    mailbox.append(part)
    if _get(at, APPENDING) is None and _get(at, TURN_PLANNED) is False:
        _set(turns, TURN_PLANNED, True)
        _plan(_get(at, ROUNDS), turns)
    return 0


cdef int _plan(rounds, turns) except -1:
    """Do what `Rounds.plan` does."""
    cdef PyObject *at = <PyObject *> rounds
    if _get(at, PLANNED) is True:
        (<list> _get(at, DUE)).append(turns)
    else:
        rounds.plan(turns)
    return 0


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class _Turn:
    """What a turn has come to so far; see `turn.Turn`."""

    cdef readonly object now_ms
    cdef readonly bint accepts_writes
    cdef readonly list records
    cdef readonly list encoded
    cdef readonly Py_ssize_t append_bytes
    # What the plain writes of a turn have in common.
    cdef dict states
    cdef object topics
    cdef int64_t updates_max
    cdef int64_t update_bytes_min
    cdef int64_t live_bytes
    cdef int64_t record_bytes_max

    def add(self, record, tuple encoded):
        key, value = encoded
        self.records.append(record)
        self.encoded.append(encoded)
        self.append_bytes += len(key) + (0 if value is None else len(value))


@cython.final
cdef class PlainTurns:
    """Takes the turns that begin with a plain write.

    `append` is that of the log. `topics` is asked whether it knows a topic, unless it is None. What was received
    more than `request_age_max_s` before is too old.
    """

    cdef object append
    cdef object topics
    cdef double request_age_max_s
    cdef Py_ssize_t operations_max
    cdef object now_ms
    cdef double now_s
    cdef bint accepts_writes
    cdef int64_t record_bytes_max
    # The journal's: appends that wait, and the end of each state partition. None: another log, or it refuses.
    cdef list pending
    cdef list ends
    # Plain writes that were decided since `begin`.
    cdef readonly Py_ssize_t taken

    def __init__(self, append, topics, double request_age_max_s, Py_ssize_t operations_max):
        self.append = append
        self.topics = topics
        self.request_age_max_s = request_age_max_s
        self.operations_max = operations_max

    def begin(self, now_ms, double now_s, bint accepts_writes, int64_t record_bytes_max, tuple gathered):
        """Take turns at this time; the log may take no writes, and takes no records that are larger.

        `gathered` is where appends go, if not to the log.
        """
        self.pending, self.ends = gathered if gathered is not None else (None, None)
        self.now_ms = now_ms
        self.now_s = now_s
        self.accepts_writes = accepts_writes
        self.record_bytes_max = min(record_bytes_max, <int64_t> PLAIN_RECORD_BYTES_MAX)
        self.taken = 0

    def carry_out(self, list all_due, failed):
        """Do what `Rounds._carry_out` does: take the turns that are due; `failed` is told of one that raised."""
        for due in all_due:
            try:
                if not self.turn(due):
                    due.turn()
            except Exception as failure:
                failed(due, failure)

    cdef bint turn(self, turns) except -1:
        """Do what `turns.turn()` does, and return True; or return False, and nothing has happened."""
        cdef PyObject *at = <PyObject *> turns
        cdef Py_ssize_t done = 0
        cdef _Turn turn
        cdef Append append
        operations = <list> _get(at, MAILBOX)
        if _get(at, STATUS) is not ACTIVE or _get(at, APPENDING) is not None or not self.accepts_writes:
            return False
        if not 0 < len(operations) <= self.operations_max or type(operations[0]) is not WritePart:
            return False
        _set(turns, TURN_PLANNED, False)
        _set(turns, MAILBOX, [])
        if _get(at, QUEUED_SEEN) is not ZERO:
            turns._forget_queued()
        turn = _Turn.__new__(_Turn)
        turn.now_ms = self.now_ms
        turn.accepts_writes = True
        turn.records = []
        turn.encoded = []
        try:
            while True:
                self.take_writes(turns, turn, operations, &done)
                if done == len(operations):
                    break
                turns._carry_out(turn, operations[done])
                done += 1
        except BaseException:
            turns._undecided = operations[done:]
            raise
        if not turn.records:
            if <list> _get(at, WAITING):
                turns._append(turn.records, turn.encoded, turn.append_bytes, self.now_ms)
            elif <list> _get(at, MAILBOX):
                turns._plan_turn()
            return True
        _set(turns, APPENDING, turn.records)
        _set(turns, APPEND_BEGAN_S, self.now_s)
        _set(turns, APPEND_BYTES, turn.append_bytes)
        at_partition = _get(at, STATE_PARTITION)
        if self.pending is not None:
            append = Append.__new__(Append)
            append.fill(at_partition, self.ends[at_partition], self.now_ms, turn.encoded, _get(at, DONE))
            self.pending.append(append)
        else:
            self.append(at_partition, turn.encoded, self.now_ms, _get(at, DONE))
        return True

    cdef int take_writes(self, turns, _Turn turn, list operations, Py_ssize_t *done) except -1:
        """Decide and apply the operations from a place on, as long as they are plain writes, and move it on.

        For each there is one more of `records` (None: an update, which needs no settling by itself), of `encoded` and
        of those who wait.
        """
        cdef PyObject *at = <PyObject *> turns
        cdef Py_ssize_t begin = done[0]
        cdef WritePart part
        cdef tuple policy
        cdef object origin
        cdef double received_s_min = self.now_s - self.request_age_max_s
        waiting = <list> _get(at, WAITING)
        shard = _get(at, SHARD)
        policy = <tuple> _get(<PyObject *> shard, POLICY)
        turn.states = <dict> _get(<PyObject *> shard, STATES)
        turn.topics = self.topics
        turn.updates_max, turn.update_bytes_min = policy[0], policy[1]
        turn.live_bytes = 0
        turn.record_bytes_max = self.record_bytes_max
        try:
            while done[0] < len(operations):
                if type(operations[done[0]]) is not WritePart:
                    break
                part = <WritePart> operations[done[0]]
                origin = part.request.origin
                if part.request.received_s < received_s_min or (origin is not None and origin.gone):
                    break
                if not _write(turn, part):
                    break
                waiting.append((part, STORED))
                done[0] += 1
        finally:
            if turn.live_bytes:
                _set(shard, LIVE_BYTES, <int64_t> _get(<PyObject *> shard, LIVE_BYTES) + turn.live_bytes)
            self.taken += done[0] - begin
        return 0


@cython.final
cdef class Appended:
    """What the log calls when an append of `turns` is over."""

    cdef object turns
    cdef object time
    cdef Tally records
    cdef Tally seconds
    cdef Tally bytes

    def __init__(self, turns, active, time, Tally records, Tally seconds, Tally bytes):
        _locate(type(turns), type(turns._rounds), active)
        self.turns = turns
        self.time = time
        self.records, self.seconds, self.bytes = records, seconds, bytes

    def __call__(self, base_offset, error):
        """Do what `turns._appended` does."""
        self.over(base_offset, error)

    cdef int over(self, base_offset, error) except -1:
        cdef double now_s
        turns = self.turns
        cdef PyObject *at = <PyObject *> turns
        if (
            error is not None
            or not <list?> _get(at, APPENDING)
            or _get(at, STATUS) is not ACTIVE
            or _get(at, QUIET) is not None
            or _get(at, RENEWAL_ASKED) is True
            or base_offset != _get(at, NEXT_LOG_OFFSET)
        ):
            turns._appended(base_offset, error)
            return 0
        records = <list> _get(at, APPENDING)
        waiting = <list> _get(at, WAITING)
        _set(turns, APPENDING, None)
        _set(turns, WAITING, [])
        if <set> _get(at, CHANGING):
            turns._forget_changing()
        now_s = self.time()
        self.seconds.count(now_s - <double> _get(at, APPEND_BEGAN_S))
        self.records.count(len(records))
        self.bytes.count(_get(at, APPEND_BYTES))
        for record in records:
            if record is not None:
                turns._settle(records, base_offset)
                break
        else:
            end_offset = base_offset + len(records)
            _set(turns, NEXT_LOG_OFFSET, end_offset)
            shard = _get(at, SHARD)
            frontier = _get(<PyObject *> shard, FRONTIER)
            assert end_offset >= _get(<PyObject *> frontier, END_LOG_OFFSET), "records settle in log order"
            _set(frontier, END_LOG_OFFSET, end_offset)
        _answer_all(waiting, now_s)
        if <list> _get(at, MAILBOX):
            turns._plan_turn()
        return 0


cdef bint _write(_Turn turn, WritePart part) except -1:
    """Decide one write, apply it and add its record to the turn; or return False: it is not plain."""
    cdef PyObject *state = PyDict_GetItemWithError(turn.states, part.key)
    cdef StateNumbers numbers
    cdef const uint8_t *current
    cdef const uint8_t *batches
    cdef Py_ssize_t current_bytes, written_bytes, batches_bytes, record_bytes, count
    cdef int64_t floor
    cdef uint8_t *written
    cdef bint is_due
    if state is NULL:
        return False
    memcpy(&numbers, PyBytes_AS_STRING(<object> state), sizeof(numbers))
    current = <const uint8_t *> PyBytes_AS_STRING(<object> state) + sizeof(numbers)
    current_bytes = PyBytes_GET_SIZE(<object> state) - sizeof(numbers)

    # Refusals, and numbers that only tests have ever sent are left to the general path.
    if part.leader_epoch < numbers.leader_epoch_max or part.leader_epoch < 0 or numbers.leader_epoch < 0:
        return False
    if part.state_epoch < numbers.state_epoch or part.state_epoch < 0:
        return False
    if numbers.leader_epoch_max < numbers.leader_epoch or numbers.snapshot_epoch == INT32_MAX:
        return False
    if numbers.unreadable_bytes >= 0:
        return False
    if part.start_offset < NO_START_OFFSET or numbers.start_offset < NO_START_OFFSET:
        return False
    if turn.topics is not None and not turn.topics.knows(part.key.topic_id, part.partition):
        return False

    if part.start_offset > numbers.start_offset:
        numbers.start_offset = part.start_offset
        numbers.complete_count = part.complete_count
    elif part.start_offset == numbers.start_offset:
        numbers.complete_count = max(part.complete_count, numbers.complete_count)

    floor = INT64_MIN if numbers.start_offset == NO_START_OFFSET else numbers.start_offset
    written = _room(part.batch_count * BATCH_BYTES * 3 + current_bytes * 2 + BATCH_BYTES)
    count = _normalise(
        <const uint8_t *> PyBytes_AS_STRING(part.frame) + part.batches_at, part.batch_count, floor, written
    )
    if count < 0:
        return False
    written_bytes = count * BATCH_BYTES
    batches = written + written_bytes
    batches_bytes = _lay(current, current_bytes, written, count, floor, &batches)
    is_due = numbers.updates >= turn.updates_max or numbers.update_bytes > max(
        turn.update_bytes_min, OVERHEAD_BYTES + current_bytes
    )

    record_bytes = RECORD_REST_BYTES + PyBytes_GET_SIZE(part.record_key)
    record_bytes += batches_bytes if is_due else written_bytes
    if record_bytes > turn.record_bytes_max:
        return False

    numbers.last_write_ms = turn.now_ms
    if is_due:
        numbers.snapshot_epoch += 1
        numbers.create_timestamp = numbers.write_timestamp = turn.now_ms
        numbers.updates = numbers.update_bytes = 0
    else:
        numbers.updates += 1
        numbers.update_bytes += OVERHEAD_BYTES + written_bytes
    after = packed_state(&numbers, batches, batches_bytes)
    if is_due:
        record = StateRecord(part.key, ShareSnapshotValue(
            numbers.snapshot_epoch, numbers.state_epoch, numbers.leader_epoch, numbers.start_offset, turn.now_ms,
            turn.now_ms, PyBytes_FromStringAndSize(<const char *> batches, batches_bytes), numbers.complete_count,
            numbers.leader_epoch_max if numbers.leader_epoch_max > numbers.leader_epoch else -1
        ))
        encoded = encode_record(record)
    else:
        record = None
        value = _update(
            numbers.snapshot_epoch, numbers.leader_epoch, numbers.start_offset, numbers.complete_count,
            written, written_bytes
        )
        encoded = (_record_key(part), value)
    turn.records.append(record)
    turn.encoded.append(encoded)
    turn.append_bytes += PyBytes_GET_SIZE(encoded[0]) + PyBytes_GET_SIZE(encoded[1])
    turn.live_bytes += batches_bytes - current_bytes
    turn.states[part.key] = after
    return True


cdef bytes _record_key(WritePart part):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(part.record_key)
    key = PyBytes_FromStringAndSize(NULL, size + 4)
    memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(part.record_key), size)
    put32(<uint8_t *> PyBytes_AS_STRING(key) + size, part.partition)
    return key


cdef bytes _update(
    int32_t snapshot_epoch, int32_t leader_epoch, int64_t start_offset, int32_t complete_count,
    const uint8_t *batches, Py_ssize_t batches_bytes
):
    """Encode the value of a ShareUpdate, its version included."""
    cdef uint32_t length = batches_bytes // BATCH_BYTES + 1
    cdef Py_ssize_t tail_bytes = 1 if complete_count == NO_COMPLETE_COUNT else 7
    value = PyBytes_FromStringAndSize(NULL, 18 + uvarint_bytes(length) + batches_bytes + tail_bytes)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(value)
    put16(out, 0)
    put32(out + 2, snapshot_epoch)
    put32(out + 6, leader_epoch)
    put64(out + 10, start_offset)
    out += 18
    out += put_uvarint(out, length)
    memcpy(out, batches, batches_bytes)
    out += batches_bytes
    out[0] = 0
    if tail_bytes > 1:
        # One tagged field: tag 0, four bytes.
        out[0], out[1], out[2] = 1, 0, 4
        put32(out + 3, complete_count)
    return value


cdef int _answer_all(list waiting, double now_s) except -1:
    """Give the answers of (operation, result) pairs."""
    cdef Py_ssize_t place
    cdef WritePart part
    for place in range(len(waiting)):
        operation, result = <tuple> waiting[place]
        if type(operation) is WritePart:
            part = <WritePart> operation
            part.request.put(part.place, result.answer if result is not STORED else None, now_s)
        else:
            operation.answer(result.answer)
    return 0


# Batches of offsets.

cdef uint8_t *_space = NULL
cdef Py_ssize_t _space_bytes = 0


cdef uint8_t *_room(Py_ssize_t size) except NULL:
    """Return scratch space; good until the next call, and never used across one of Python code."""
    global _space, _space_bytes
    cdef void *space
    if size > _space_bytes:
        space = PyMem_Realloc(_space, 2 * size)
        if space == NULL:
            raise MemoryError()
        _space, _space_bytes = <uint8_t *> space, 2 * size
    return _space


cdef inline int _rank(const uint8_t *batch) noexcept:
    """Return what orders batches where they overlap: delivery count, then delivery state."""
    return get16(batch + 17) * 256 + <int8_t> batch[16]


cdef inline uint8_t *_put(uint8_t *out, int64_t first, int64_t last, int rank) noexcept:
    put64(out, first)
    put64(out + 8, last)
    # The count is rounded down, so that the state is within -128 to 127 of it.
    cdef int count = (rank + 128) >> 8
    out[16] = <uint8_t> (rank - count * 256)
    put16(out + 17, count)
    out[19] = 0
    return out + BATCH_BYTES


cdef inline uint8_t *_add(uint8_t *run, uint8_t *out, int64_t first, int64_t last, int rank) noexcept:
    """Put a batch at the end of a run, or stretch the last one if both form a single batch."""
    if out > run and get64(out - 12) == first - 1 and _rank(out - BATCH_BYTES) == rank:
        put64(out - 12, last)
        return out
    return _put(out, first, last, rank)


cdef inline uint8_t *_add_rest(
    uint8_t *run, uint8_t *out, int64_t first, int64_t last, int rank, const uint8_t *rest, const uint8_t *rest_end
) noexcept:
    """Put a batch at the end of a run, and what follows it in a run of its own."""
    out = _add(run, out, first, last, rank)
    memcpy(out, rest, rest_end - rest)
    return out + (rest_end - rest)


cdef Py_ssize_t _normalise(const uint8_t *batches, Py_ssize_t count, int64_t floor, uint8_t *out) noexcept:
    """Bring ascending batches into a run at or above the floor; return its batches, -1 if they do not ascend."""
    cdef uint8_t *run = out
    cdef int64_t first, last, next_first, next_last
    cdef int rank, next_rank
    cdef Py_ssize_t i
    if not count:
        return 0
    first, last, rank = get64(batches), get64(batches + 8), _rank(batches)
    if last < first:
        return -1
    for i in range(1, count):
        batches += BATCH_BYTES
        next_first, next_last, next_rank = get64(batches), get64(batches + 8), _rank(batches)
        if next_first <= last or next_last < next_first:
            return -1
        if next_first == last + 1 and next_rank == rank:
            last = next_last
            continue
        if last >= floor:
            out = _put(out, max(first, floor), last, rank)
        first, last, rank = next_first, next_last, next_rank
    if last >= floor:
        out = _put(out, max(first, floor), last, rank)
    return (out - run) // BATCH_BYTES


cdef Py_ssize_t _lay(
    const uint8_t *current, Py_ssize_t current_bytes, const uint8_t *written, Py_ssize_t count, int64_t floor,
    const uint8_t **result
) noexcept:
    """Lay a run over another one, of which nothing below the floor is kept, and return the bytes of the result.

    That is put where `result` points, where there must be room; or `result` points to the current run, if it is that.
    """
    cdef uint8_t *run = <uint8_t *> result[0]
    cdef const uint8_t *one = current
    cdef const uint8_t *one_end = current + current_bytes
    cdef const uint8_t *other = written
    cdef const uint8_t *other_end = written + count * BATCH_BYTES
    cdef const uint8_t *kept
    cdef uint8_t *out = run
    cdef int64_t first = 0, last = 0, other_first = 0, other_last = 0, end
    cdef int rank = 0, other_rank = 0
    while one < one_end and get64(one + 8) < floor:
        one += BATCH_BYTES
    if other == other_end and one < one_end and one == current and get64(one) >= floor:
        result[0] = current
        return current_bytes
    if one < one_end:
        # What ends well before the first written offset stays as it is; but the first one may be cut.
        first, last, rank = max(get64(one), floor), get64(one + 8), _rank(one)
        if other < other_end and last < get64(other):
            out = _put(out, first, last, rank)
            one += BATCH_BYTES
            kept = one
            while one < one_end and get64(one + 8) < get64(other):
                one += BATCH_BYTES
            memcpy(out, kept, one - kept)
            out += one - kept
            if one < one_end:
                first, last, rank = get64(one), get64(one + 8), _rank(one)
    if other < other_end:
        other_first, other_last, other_rank = get64(other), get64(other + 8), _rank(other)
    while one < one_end and other < other_end:
        if last < other_first:
            out = _add(run, out, first, last, rank)
            end = last
        elif other_last < first:
            out = _add(run, out, other_first, other_last, other_rank)
            end = other_last
        elif first < other_first:
            out = _add(run, out, first, other_first - 1, rank)
            first = other_first
            continue
        elif other_first < first:
            out = _add(run, out, other_first, first - 1, other_rank)
            other_first = first
            continue
        else:
            end = min(last, other_last)
            out = _add(run, out, first, end, max(rank, other_rank))
        # Whatever is settled by now is done with; the rest of a longer batch goes on.
        if last <= end:
            one += BATCH_BYTES
            if one < one_end:
                first, last, rank = get64(one), get64(one + 8), _rank(one)
        elif first <= end:
            first = end + 1
        if other_last <= end:
            other += BATCH_BYTES
            if other < other_end:
                other_first, other_last, other_rank = get64(other), get64(other + 8), _rank(other)
        elif other_first <= end:
            other_first = end + 1
    if one < one_end:
        out = _add_rest(run, out, first, last, rank, one + BATCH_BYTES, one_end)
    elif other < other_end:
        out = _add_rest(run, out, other_first, other_last, other_rank, other + BATCH_BYTES, other_end)
    return out - run


def lay_over(bytes current, bytes written, int64_t start_offset):
    """Do what `batches.combine` does; None if the written batches do not ascend. For tests."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(written) // BATCH_BYTES
    cdef int64_t floor = INT64_MIN if start_offset == NO_START_OFFSET else start_offset
    cdef uint8_t *run = _room(count * BATCH_BYTES * 3 + PyBytes_GET_SIZE(current) * 2 + BATCH_BYTES)
    cdef const uint8_t *result
    cdef Py_ssize_t size
    count = _normalise(<const uint8_t *> PyBytes_AS_STRING(written), count, floor, run)
    if count < 0:
        return None
    result = run + count * BATCH_BYTES
    size = _lay(
        <const uint8_t *> PyBytes_AS_STRING(current), PyBytes_GET_SIZE(current), run, count, floor, &result
    )
    return PyBytes_FromStringAndSize(<const char *> result, size)


# Record batches.


cdef inline uint64_t _zigzag(int64_t value) noexcept:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


def encode_batch(int64_t base_offset, int64_t timestamp_ms, list records):
    """Write (key, value) records as one batch; see `protocol.record_batch.encode_batch`."""
    return _batch(b"", base_offset, timestamp_ms, records)


cdef bytes _batch(bytes before, int64_t base_offset, int64_t timestamp_ms, list records):
    """Write records as one batch, behind other bytes."""
    cdef Py_ssize_t count = len(records)
    cdef Py_ssize_t before_bytes = PyBytes_GET_SIZE(before)
    cdef Py_ssize_t i, size, covered_bytes = 40
    cdef Py_ssize_t key_bytes, value_bytes
    cdef uint8_t *out
    cdef uint8_t *begin
    if not count:
        raise ValueError("a batch needs at least one record")
    for i in range(count):
        key, value = <tuple?> records[i]
        size = _record_bytes(i, key, value)
        covered_bytes += uvarint_bytes(_zigzag(size)) + size
    batch = PyBytes_FromStringAndSize(NULL, before_bytes + 21 + covered_bytes)
    begin = <uint8_t *> PyBytes_AS_STRING(batch)
    memcpy(begin, PyBytes_AS_STRING(before), before_bytes)
    begin += before_bytes
    put64(begin, base_offset)
    put32(begin + 8, covered_bytes + 9)
    put32(begin + 12, 0)
    begin[16] = MAGIC
    out = begin + 21
    put16(out, 0)
    put32(out + 2, count - 1)
    put64(out + 6, timestamp_ms)
    put64(out + 14, timestamp_ms)
    # No producer: id and epoch are -1, the base sequence is 0.
    put64(out + 22, -1)
    put16(out + 30, -1)
    put32(out + 32, 0)
    put32(out + 36, count)
    out += 40
    for i in range(count):
        key, value = <tuple?> records[i]
        out += put_uvarint(out, _zigzag(_record_bytes(i, key, value)))
        out[0] = out[1] = 0
        out += 2
        out += put_uvarint(out, _zigzag(i))
        key_bytes = PyBytes_GET_SIZE(key)
        out += put_uvarint(out, _zigzag(key_bytes))
        memcpy(out, PyBytes_AS_STRING(key), key_bytes)
        out += key_bytes
        if value is None:
            out += put_uvarint(out, _zigzag(-1))
        else:
            value_bytes = PyBytes_GET_SIZE(value)
            out += put_uvarint(out, _zigzag(value_bytes))
            memcpy(out, PyBytes_AS_STRING(value), value_bytes)
            out += value_bytes
        out[0] = 0
        out += 1
    put32(begin + 17, <int32_t> crc32c_of(begin + 21, covered_bytes, 0))
    return batch


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
        self.entry = _batch(ENTRY_HEAD, base_offset, timestamp_ms, records)
        self.done = done
        begin = <uint8_t *> PyBytes_AS_STRING(self.entry)
        put16(begin, state_partition)
        put32(begin + 2, PyBytes_GET_SIZE(self.entry) - ENTRY_HEAD_BYTES)
        return 0


def next_entries(list pending):
    """See `coordinator.log.journal.pending.next_entries`."""
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


def note_ends(list group, list ends, dict last_offsets):
    """See `coordinator.log.journal.pending.note_ends`."""
    cdef Append append
    for append in group:
        ends[append.state_partition] = append.end_offset
        last_offsets[append.state_partition] = append.end_offset - 1


cdef class Commits:
    """Writes with a sync that the kernel carries out by itself; `told` is an eventfd that tells when one is over.

    Raises OSError if this system cannot do that.
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
        """Write, which takes microseconds, and begin to sync all of the file. Raises OSError."""
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
        """Return 0 or an errno, once for what was begun; None: it is not over."""
        cdef int failure = take_outcome(&self.syncs)
        return None if failure == NOT_OVER else failure

    def close(self):
        """Wait for what is under way, and close the eventfd."""
        with nogil:
            end_syncs(&self.syncs)


def tell_all(list group):
    """See `coordinator.log.journal.pending.tell_all`."""
    cdef Append append
    for append in group:
        try:
            if type(append.done) is Appended:
                (<Appended> append.done).over(append.base_offset, None)
            else:
                append.done(append.base_offset, None)
        except Exception as failure:
            report_failure(failure)


def report_failure(failure):
    asyncio.get_running_loop().call_exception_handler(
        {"message": "an append's done callback failed", "exception": failure}
    )


cdef Py_ssize_t _record_bytes(Py_ssize_t index, bytes key, bytes value):
    """Return what a record takes behind its length; attributes, timestamp delta and header count are a zero each."""
    cdef Py_ssize_t size = 3 + uvarint_bytes(_zigzag(index))
    size += uvarint_bytes(_zigzag(PyBytes_GET_SIZE(key))) + PyBytes_GET_SIZE(key)
    if value is None:
        return size + 1
    return size + uvarint_bytes(_zigzag(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value)


# Metrics.


@cython.final
@cython.no_gc
cdef class Tally:
    """See `coordinator.metrics.tally.Tally`."""

    cdef tuple bounds
    cdef double *limits
    cdef uint64_t *counts
    cdef Py_ssize_t size
    cdef double sum

    def __init__(self, bounds):
        cdef Py_ssize_t i
        self.bounds = tuple(bounds)
        self.size = len(self.bounds)
        self.limits = <double *> PyMem_Realloc(self.limits, (self.size + 1) * sizeof(double))
        self.counts = <uint64_t *> PyMem_Realloc(self.counts, (self.size + 1) * sizeof(uint64_t))
        if self.limits == NULL or self.counts == NULL:
            raise MemoryError()
        for i in range(self.size):
            self.limits[i] = self.bounds[i]
        memset(self.counts, 0, (self.size + 1) * sizeof(uint64_t))

    def __dealloc__(self):
        PyMem_Free(self.limits)
        PyMem_Free(self.counts)

    def add(self, double value):
        """Count one value; a bound belongs to the range below it, as Prometheus wants."""
        self.count(value)

    cdef int count(self, double value) except -1:
        cdef Py_ssize_t i = 0
        while i < self.size and self.limits[i] < value:
            i += 1
        self.counts[i] += 1
        self.sum += value
        return 0

    def cumulative(self):
        """Return ([(upper bound, how many values up to it)], sum of all values), ready for a family."""
        cdef Py_ssize_t i
        cdef uint64_t seen = 0
        buckets = []
        for i in range(self.size + 1):
            seen += self.counts[i]
            buckets.append((repr(self.bounds[i]) if i < self.size else "+Inf", float(seen)))
        return buckets, self.sum


def sums(bytes data, uint32_t before):
    """Return CRC-32C as the processor and as the table makes it. For tests."""
    cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
    by_table = crc_by_table(~before, begin, begin + PyBytes_GET_SIZE(data))
    return crc32c_of(begin, PyBytes_GET_SIZE(data), before), ~by_table & 0xFFFFFFFF


make_crc_table()
