# Turns of shards: decide, apply, append, and answer when the append is over.


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
