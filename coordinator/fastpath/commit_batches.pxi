# Commit batches of shards: decide, apply, append, and answer when the append is over.


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class _CommitBatch:
    """What a turn has come to so far; see `commit_batch.CommitBatch`."""

    cdef readonly object now_ms
    cdef readonly bint accepts_writes
    cdef readonly list records
    cdef readonly list encoded
    cdef readonly list units
    cdef readonly Py_ssize_t append_bytes
    # What the fast-path writes of a turn have in common.
    cdef dict states
    cdef object topics
    cdef int64_t updates_max
    cdef int64_t update_bytes_min
    cdef int64_t live_bytes
    cdef int64_t record_bytes_max

    def add(self, records, list encoded, *, is_unit):
        if is_unit and len(encoded) > 1:
            self.units.append((len(self.records), len(self.records) + len(encoded)))
        self.records.extend(records)
        self.encoded.extend(encoded)
        for key, value in encoded:
            self.append_bytes += len(key) + (0 if value is None else len(value))


@cython.final
cdef class FastPathBatches:
    """Takes the turns that begin with a fast-path write.

    `topics` is asked whether it knows a topic, unless it is None. What was received
    more than `request_age_max_s` before is too old.
    """

    # The status of a shard that takes its turn.
    cdef object active
    cdef object topics
    cdef double request_age_max_s
    # Of one append; the bytes are exceeded by its last operation at most.
    cdef Py_ssize_t operations_max
    cdef Py_ssize_t bytes_max
    cdef object now_ms
    cdef double now_s
    cdef bint accepts_writes
    cdef int64_t record_bytes_max
    # The journal's: appends that wait, and the end of each state partition. None: another log, or it refuses.
    cdef list pending
    cdef list ends
    # Fast-path writes that were decided since `begin`.
    cdef readonly Py_ssize_t taken

    def __init__(
        self, active, topics, double request_age_max_s, Py_ssize_t operations_max, Py_ssize_t bytes_max
    ):
        self.active = active
        self.topics = topics
        self.request_age_max_s = request_age_max_s
        self.operations_max = operations_max
        self.bytes_max = bytes_max

    def begin(self, now_ms, double now_s, bint accepts_writes, int64_t record_bytes_max, tuple gathered):
        """Take turns at this time; the log may take no writes, and takes no records that are larger.

        `gathered` is where appends go, if not to the log.
        """
        self.pending, self.ends = gathered if gathered is not None else (None, None)
        self.now_ms = now_ms
        self.now_s = now_s
        self.accepts_writes = accepts_writes
        self.record_bytes_max = record_bytes_max
        self.taken = 0

    def process_queues(self, list queues, failed):
        """Do what `CommitScheduler._process_queues` does: take the turns that are due; `failed` is told of one that raised."""
        for queue in queues:
            try:
                if not self.process_batch(queue):
                    queue.process_batch()
            except Exception as failure:
                failed(queue, failure)
        give_space_back()

    cdef bint process_batch(self, ShardFields turns) except -1:
        """Do what `ShardQueue.process_batch()` does, and return True; or return False, and nothing has happened."""
        cdef Py_ssize_t done = 0, last
        cdef _CommitBatch batch
        cdef Append append
        cdef list operations = turns._queue
        if turns.status is not self.active or turns._records_in_flight is not None or not self.accepts_writes:
            return False
        if not operations:
            return False
        turns._batch_scheduled = False
        turns._queue = []
        if turns._queued_indexed:
            turns._clear_queued_keys()
        batch = _CommitBatch.__new__(_CommitBatch)
        batch.now_ms = self.now_ms
        batch.accepts_writes = True
        batch.records = []
        batch.encoded = []
        batch.units = []
        last = min(self.operations_max, <Py_ssize_t> len(operations))
        try:
            while True:
                self.take_writes(turns, batch, operations, &done, last)
                if done == last or batch.append_bytes >= self.bytes_max:
                    break
                turns._process_operation(batch, operations[done])
                done += 1
        except BaseException:
            turns._undecided = operations[done:]
            raise
        if done < len(operations):
            turns._put_back(operations[done:])
        if not batch.records:
            if turns._awaiting:
                turns._append(batch)
            elif turns._queue:
                turns._schedule_batch()
            return True
        if self.pending is None:
            turns._append(batch)
            return True
        turns._records_in_flight = batch.records
        turns._append_started_s = self.now_s
        turns._append_bytes = batch.append_bytes
        append = Append.__new__(Append)
        append.fill(
            turns.state_partition, self.ends[turns.state_partition], self.now_ms, batch.encoded, turns._callback
        )
        self.pending.append(append)
        return True

    cdef int take_writes(self, ShardFields turns, _CommitBatch batch, list operations, Py_ssize_t *done, Py_ssize_t last) except -1:
        """Decide and apply the operations from a place up to another, as long as they are fast-path writes, and move it on.

        For each there is one more of `records` (None: an update, which needs no settling by itself), of `encoded` and
        of those who wait.
        """
        cdef Py_ssize_t begin = done[0]
        cdef WriteOperation part
        cdef object policy
        cdef object origin
        cdef double received_s_min = self.now_s - self.request_age_max_s
        cdef list waiting = turns._awaiting
        shard = turns.shard
        policy = shard._policy
        batch.states = shard._states
        batch.topics = self.topics
        batch.updates_max, batch.update_bytes_min = policy.updates_max, policy.update_bytes_min
        batch.live_bytes = 0
        batch.record_bytes_max = self.record_bytes_max
        try:
            while done[0] < last and batch.append_bytes < self.bytes_max:
                if type(operations[done[0]]) is not WriteOperation:
                    break
                part = <WriteOperation> operations[done[0]]
                origin = part.request.origin
                if part.request.received_s < received_s_min or (origin is not None and origin.disconnected):
                    break
                if not _write(batch, part):
                    break
                waiting.append((part, STORED))
                done[0] += 1
        finally:
            if batch.live_bytes:
                shard.live_bytes += batch.live_bytes
            self.taken += done[0] - begin
        return 0


@cython.final
cdef class AppendCallback:
    """What the log calls when an append of `turns` is over."""

    cdef ShardFields turns
    cdef object active
    cdef object time
    cdef Histogram records
    cdef Histogram seconds
    cdef Histogram bytes

    def __init__(self, turns, active, time, Histogram records, Histogram seconds, Histogram bytes):
        self.turns = turns
        self.active = active
        self.time = time
        self.records, self.seconds, self.bytes = records, seconds, bytes

    def __call__(self, base_offset, error):
        """Do what `ShardQueue._on_append_done` does."""
        self.over(base_offset, error)

    cdef int over(self, base_offset, error) except -1:
        cdef double now_s
        cdef ShardFields turns = self.turns
        cdef list records = turns._records_in_flight
        cdef list waiting = turns._awaiting
        if (
            error is not None
            or not records
            or turns.status is not self.active
            or turns._append_finished is not None
            or base_offset != turns._next_log_offset
        ):
            turns._on_append_done(base_offset, error)
            return 0
        turns._records_in_flight = None
        turns._awaiting = []
        if turns._in_flight_keys:
            turns._clear_in_flight_keys()
        now_s = self.time()
        self.seconds.count(now_s - turns._append_started_s)
        self.records.count(len(records))
        self.bytes.count(turns._append_bytes)
        for record in records:
            if record is not None:
                if not turns._settle_or_recover(records, base_offset, waiting):
                    return 0
                break
        else:
            turns._reads_come = False
            turns._next_log_offset += len(records)
            turns.shard.mark_updates_durable(turns._next_log_offset)
        _answer_all(waiting, now_s)
        if turns._queue:
            turns._schedule_batch()
        return 0


cdef bint _write(_CommitBatch batch, WriteOperation part) except -1:
    """Decide a write, apply it and add its records to the turn.

    Or return False, when any of its entries is not accepted: then nothing has happened, and the definition says why.
    """
    cdef PyObject *packed = PyDict_GetItemWithError(batch.states, part.key)
    cdef _State state
    cdef _Entry *entries
    cdef bytes record_key
    cdef Py_ssize_t place, first = len(batch.records), before_bytes = batch.append_bytes, held_bytes
    if packed is NULL or part.partition < 0 or not _knows(batch.topics, part):
        return False
    memcpy(&state.numbers, PyBytes_AS_STRING(<object> packed), sizeof(StateNumbers))
    if state.numbers.unreadable_bytes >= 0:
        return False
    state.space = NO_SPACE
    state.batches = <const uint8_t *> PyBytes_AS_STRING(<object> packed) + sizeof(StateNumbers)
    held_bytes = state.batches_bytes = PyBytes_GET_SIZE(<object> packed) - sizeof(StateNumbers)
    record_key = _record_key(part)
    if not _fold(batch, part, record_key, &part.entry, &state):
        return False
    if part.more is not None:
        entries = <_Entry *> PyByteArray_AS_STRING(part.more)
        for place in range(PyByteArray_GET_SIZE(part.more) // <Py_ssize_t> sizeof(_Entry)):
            if not _fold(batch, part, record_key, &entries[place], &state):
                del batch.records[first:], batch.encoded[first:]
                batch.append_bytes = before_bytes
                return False
        if batch.append_bytes - before_bytes + UNIT_RECORD_BYTES * (len(batch.records) - first - 1) > batch.record_bytes_max:
            del batch.records[first:], batch.encoded[first:]
            batch.append_bytes = before_bytes
            return False
        batch.units.append((first, len(batch.records)))
    batch.live_bytes += state.batches_bytes - held_bytes
    batch.states[part.key] = packed_state(&state.numbers, state.batches, state.batches_bytes)
    return True


cdef bint _knows(topics, WriteOperation part) except -1:
    """Tell whether the cluster has a topic; what fails to tell is asked again by the definition, which refuses."""
    try:
        return topics is None or topics.contains(part.key.topic_id, part.partition)
    except Exception:
        return False


cdef bint _is_accepted(const _Entry *entry, const StateNumbers *numbers) noexcept:
    """Tell whether an entry is accepted, of numbers that brokers send: `decisions.decide_write` refuses the others."""
    if entry.leader_epoch < numbers.leader_epoch_max or entry.leader_epoch < 0 or numbers.leader_epoch < 0:
        return False
    if entry.state_epoch < numbers.state_epoch or entry.state_epoch < 0:
        return False
    if numbers.leader_epoch_max < numbers.leader_epoch or numbers.snapshot_epoch == INT32_MAX:
        return False
    return entry.start_offset >= NO_START_OFFSET and numbers.start_offset >= NO_START_OFFSET


cdef bint _fold(_CommitBatch batch, WriteOperation part, bytes record_key, const _Entry *entry, _State *state) except -1:
    """Add the record of one entry to the turn, and move the state by it; False: it is not accepted."""
    cdef StateNumbers *numbers = &state.numbers
    cdef const uint8_t *written
    cdef Py_ssize_t written_bytes, held_bytes = state.batches_bytes
    cdef int64_t floor
    cdef bint is_due
    cdef bytes value
    if not _is_accepted(entry, numbers):
        return False
    if entry.start_offset > numbers.start_offset:
        numbers.start_offset = entry.start_offset
        numbers.complete_count = entry.complete_count
    elif entry.start_offset == numbers.start_offset:
        numbers.complete_count = max(entry.complete_count, numbers.complete_count)
    floor = _floor(numbers.start_offset)
    written = _normalise(
        <const uint8_t *> PyBytes_AS_STRING(part.frame) + entry.batches_at, entry.batch_count, floor, &written_bytes
    )
    if written_bytes < 0:
        return False
    _combine(state, written, written_bytes, floor)
    is_due = numbers.updates >= batch.updates_max or numbers.update_bytes > max(
        batch.update_bytes_min, OVERHEAD_BYTES + held_bytes
    )
    numbers.last_write_ms = batch.now_ms
    if is_due:
        numbers.snapshot_epoch += 1
        numbers.create_timestamp = numbers.write_timestamp = batch.now_ms
        numbers.updates = numbers.update_bytes = 0
        record = StateRecord(part.key, ShareSnapshotValue(
            numbers.snapshot_epoch, numbers.state_epoch, numbers.leader_epoch, numbers.start_offset, batch.now_ms,
            batch.now_ms, PyBytes_FromStringAndSize(<const char *> state.batches, state.batches_bytes),
            numbers.complete_count,
            numbers.leader_epoch_max if numbers.leader_epoch_max > numbers.leader_epoch else -1
        ))
        record_key, value = encode_record(record)
    else:
        record = None
        numbers.updates += 1
        numbers.update_bytes += OVERHEAD_BYTES + written_bytes
        value = _update(
            numbers.snapshot_epoch, numbers.leader_epoch, numbers.start_offset, numbers.complete_count,
            written, written_bytes
        )
    if PyBytes_GET_SIZE(record_key) + PyBytes_GET_SIZE(value) > batch.record_bytes_max:
        return False
    batch.records.append(record)
    batch.encoded.append((record_key, value))
    batch.append_bytes += PyBytes_GET_SIZE(record_key) + PyBytes_GET_SIZE(value)
    return True


cdef int _combine(_State *state, const uint8_t *written, Py_ssize_t written_bytes, int64_t floor) except -1:
    """Lay a run over the batches of a state; what comes of it stands in scratch space, or is what was there."""
    cdef Py_ssize_t begin_bytes
    cdef uint8_t *space
    cdef uint8_t *end
    cdef const uint8_t *result
    cdef int other_space = EVEN_SPACE if state.space != EVEN_SPACE else ODD_SPACE
    if state.space != NO_SPACE and written_bytes and state.batches_bytes:
        if get64(state.batches + state.batches_bytes - 12) < get64(written):
            # Behind what earlier entries of the same request left in scratch space: not a copy for each of them.
            begin_bytes = state.batches - _spaces[state.space]
            space = _scratch_memory(state.space, begin_bytes + state.batches_bytes + written_bytes)
            state.batches = space + begin_bytes
            end = _add_rest(
                space + begin_bytes, space + begin_bytes + state.batches_bytes, get64(written), get64(written + 8),
                _delivery_rank(written), written + BATCH_BYTES, written + written_bytes
            )
            state.batches_bytes = end - state.batches
            while state.batches < end and get64(state.batches + 8) < floor:
                state.batches += BATCH_BYTES
                state.batches_bytes -= BATCH_BYTES
            if get64(state.batches) < floor:
                put64(<uint8_t *> state.batches, floor)
            return 0
    result = _scratch_memory(other_space, 2 * (state.batches_bytes + written_bytes) + BATCH_BYTES)
    state.batches_bytes = _merge(state.batches, state.batches_bytes, written, written_bytes, floor, &result)
    if result != state.batches:
        state.batches = result
        state.space = other_space
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
    """Give the answers of (operation, result) pairs. What one of them raises is no other's fault."""
    cdef WriteOperation part
    for operation, result in waiting:
        try:
            if type(operation) is WriteOperation:
                part = <WriteOperation> operation
                part.request.put(part.place, result.answer if result is not STORED else None, now_s)
            else:
                operation.answer(result.answer)
        except Exception as failure:
            report_failure("answering an operation failed", failure)
    return 0
