# Replay record batches of the log into a shard.

cdef enum:
    HEADER_BYTES = 61
    CRC_AT = 17
    COVERED_AT = 21
    MAGIC_AT = 16
    # The bytes up to the end of the length field of a batch, which this length excludes.
    UNSIZED_BYTES = 12
    NO_LEADER_EPOCH = -1
    SNAPSHOT_TYPE = 0

cdef int64_t NUMBER_MAX = 1 << 61

# Pointers to the fields of a record in its batch. `value` is NULL for a tombstone.
cdef struct _Record:
    int64_t log_offset
    int64_t timestamp_ms
    const uint8_t *key
    Py_ssize_t key_bytes
    const uint8_t *value
    Py_ssize_t value_bytes


@cython.final
cdef class Replay:
    """Replays the log of one shard. The Python reference is `runtime.replay.ReferenceReplay`; tests compare both.

    The Python reference decodes a record batch that is compressed, transactional or damaged. It also replays a
    record of an unreadable state, and one whose value has another version or unknown tagged fields: `general` is
    called with the shard and the decoded record, and returns whether it applied the record.

    `names` has one object for each group id and topic id; the replays of a load share it.
    """

    cdef object shard
    cdef dict states
    cdef dict names
    cdef object general
    # The log offset after the last applied record.
    cdef int64_t end_log_offset
    # The growth of `shard.live_bytes` by updates in this call of `replay_batches`.
    cdef int64_t live_bytes

    def __init__(self, shard, dict names, general):
        self.shard = shard
        self.states = shard._states
        self.names = names
        self.general = general

    def replay_batches(self, bytes data):
        """Replay one or more record batches; return the number of applied records. Raises DecodeError."""
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t at = 0, batch_bytes
        cdef Py_ssize_t count = 0
        self.live_bytes = 0
        while at < size:
            batch_bytes = 0
            if size - at >= HEADER_BYTES:
                batch_bytes = get32(begin + at + 8) + UNSIZED_BYTES
            if batch_bytes < HEADER_BYTES or batch_bytes > size - at:
                # If the batch size is invalid, the Python reference decodes all remaining bytes.
                batch_bytes = size - at
                count += self.decoded(data[at:])
            elif _is_plain(begin + at, batch_bytes):
                count += self.batch(begin + at, batch_bytes)
            else:
                count += self.decoded(data[at : at + batch_bytes])
            at += batch_bytes
        free_large_scratch_buffers()
        self.shard.live_bytes += self.live_bytes
        if self.end_log_offset:
            self.shard.mark_updates_durable(self.end_log_offset)
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
            is_applied = self.apply(&record)
            if not is_applied:
                if decoded is None:
                    (whole,) = decode_batches(PyBytes_FromStringAndSize(<char *> begin, size))
                    decoded = list(whole.records)
                is_applied = self.general(self.shard, decoded[place])
            place += 1
            count += self.mark_durable(&record, is_applied)
        return count

    cdef Py_ssize_t decoded(self, bytes data) except -1:
        """Replay batches that are compressed, transactional or damaged. Raises DecodeError."""
        cdef Py_ssize_t count = 0
        cdef _Record record
        cdef bint is_applied
        # Decode all batches first, so that no record of damaged data is replayed.
        for batch in list(decode_batches(data)):
            if batch.is_control:
                continue
            for logged in batch.records:
                _set_record_fields(logged, &record)
                is_applied = self.apply(&record) or self.general(self.shard, logged)
                count += self.mark_durable(&record, is_applied)
        return count

    cdef Py_ssize_t mark_durable(self, const _Record *record, bint is_applied) except -1:
        """Advance the end log offset after an applied record; return the number of applied records, 0 or 1."""
        if not is_applied:
            return 0
        assert record.log_offset >= self.end_log_offset, "records are replayed in log order"
        self.end_log_offset = record.log_offset + 1
        return 1

    cdef bint apply(self, const _Record *record) except -1:
        """Apply a record, or return False if only the Python reference can replay it."""
        cdef int kind
        cdef tuple key
        cdef Py_ssize_t key_bytes = record.key_bytes - 2
        cdef const uint8_t *at = record.key + 2
        if record.key == NULL or key_bytes < 22 or get16(at) + 22 != key_bytes:
            return False
        kind = get16(record.key)
        if kind != SNAPSHOT_TYPE and kind != UPDATE_TYPE:
            return False
        key = self.share_partition(at, key_bytes)
        if key is None:
            return False
        if kind == SNAPSHOT_TYPE and record.value == NULL:
            return self.shard.remove_readable_state(SharePartitionKey(*key)) is not None
        if record.value == NULL or record.value_bytes < 2 or get16(record.value):
            return False
        return self.update(record, key) if kind == UPDATE_TYPE else self.snapshot(record, key)

    cdef tuple share_partition(self, const uint8_t *at, Py_ssize_t size):
        """Return a tuple that equals the `SharePartitionKey` of a record; None if its group id is not UTF-8."""
        name = PyBytes_FromStringAndSize(<char *> at, size - 4)
        cdef PyObject *known = PyDict_GetItemWithError(self.names, name)
        cdef tuple pair
        if known is not NULL:
            pair = <tuple> known
        else:
            try:
                group_id = name[2 : size - 20].decode()
            except UnicodeDecodeError:
                return None
            topic_id = name[size - 20 :]
            pair = self.names.setdefault(group_id, group_id), self.names.setdefault(topic_id, topic_id)
            self.names[name] = pair
        return pair[0], pair[1], get32(at + size - 4)

    cdef bint update(self, const _Record *record, tuple key) except -1:
        cdef const uint8_t *at = record.value + 2
        cdef const uint8_t *end = record.value + record.value_bytes
        cdef const uint8_t *batches
        cdef const uint8_t *written
        cdef PyObject *packed
        cdef Py_ssize_t count, written_bytes, held_bytes
        cdef int64_t start_offset
        cdef int32_t leader_epoch, complete_count
        cdef _State state
        cdef StateNumbers *numbers = &state.numbers
        if end - at < 18:
            return False
        batches = _batches(at + 16, end, &count, &complete_count)
        if batches == NULL:
            return False
        packed = PyDict_GetItemWithError(self.states, key)
        if packed is NULL:
            # An update without an earlier snapshot creates a state. Such updates occur at the start of a pruned log.
            _clear_state(&state)
            numbers.snapshot_epoch = get32(at)
            numbers.first_needed_offset = record.log_offset
        elif not _open_state(&state, <bytes> packed):
            return False
        held_bytes = state.batches_bytes
        leader_epoch = get32(at + 4)
        if leader_epoch != NO_LEADER_EPOCH:
            numbers.leader_epoch = leader_epoch
        numbers.leader_epoch_max = max(numbers.leader_epoch_max, numbers.leader_epoch)
        start_offset = get64(at + 8)
        if start_offset != NO_START_OFFSET:
            numbers.start_offset = start_offset
        numbers.complete_count = complete_count
        written = _normalise(batches, count, _floor(numbers.start_offset), &written_bytes)
        if written_bytes < 0:
            return False
        _combine(&state, written, written_bytes)
        _count_update(numbers, count * BATCH_BYTES, record.timestamp_ms)
        if packed is NULL:
            self.install(key, packed_state(numbers, state.batches, state.batches_bytes))
        else:
            self.live_bytes += state.batches_bytes - held_bytes
            self.states[key] = packed_state(numbers, state.batches, state.batches_bytes)
        return True

    cdef bint snapshot(self, const _Record *record, tuple key) except -1:
        cdef const uint8_t *at = record.value + 2
        cdef const uint8_t *end = record.value + record.value_bytes
        cdef const uint8_t *batches
        cdef const uint8_t *run
        cdef PyObject *packed
        cdef Py_ssize_t count, run_bytes
        cdef int32_t complete_count
        cdef _State state
        cdef StateNumbers *numbers = &state.numbers
        if end - at < 38:
            return False
        batches = _batches(at + 36, end, &count, &complete_count)
        if batches == NULL:
            return False
        packed = PyDict_GetItemWithError(self.states, key)
        if packed is NULL:
            _clear_state(&state)
        elif not _open_state(&state, <bytes> packed):
            return False
        numbers.snapshot_epoch = get32(at)
        numbers.state_epoch = get32(at + 4)
        numbers.leader_epoch = get32(at + 8)
        numbers.leader_epoch_max = max(numbers.leader_epoch_max, numbers.leader_epoch)
        numbers.start_offset = get64(at + 12)
        numbers.create_timestamp = get64(at + 20)
        numbers.write_timestamp = get64(at + 28)
        numbers.complete_count = complete_count
        numbers.updates = numbers.update_bytes = 0
        numbers.last_write_ms = record.timestamp_ms
        numbers.first_needed_offset = record.log_offset
        run = _normalise(batches, count, _floor(numbers.start_offset), &run_bytes)
        if run_bytes < 0:
            return False
        self.install(key, packed_state(numbers, run, run_bytes))
        return True

    cdef int install(self, tuple key, bytes packed) except -1:
        share_partition = SharePartitionKey(*key)
        # A key of text, bytes and a number forms no cycle, so the garbage collector need not visit millions of keys.
        PyObject_GC_UnTrack(<PyObject *> share_partition)
        self.shard.install_state(share_partition, packed)
        return 0


cdef int _set_record_fields(logged, _Record *record) except -1:
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


cdef inline int _varint(const uint8_t *at, const uint8_t *end, int64_t *value) noexcept:
    """Read a zig-zag varint; return its size in bytes, 0 if it is truncated or too long."""
    cdef uint64_t found = 0
    cdef int i
    for i in range(10):
        if at + i >= end:
            return 0
        found |= <uint64_t> (at[i] & 0x7F) << 7 * i
        if at[i] < 0x80:
            value[0] = <int64_t> (found >> 1) ^ -<int64_t> (found & 1)
            return i + 1
    return 0


cdef inline const uint8_t *_field(
    const uint8_t *at, const uint8_t *end, const uint8_t **field, Py_ssize_t *size
) noexcept:
    """Read a length-prefixed field; return its end, or NULL if it is invalid."""
    cdef int64_t length = 0
    cdef int used = _varint(at, end, &length)
    if not used or length < -1 or length > end - at - used:
        return NULL
    field[0] = NULL if length < 0 else at + used
    size[0] = 0 if length < 0 else <Py_ssize_t> length
    return at + used + size[0]


cdef inline bint _is_ascii(const uint8_t *at, Py_ssize_t size) noexcept:
    while size and at[size - 1] < 0x80:
        size -= 1
    return not size


cdef const uint8_t *_read_record(
    const uint8_t *at, const uint8_t *end, int64_t base_offset, int64_t base_ms, _Record *record
) noexcept:
    """Read a record; return its end, or NULL if it is invalid."""
    cdef int64_t number = 0
    cdef const uint8_t *field
    cdef Py_ssize_t size
    cdef int used = _varint(at, end, &number)
    if not used or number < 1 or number > end - at - used:
        return NULL
    # Skip the attributes byte, which Kafka does not use.
    at += used + 1
    end = at + number - 1
    used = _varint(at, end, &number)
    if not used:
        return NULL
    record.timestamp_ms = base_ms + number
    at += used
    used = _varint(at, end, &number)
    if not used:
        return NULL
    record.log_offset = base_offset + number
    at = _field(at + used, end, &record.key, &record.key_bytes)
    if at == NULL:
        return NULL
    at = _field(at, end, &record.value, &record.value_bytes)
    if at == NULL:
        return NULL
    used = _varint(at, end, &number)
    if not used or number < 0:
        return NULL
    at += used
    # Headers are validated but ignored: the reader of the log has already checked the owner epoch in them.
    while number:
        at = _field(at, end, &field, &size)
        if at == NULL or field == NULL or not _is_ascii(field, size):
            return NULL
        at = _field(at, end, &field, &size)
        if at == NULL:
            return NULL
        number -= 1
    return at if at == end else NULL


cdef bint _is_plain(const uint8_t *begin, Py_ssize_t size) except -1:
    """Return whether a batch is valid, of version 2, and has no compression, transaction or broker timestamp."""
    cdef const uint8_t *at = begin + HEADER_BYTES
    cdef const uint8_t *end = begin + size
    cdef int32_t count = get32(begin + 57)
    cdef _Record record
    if begin[MAGIC_AT] != 2 or get16(begin + COVERED_AT) or get32(begin + 23) < 0:
        return False
    covered = PyBytes_FromStringAndSize(<const char *> begin + COVERED_AT, size - COVERED_AT)
    if <uint32_t> crc32c(covered) != <uint32_t> get32(begin + CRC_AT):
        return False
    # With these bounds, the sums of base values and deltas cannot overflow.
    if not 0 <= get64(begin) < NUMBER_MAX or not -NUMBER_MAX < get64(begin + 27) < NUMBER_MAX:
        return False
    while at < end:
        at = _read_record(at, end, 0, 0, &record)
        if at == NULL or not -NUMBER_MAX < record.timestamp_ms < NUMBER_MAX:
            return False
        if not -NUMBER_MAX < record.log_offset < NUMBER_MAX:
            return False
        count -= 1
    return count == 0


cdef const uint8_t *_batches(
    const uint8_t *at, const uint8_t *end, Py_ssize_t *count, int32_t *complete_count
) noexcept:
    """Read the state batches and tagged fields at the end of a value; NULL if a tagged field is unknown."""
    cdef uint32_t length = 0
    cdef const uint8_t *begin
    cdef Py_ssize_t i
    cdef int used = get_uvarint(at, end, &length)
    if not used or not length:
        return NULL
    begin = at + used
    count[0] = length - 1
    if <int64_t> count[0] * BATCH_BYTES >= end - begin:
        return NULL
    at = begin + count[0] * BATCH_BYTES
    for i in range(count[0]):
        if begin[i * BATCH_BYTES + 19]:
            return NULL
    complete_count[0] = -1
    if end - at == 1 and not at[0]:
        return begin
    if end - at == 7 and at[0] == 1 and not at[1] and at[2] == 4:
        complete_count[0] = get32(at + 3)
        return begin
    return NULL
