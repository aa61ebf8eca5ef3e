# The write kernel: decide, apply and encode consecutive writes of one shard.


@cython.final
cdef class WriteKernel(WriteDecider):
    """Decides writes. `topics` returns whether a topic exists; if it is None, every topic exists.

    The Python reference decides writes that were received more than `request_age_max_s` ago.
    """

    cdef object topics
    cdef double request_age_max_s
    # Values that `begin` sets for a commit.
    cdef object now_ms
    cdef double received_s_min
    cdef int64_t record_bytes_max
    # Values that `decide_writes` sets for a shard.
    cdef dict states
    cdef int64_t updates_max
    cdef int64_t update_bytes_min
    cdef int64_t live_bytes
    # Writes that were decided since `begin`.
    cdef Py_ssize_t decided

    def __init__(self, topics, double request_age_max_s):
        self.topics = topics
        self.request_age_max_s = request_age_max_s

    def begin(self, now_ms, double now_s, int64_t record_bytes_max):
        """Set the time of the next decisions and the maximum record size of the log."""
        self.now_ms = now_ms
        self.received_s_min = now_s - self.request_age_max_s
        self.record_bytes_max = record_bytes_max
        self.decided = 0

    def end(self):
        """Return the number of writes decided since `begin`, and free unusually large scratch buffers."""
        free_large_scratch_buffers()
        return self.decided

    cpdef decide_writes(self, shard, CommitBatch batch, list waiting):
        """Decide and apply the next operations of a batch, until one is not a write or is not accepted.

        Each decided operation is added to `waiting`; its records are added to `batch.records` and `batch.encoded`.
        A record is None if it is an update, because nothing has to be done for it when it is durable.
        """
        cdef WriteOperation part
        cdef object origin
        cdef list operations = batch.operations
        cdef Py_ssize_t begin = batch.done
        if begin >= batch.last or type(operations[begin]) is not WriteOperation:
            return
        policy = shard._policy
        self.states = shard._states
        self.updates_max, self.update_bytes_min = policy.updates_max, policy.update_bytes_min
        self.live_bytes = 0
        try:
            while batch.done < batch.last and batch.append_bytes < batch.bytes_max and batch.work_left > 0:
                if type(operations[batch.done]) is not WriteOperation:
                    break
                part = <WriteOperation> operations[batch.done]
                origin = part.request.origin
                if part.request.received_s < self.received_s_min or (origin is not None and origin.disconnected):
                    break
                if not _write(self, batch, part):
                    break
                waiting.append(part)
                batch.done += 1
        finally:
            if self.live_bytes:
                shard.live_bytes += self.live_bytes
            self.decided += batch.done - begin


cdef bint _write(WriteKernel kernel, CommitBatch batch, WriteOperation part) except -1:
    """Decide a write, apply it and add its record to the batch; return True.

    If an entry is not accepted, return False without any effect; the Python reference then creates the error.
    """
    cdef PyObject *packed = PyDict_GetItemWithError(kernel.states, part.key)
    cdef _State state
    cdef Py_ssize_t held_bytes
    if packed is NULL or part.partition < 0 or not _topic_exists(kernel.topics, part.key):
        return False
    if not _open_state(&state, <bytes> packed):
        return False
    held_bytes = state.batches_bytes
    batch.work_left -= 1 + held_bytes // STATE_BYTES_PER_UNIT
    batch.work_left -= part.entry.batch_count * BATCH_BYTES // WRITTEN_BYTES_PER_UNIT
    if not _apply_entry(kernel, batch, part, &state):
        return False
    kernel.live_bytes += state.batches_bytes - held_bytes
    kernel.states[part.key] = packed_state(&state.numbers, state.batches, state.batches_bytes)
    return True


cdef bint _open_state(_State *state, bytes packed) noexcept:
    """Set the fields of a state, which refers to the packed state; return False if it is unreadable."""
    memcpy(&state.numbers, PyBytes_AS_STRING(packed), sizeof(StateNumbers))
    state.batches = <const uint8_t *> PyBytes_AS_STRING(packed) + sizeof(StateNumbers)
    state.batches_bytes = PyBytes_GET_SIZE(packed) - sizeof(StateNumbers)
    return state.numbers.unreadable_bytes == NOT_UNREADABLE


cdef void _clear_state(_State *state) noexcept:
    """Set the fields of a state without any record."""
    memset(state, 0, sizeof(_State))
    state.numbers.start_offset = NO_START_OFFSET
    state.numbers.unreadable_bytes = NOT_UNREADABLE


cdef void _count_update(StateNumbers *numbers, Py_ssize_t batches_bytes, int64_t timestamp_ms) noexcept:
    numbers.updates += 1
    numbers.update_bytes += OVERHEAD_BYTES + batches_bytes
    numbers.last_write_ms = timestamp_ms


cdef bint _topic_exists(topics, key) except -1:
    """Return whether the cluster has a topic; False after an exception, because the Python reference checks it again."""
    try:
        return topics is None or topics.contains(key.topic_id, key.partition)
    except Exception:
        return False


cdef bint _is_accepted(const _Entry *entry, const StateNumbers *numbers) noexcept:
    """Return whether an entry with valid numbers is accepted; `decisions.decide_write` decides all other entries."""
    if entry.leader_epoch < numbers.leader_epoch_max or entry.leader_epoch < 0 or numbers.leader_epoch < 0:
        return False
    if entry.state_epoch < numbers.state_epoch or entry.state_epoch < 0:
        return False
    if numbers.leader_epoch_max < numbers.leader_epoch or numbers.snapshot_epoch == INT32_MAX:
        return False
    return entry.start_offset >= NO_START_OFFSET and numbers.start_offset >= NO_START_OFFSET


cdef bint _apply_entry(WriteKernel kernel, CommitBatch batch, WriteOperation part, _State *state) except -1:
    """Apply the entry to the state and add its record to the batch; return False if the entry is not accepted."""
    cdef const _Entry *entry = &part.entry
    cdef StateNumbers *numbers = &state.numbers
    cdef const char *batches
    cdef const uint8_t *written
    cdef Py_ssize_t written_bytes, held_bytes = state.batches_bytes
    cdef bytes record_key, value
    if not _is_accepted(entry, numbers):
        return False
    if entry.start_offset > numbers.start_offset:
        numbers.start_offset = entry.start_offset
        numbers.complete_count = entry.complete_count
    elif entry.start_offset == numbers.start_offset:
        numbers.complete_count = max(entry.complete_count, numbers.complete_count)
    batches = PyBytes_AS_STRING(part.frame) if part.merged is None else PyByteArray_AS_STRING(part.merged)
    written = _normalise(
        <const uint8_t *> batches + entry.batches_at, entry.batch_count, _floor(numbers.start_offset), &written_bytes
    )
    if written_bytes < 0:
        return False
    _combine(state, written, written_bytes)
    if numbers.updates >= kernel.updates_max or numbers.update_bytes > max(
        kernel.update_bytes_min, OVERHEAD_BYTES + held_bytes
    ):
        numbers.snapshot_epoch += 1
        numbers.create_timestamp = numbers.write_timestamp = numbers.last_write_ms = kernel.now_ms
        numbers.updates = numbers.update_bytes = 0
        record = StateRecord(part.key, ShareSnapshotValue(
            numbers.snapshot_epoch, numbers.state_epoch, numbers.leader_epoch, numbers.start_offset, kernel.now_ms,
            kernel.now_ms, PyBytes_FromStringAndSize(<const char *> state.batches, state.batches_bytes),
            numbers.complete_count,
            numbers.leader_epoch_max if numbers.leader_epoch_max > numbers.leader_epoch else -1
        ))
        record_key, value = encode_record(record)
    else:
        record = None
        record_key = _record_key(part)
        _count_update(numbers, written_bytes, kernel.now_ms)
        value = _update(
            numbers.snapshot_epoch, numbers.leader_epoch, numbers.start_offset, numbers.complete_count,
            written, written_bytes
        )
    if PyBytes_GET_SIZE(record_key) + PyBytes_GET_SIZE(value) > kernel.record_bytes_max:
        return False
    batch.records.append(record)
    batch.encoded.append((record_key, value))
    batch.append_bytes += PyBytes_GET_SIZE(record_key) + PyBytes_GET_SIZE(value)
    return True


cdef int _combine(_State *state, const uint8_t *written, Py_ssize_t written_bytes) except -1:
    """Merge a run into the batches of a state; the result is in a scratch buffer or is the unchanged state."""
    cdef const uint8_t *result = _scratch_memory(
        MERGED_SCRATCH, 2 * (state.batches_bytes + written_bytes) + BATCH_BYTES
    )
    state.batches_bytes = _merge(
        state.batches, state.batches_bytes, written, written_bytes, _floor(state.numbers.start_offset), &result
    )
    state.batches = result
    return 0


cdef bytes _record_key(WriteOperation part):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(part.record_key)
    key = PyBytes_FromStringAndSize(NULL, size + 4)
    memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(part.record_key), size)
    put32(<uint8_t *> PyBytes_AS_STRING(key) + size, part.partition)
    return key


cdef bytes _update(
    int32_t snapshot_epoch, int32_t leader_epoch, int64_t start_offset, int32_t complete_count,
    const uint8_t *batches, Py_ssize_t batches_bytes
):
    """Encode the value of a ShareUpdate with its version."""
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
