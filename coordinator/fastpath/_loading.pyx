# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Replay the log of a shard in C. The Python reference is `runtime.loader` with `Shard.replay`; tests compare both.

Records are applied to a table of C structs. Each state becomes a Python object once, at the end.
The Python reference decodes a record batch that is compressed, transactional or damaged. It also replays a record
whose value has another version or unknown tagged fields. Afterwards, the state returns to the table, unless it is
unreadable.

The hash of the table has a random key, so that no client can choose group ids that cause collisions.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT64_MIN, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

import os

from coordinator.shard.batches import combine, normalise
from coordinator.shard.packed_state import NUMBERS, first_needed_offset
from coordinator.shard.state import RECORD_OVERHEAD_BYTES
from protocol.record_batch import decode_batches
from protocol.state_records import SharePartitionKey

cdef extern from "wire.h":
    int64_t get64(const uint8_t *at)
    int32_t get32(const uint8_t *at)
    void put64(uint8_t *at, int64_t value)
    int get16(const uint8_t *at)
    void put16(uint8_t *at, int value)
    int get_uvarint(const uint8_t *at, const uint8_t *end, uint32_t *value)
    void make_crc_table()
    uint32_t crc32c_of(const uint8_t *at, Py_ssize_t size, uint32_t before)
    void trim_heap()
    void set_hash_key(const uint8_t *key)
    uint64_t keyed_hash(const uint8_t *at, Py_ssize_t size)
    const char *STATE_NUMBERS
    ctypedef struct StateNumbers:
        int64_t first_needed_offset, start_offset, create_timestamp, write_timestamp, last_write_ms, updates, update_bytes
        int32_t snapshot_epoch, state_epoch, leader_epoch, leader_epoch_max, complete_count, unreadable_bytes
    bytes packed_state(const StateNumbers *numbers, const uint8_t *batches, Py_ssize_t batches_bytes)

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the C struct StateNumbers does not have the layout of packed_state.NUMBERS")

cdef enum:
    HEADER_BYTES = 61
    SIZE_BYTES = 12
    CRC_AT = 17
    COVERED_AT = 21
    MAGIC_AT = 16
    NO_LEADER_EPOCH = -1
    NOT_UNREADABLE = -1
    NO_STATE = -1
    SNAPSHOT = 0
    UPDATE = 1

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject *instance)

cdef int64_t NUMBER_MAX = 1 << 61
cdef int64_t OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES

# One share-partition.
cdef struct _State:
    StateNumbers numbers
    uint64_t hash
    Py_ssize_t key_at
    Py_ssize_t key_bytes
    # NULL: there is no state, or the shard has it as a Python object.
    PyObject *batches

cdef struct _OrderedState:
    int64_t first_needed_offset
    Py_ssize_t place

# Pointers to the fields of a record in its batch. `value` is NULL for a tombstone.
cdef struct _Record:
    int64_t log_offset
    int64_t timestamp_ms
    const uint8_t *key
    Py_ssize_t key_bytes
    const uint8_t *value
    Py_ssize_t value_bytes


@cython.final
cdef class InternedNames:
    """Group ids and topic ids: one shared object for each distinct value."""

    cdef dict groups
    cdef dict topic_ids

    def __init__(self):
        self.groups = {}
        self.topic_ids = {}

    cdef object key(self, const uint8_t *at, Py_ssize_t size):
        """Return the key of a share-partition, or None if its group id is not UTF-8."""
        cdef Py_ssize_t group_bytes = size - 22
        group = PyBytes_FromStringAndSize(<char *> at + 2, group_bytes)
        topic_id = PyBytes_FromStringAndSize(<char *> at + 2 + group_bytes, 16)
        group_id = self.groups.get(group)
        if group_id is None:
            try:
                group_id = group.decode()
            except UnicodeDecodeError:
                return None
            self.groups[group] = group_id
        topic_id = self.topic_ids.setdefault(topic_id, topic_id)
        key = SharePartitionKey(group_id, topic_id, get32(at + size - 4))
        # A key of text, bytes and a number forms no cycle, so the garbage collector need not visit millions of keys.
        PyObject_GC_UnTrack(<PyObject *> key)
        return key


@cython.final
cdef class Replay:
    """Replays the log of one shard. `general` replays a decoded record in Python; it returns whether it applied it."""

    cdef object shard
    cdef object general
    cdef InternedNames names
    cdef _State *states
    cdef Py_ssize_t state_count
    cdef Py_ssize_t states_capacity
    # Hash table: each slot has an index into `states`, or NO_STATE.
    cdef int32_t *table
    cdef Py_ssize_t table_size
    cdef uint8_t *keys
    cdef Py_ssize_t keys_bytes
    cdef Py_ssize_t keys_capacity
    # The log offset after the last applied record.
    cdef int64_t end_log_offset
    # The existing states, sorted at the end of the log, and how many of them the shard has received.
    cdef _OrderedState *order
    cdef Py_ssize_t ordered
    cdef Py_ssize_t given
    # Unreadable states from the shard: (first needed offset, key, packed state), in descending order.
    cdef list general_states

    def __init__(self, shard, InternedNames names, general):
        self.shard = shard
        self.names = names
        self.general = general

    def __dealloc__(self):
        cdef Py_ssize_t place
        for place in range(self.state_count):
            Py_XDECREF(self.states[place].batches)
        PyMem_Free(self.states)
        PyMem_Free(self.table)
        PyMem_Free(self.keys)
        PyMem_Free(self.order)

    def replay_batches(self, bytes data):
        """Replay one or more record batches; return the number of applied records. Raises DecodeError."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t at = 0, batch_bytes
        cdef Py_ssize_t count = 0
        while at < size:
            batch_bytes = 0
            if size - at >= HEADER_BYTES:
                batch_bytes = get32(begin + at + 8) + SIZE_BYTES
            if batch_bytes < HEADER_BYTES or batch_bytes > size - at or not _is_plain(begin + at, batch_bytes):
                # If the batch size is invalid, the Python reference decodes all remaining bytes.
                if batch_bytes < HEADER_BYTES or batch_bytes > size - at:
                    batch_bytes = size - at
                count += self.decoded(data[at : at + batch_bytes])
            else:
                count += self.batch(begin + at, batch_bytes)
            at += batch_bytes
        return count

    cdef Py_ssize_t batch(self, const uint8_t *begin, Py_ssize_t size) except -1:
        cdef const uint8_t *at = begin + HEADER_BYTES
        cdef const uint8_t *end = begin + size
        cdef int64_t base_offset = get64(begin)
        cdef int64_t base_ms = get64(begin + 27)
        cdef Py_ssize_t count = 0, place = 0
        # The decoded records, once one of them requires the Python reference.
        cdef list decoded = None
        cdef _Record record
        while at < end:
            at = _read_record(at, end, base_offset, base_ms, &record)
            is_folded = self.record(&record)
            if not is_folded:
                if decoded is None:
                    (whole,) = decode_batches(PyBytes_FromStringAndSize(<char *> begin, size))
                    decoded = list(whole.records)
                is_folded = self.replay_generally(&record, decoded[place])
            place += 1
            count += self.mark_durable(&record, is_folded)
        return count

    cdef Py_ssize_t decoded(self, bytes data) except -1:
        """Replay batches that are compressed, transactional or damaged. Raises DecodeError."""
        cdef Py_ssize_t count = 0
        cdef _Record record
        cdef bint is_folded
        # Decode all batches first, so that no record of damaged data is replayed.
        for batch in list(decode_batches(data)):
            if batch.is_control:
                continue
            for logged in batch.records:
                _take_apart(logged, &record)
                is_folded = self.record(&record)
                if not is_folded:
                    is_folded = self.replay_generally(&record, logged)
                count += self.mark_durable(&record, is_folded)
        return count

    cdef Py_ssize_t mark_durable(self, const _Record *record, bint is_folded) except -1:
        """Advance the end log offset after an applied record; return the number of applied records, 0 or 1."""
        if not is_folded:
            return 0
        assert record.log_offset >= self.end_log_offset, "records are replayed in log order"
        self.end_log_offset = record.log_offset + 1
        return 1

    cdef bint record(self, const _Record *record) except -1:
        """Apply a record to the table, or return False if only the Python reference can replay it."""
        cdef int kind
        cdef _State *state
        cdef Py_ssize_t key_bytes = record.key_bytes - 2
        cdef const uint8_t *key = record.key + 2
        if record.key == NULL or key_bytes < 22 or get16(key) + 22 != key_bytes:
            return False
        kind = get16(record.key)
        if kind == SNAPSHOT and record.value == NULL:
            state = self.known(key, key_bytes)
            if state == NULL or state.batches == NULL:
                return False
            Py_XDECREF(state.batches)
            state.batches = NULL
            return True
        if record.value == NULL or record.value_bytes < 2 or get16(record.value):
            return False
        if kind == UPDATE:
            return self.update(record, key, key_bytes)
        return kind == SNAPSHOT and self.snapshot(record, key, key_bytes)

    cdef bint update(self, const _Record *record, const uint8_t *key, Py_ssize_t key_bytes) except -1:
        cdef const uint8_t *at = record.value + 2
        cdef const uint8_t *end = record.value + record.value_bytes
        cdef const uint8_t *batches
        cdef Py_ssize_t count
        cdef int64_t start_offset
        cdef int32_t leader_epoch, complete_count
        cdef _State *state
        cdef StateNumbers *numbers
        if end - at < 18:
            return False
        batches = _batches(at + 16, end, &count, &complete_count)
        if batches == NULL:
            return False
        state = self.state(key, key_bytes)
        if state == NULL:
            return False
        numbers = &state.numbers
        if state.batches == NULL:
            # An update without an earlier snapshot creates a state. Such updates occur at the start of a pruned log.
            _clear_state(state)
            numbers.snapshot_epoch = get32(at)
            numbers.first_needed_offset = record.log_offset
        leader_epoch = get32(at + 4)
        if leader_epoch != NO_LEADER_EPOCH:
            numbers.leader_epoch = leader_epoch
        numbers.leader_epoch_max = max(numbers.leader_epoch_max, numbers.leader_epoch)
        start_offset = get64(at + 8)
        if start_offset != NO_START_OFFSET:
            numbers.start_offset = start_offset
        numbers.complete_count = complete_count
        numbers.updates += 1
        numbers.update_bytes += OVERHEAD_BYTES + count * BATCH_BYTES
        numbers.last_write_ms = record.timestamp_ms
        _keep_batches(state, _combined(<bytes> state.batches, batches, count, numbers.start_offset))
        return True

    cdef bint snapshot(self, const _Record *record, const uint8_t *key, Py_ssize_t key_bytes) except -1:
        cdef const uint8_t *at = record.value + 2
        cdef const uint8_t *end = record.value + record.value_bytes
        cdef const uint8_t *batches
        cdef Py_ssize_t count
        cdef int32_t complete_count, seen = 0
        cdef _State *state
        cdef StateNumbers *numbers
        if end - at < 38:
            return False
        batches = _batches(at + 36, end, &count, &complete_count)
        if batches == NULL:
            return False
        state = self.state(key, key_bytes)
        if state == NULL:
            return False
        numbers = &state.numbers
        if state.batches != NULL:
            seen = numbers.leader_epoch_max
        else:
            _clear_state(state)
        numbers.snapshot_epoch = get32(at)
        numbers.state_epoch = get32(at + 4)
        numbers.leader_epoch = get32(at + 8)
        numbers.leader_epoch_max = max(seen, numbers.leader_epoch)
        numbers.start_offset = get64(at + 12)
        numbers.create_timestamp = get64(at + 20)
        numbers.write_timestamp = get64(at + 28)
        numbers.complete_count = complete_count
        numbers.updates = 0
        numbers.update_bytes = 0
        numbers.last_write_ms = record.timestamp_ms
        numbers.first_needed_offset = record.log_offset
        _keep_batches(state, _normalised(batches, count, numbers.start_offset))
        return True

    # The table.

    cdef _State *known(self, const uint8_t *key, Py_ssize_t key_bytes) noexcept:
        """Return the table entry of a share-partition, or NULL if there is none."""
        cdef Py_ssize_t slot
        cdef uint64_t hash
        if not self.table_size:
            return NULL
        hash = keyed_hash(key, key_bytes)
        slot = hash & (self.table_size - 1)
        while self.table[slot] != NO_STATE:
            state = &self.states[self.table[slot]]
            if state.hash == hash and state.key_bytes == key_bytes:
                if not memcmp(self.keys + state.key_at, key, key_bytes):
                    return state
            slot = (slot + 1) & (self.table_size - 1)
        return NULL

    cdef _State *state(self, const uint8_t *key, Py_ssize_t key_bytes) except? NULL:
        """Return the table entry of a share-partition; NULL if the Python reference must replay its records."""
        cdef _State *state = self.known(key, key_bytes)
        cdef Py_ssize_t slot
        if state != NULL and (state.batches != NULL or not len(self.shard)):
            return state
        if self.is_with_shard(key, key_bytes):
            return NULL
        if state != NULL:
            return state
        if self.names.key(key, key_bytes) is None:
            return NULL
        if 2 * (self.state_count + 1) > self.table_size:
            self.grow_table()
        if self.state_count == self.states_capacity:
            self.states_capacity = max(64, self.states_capacity * 2)
            self.states = <_State *> _grow(self.states, self.states_capacity * sizeof(_State))
        if self.keys_bytes + key_bytes > self.keys_capacity:
            self.keys_capacity = max(4096, 2 * (self.keys_bytes + key_bytes))
            self.keys = <uint8_t *> _grow(self.keys, self.keys_capacity)
        state = &self.states[self.state_count]
        memset(state, 0, sizeof(_State))
        state.hash = keyed_hash(key, key_bytes)
        state.key_at = self.keys_bytes
        state.key_bytes = key_bytes
        memcpy(self.keys + self.keys_bytes, key, key_bytes)
        self.keys_bytes += key_bytes
        self.enter(state.hash, self.state_count)
        self.state_count += 1
        return state

    cdef void enter(self, uint64_t hash, Py_ssize_t place) noexcept:
        cdef Py_ssize_t slot = hash & (self.table_size - 1)
        while self.table[slot] != NO_STATE:
            slot = (slot + 1) & (self.table_size - 1)
        self.table[slot] = <int32_t> place

    cdef int grow_table(self) except -1:
        cdef Py_ssize_t place
        self.table_size = max(128, self.table_size * 2)
        self.table = <int32_t *> _grow(self.table, self.table_size * sizeof(int32_t))
        memset(self.table, 0xFF, self.table_size * sizeof(int32_t))
        for place in range(self.state_count):
            self.enter(self.states[place].hash, place)
        return 0

    # The Python reference.

    cdef bint is_with_shard(self, const uint8_t *key, Py_ssize_t key_bytes) except -1:
        """Return whether the shard already has a state of the share-partition, which stays there until the end."""
        if not len(self.shard):
            return False
        name = self.names.key(key, key_bytes)
        return name is None or self.shard.state(name) is not None

    cdef bint replay_generally(self, const _Record *record, decoded) except -1:
        """Replay one record with the Python reference. Afterwards, the shard keeps the state only if it is unreadable."""
        cdef _State *state = NULL
        if record.key != NULL and record.key_bytes > 2:
            state = self.known(record.key + 2, record.key_bytes - 2)
            if state != NULL and state.batches != NULL:
                self.install_state(state)
        is_folded = self.general(self.shard, decoded)
        if state != NULL:
            self.take_back(state)
        return is_folded

    cdef int take_back(self, _State *state) except -1:
        """Move a state from the shard back to the table, unless it is unreadable."""
        cdef bytes packed = self.shard.remove_readable_state(self.names.key(self.keys + state.key_at, state.key_bytes))
        cdef Py_ssize_t size
        if packed is None:
            return 0
        memcpy(&state.numbers, PyBytes_AS_STRING(packed), sizeof(StateNumbers))
        size = PyBytes_GET_SIZE(packed) - sizeof(StateNumbers)
        batches = PyBytes_FromStringAndSize(PyBytes_AS_STRING(packed) + sizeof(StateNumbers), size)
        _keep_batches(state, batches)
        return 0

    cdef int install_state(self, _State *state) except -1:
        cdef bytes batches = <bytes> state.batches
        packed = packed_state(
            &state.numbers, <const uint8_t *> PyBytes_AS_STRING(batches), PyBytes_GET_SIZE(batches)
        )
        self.shard.install_state(self.names.key(self.keys + state.key_at, state.key_bytes), packed)
        Py_XDECREF(state.batches)
        state.batches = NULL
        return 0

    # The end.

    def finish(self, Py_ssize_t count_max):
        """Install at most `count_max` states in the shard; return whether all states are installed."""
        if self.order == NULL:
            self.sort_states()
        while count_max > 0 and (self.given < self.ordered or self.general_states):
            count_max -= 1
            if self.general_states:
                first_needed, key, packed = self.general_states[len(self.general_states) - 1]
                if self.given == self.ordered or first_needed < self.order[self.given].first_needed_offset:
                    self.general_states.pop()
                    self.shard.install_state(key, packed)
                    continue
            self.install_state(&self.states[self.order[self.given].place])
            self.given += 1
        if self.given < self.ordered or self.general_states:
            return False
        if self.end_log_offset:
            self.shard.mark_updates_durable(self.end_log_offset)
        return True

    cdef int sort_states(self) except -1:
        """Sort the states of the table and of the shard by their first needed offset, as `PruningOffsets` requires."""
        cdef Py_ssize_t place
        self.order = <_OrderedState *> _grow(NULL, (self.state_count + 1) * sizeof(_OrderedState))
        for place in range(self.state_count):
            if self.states[place].batches != NULL:
                self.order[self.ordered].first_needed_offset = self.states[place].numbers.first_needed_offset
                self.order[self.ordered].place = place
                self.ordered += 1
        qsort(self.order, self.ordered, sizeof(_OrderedState), _compare_first_needed)
        self.general_states = [(first_needed_offset(packed), key, packed) for key, packed in self.shard.packed_states()]
        self.general_states.sort(reverse=True)
        return 0


def release_memory():
    """Return the memory of the tables to the operating system, because only loading needs so much."""
    give_space_back()
    trim_heap()


cdef int _compare_first_needed(const void *one, const void *other) noexcept nogil:
    cdef int64_t a = (<const _OrderedState *> one).first_needed_offset
    cdef int64_t b = (<const _OrderedState *> other).first_needed_offset
    return (a > b) - (a < b)


cdef void *_grow(void *memory, size_t size) except NULL:
    memory = PyMem_Realloc(memory, size)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef int _take_apart(logged, _Record *record) except -1:
    """Set pointers to the fields of a decoded record, which must outlive them."""
    record.log_offset = logged.offset
    record.timestamp_ms = logged.timestamp_ms
    record.key = record.value = NULL
    record.key_bytes = record.value_bytes = 0
    if logged.key is not None:
        record.key = <const uint8_t *> PyBytes_AS_STRING(<bytes> logged.key)
        record.key_bytes = PyBytes_GET_SIZE(logged.key)
    if logged.value is not None:
        record.value = <const uint8_t *> PyBytes_AS_STRING(<bytes> logged.value)
        record.value_bytes = PyBytes_GET_SIZE(logged.value)
    return 0


cdef inline void _clear_state(_State *state) noexcept:
    memset(&state.numbers, 0, sizeof(StateNumbers))
    state.numbers.start_offset = NO_START_OFFSET
    state.numbers.unreadable_bytes = NOT_UNREADABLE
    state.batches = <PyObject *> b""
    Py_INCREF(b"")


cdef inline int _keep_batches(_State *state, bytes batches) except -1:
    Py_INCREF(batches)
    Py_XDECREF(state.batches)
    state.batches = <PyObject *> batches
    return 0


set_hash_key(<const uint8_t *> PyBytes_AS_STRING(<bytes> os.urandom(16)))

include "batches.pxi"
include "log_bytes.pxi"
