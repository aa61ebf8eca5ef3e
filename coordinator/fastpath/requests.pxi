# Split fast-path writes into operations of shards, and combine their results.


@cython.final
@cython.no_gc
cdef class _Partition:
    """A cached share-partition: its key and the queue of its shard."""

    cdef object key
    cdef OperationQueue queue
    cdef int32_t number
    # The number of the last request that named this share-partition, and its index there, to detect a repetition.
    cdef uint64_t request_number
    cdef Py_ssize_t place


@cython.final
@cython.no_gc
cdef class _Topic:
    """A cached topic of one group, with the partitions that requests have named."""

    cdef object group_id
    cdef bytes topic_id
    # The beginning of the key of ShareUpdate records.
    cdef bytes record_key
    cdef dict partitions
    # The number of the last request that named this topic, and its index among the topics of that request.
    cdef uint64_t request_number
    cdef Py_ssize_t place

    def __cinit__(self, group_id, bytes topic_id):
        group = group_id.encode()
        self.group_id = group_id
        self.topic_id = topic_id
        self.record_key = (<int> UPDATE_TYPE).to_bytes(2, "big") + len(group).to_bytes(2, "big") + group + topic_id
        self.partitions = {}


@cython.final
@cython.no_gc
cdef class _Request:
    """A write request in progress. The response is sent when all share-partitions have a result."""

    cdef FastPathExecutor owner
    cdef object origin
    # A function that is called with the response.
    cdef object respond
    cdef double received_s
    cdef Py_ssize_t missing
    cdef int version
    # The encoded response without errors, which is sent if every share-partition is stored.
    cdef bytes answer
    # Results of refused share-partitions: index in the response -> PartitionResult.
    cdef dict refused

    cdef int put(self, int place, object result) except -1:
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
            answer, error_code = _add_refusals(answer, self.version, self.refused)
        self.respond(answer)
        return self.owner.count(WRITE_KEY, error_code, <double> self.owner.time() - self.received_s)


@cython.final
@cython.no_gc
cdef class WriteOperation(QueuedOperation):
    """The `Operation` of one share-partition within a fast-path write."""

    cdef _Request request
    # Index of its result in the response.
    cdef int place
    # The queue of its shard.
    cdef OperationQueue queue
    cdef readonly object key
    cdef bytes record_key
    cdef bytes frame
    # The result, or None if all entries are stored.
    cdef public object decided
    cdef int32_t partition
    cdef _Entry entry
    # The state batches of all entries for the same share-partition; None with one entry, which refers to `frame`.
    cdef bytearray merged

    @property
    def decide(self):
        return WRITE_STATE

    @property
    def origin(self):
        return self.request.origin

    @property
    def received_s(self):
        return self.request.received_s

    @property
    def unit(self):
        """The merged entries as a PartitionData object, for the Python reference."""
        cdef Py_ssize_t at = self.entry.batches_at
        source = self.frame if self.merged is None else self.merged
        return (write_api.PartitionData(
            self.partition,
            self.entry.state_epoch,
            self.entry.leader_epoch,
            self.entry.start_offset,
            self.entry.complete_count,
            bytes(source[at : at + self.entry.batch_count * BATCH_BYTES]),
        ),)

    cdef bint add(self, const _Entry *entry, Py_ssize_t batches_max) except -1:
        """Merge an entry, as `decisions.merge_writes` does.

        Return False if its epochs differ, or if the operation then has more than `batches_max` state batches.
        """
        cdef _Entry *entries = &self.entry
        if entry.state_epoch != entries.state_epoch or entry.leader_epoch != entries.leader_epoch:
            return False
        if self.merged is None:
            self.merged = bytearray(self.batches(entries))
            entries.batches_at = 0
        self.merged += self.batches(entry)
        entries.batch_count += entry.batch_count
        if entry.start_offset > entries.start_offset:
            entries.start_offset, entries.complete_count = entry.start_offset, entry.complete_count
        elif entry.start_offset == entries.start_offset:
            entries.complete_count = max(entries.complete_count, entry.complete_count)
        return entries.batch_count <= batches_max

    cdef bytes batches(self, const _Entry *entry):
        return self.frame[entry.batches_at : entry.batches_at + entry.batch_count * BATCH_BYTES]

    cpdef answer_decided(self):
        self.request.put(self.place, self.decided)

    def answer(self, result):
        self.request.put(self.place, result)

    def refuse(self, error_code, error_message):
        result = write_api.PartitionResult(self.partition, int(error_code), error_message)
        self.request.put(self.place, result)


@cython.final
cdef class FastPathExecutor:
    """Executes fast-path writes, and reads that memory can answer now.

    `queues` are the queues of the shards by state partition; `time` is the clock of the event loop. `counts` has the
    numbers of responses by (API key, first error code), and `durations` the histogram of each API. `topics` returns
    whether a topic exists; if it is None, every topic exists.
    """

    cdef list queues
    cdef object time
    cdef dict counts
    cdef dict durations
    cdef object topics
    # Cache: encoded group id -> topic id -> _Topic.
    cdef dict groups
    cdef Py_ssize_t cached_bytes
    # The share-partitions that the current request may still add to the cache, and whether it needs more of them.
    cdef Py_ssize_t additions_left
    cdef bint is_incomplete
    cdef uint64_t requests
    # Maximum numbers of topics and partitions in a request, of state batches that a write has for a partition, and of
    # bytes of state batches in the response of a Read. The Python code handles larger requests, and refuses them.
    cdef public Py_ssize_t elements_max
    cdef public Py_ssize_t batches_max
    cdef public int64_t response_bytes_max

    def __init__(self, list queues, time, counts, dict durations, topics):
        self.queues = queues
        self.time = time
        self.counts = <dict> counts
        self.durations = durations
        self.topics = topics
        self.groups = {}
        self.elements_max = ELEMENTS_MAX
        self.batches_max = 20_000
        self.response_bytes_max = RESPONSE_BYTES_MAX

    def try_execute(self, bytes frame, origin, respond, double received_s):
        """Execute a fast-path request and return True; for any other request, return False without any effect.

        If the request names too many share-partitions that are not in the cache, add some of them, for about a
        millisecond, and return None. The caller may then try again in another iteration of the event loop.

        `frame` begins with the request header. `respond` is called once with the response, including its size field.
        """
        if PyBytes_GET_SIZE(frame) < HEADER_BYTES_MIN:
            return False
        cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(frame)
        cdef const uint8_t *end = begin + PyBytes_GET_SIZE(frame)
        cdef const uint8_t *at
        cdef int api_key = get16(begin)
        if api_key != WRITE_KEY:
            return self.read(api_key, frame, respond, received_s)
        cdef _RequestBegin request_begin
        cdef _Topic topic
        cdef _Request request = _Request.__new__(_Request)
        cdef WriteOperation part
        # Parts are in the order in which the request first names their share-partitions. Results are grouped by
        # topic, and in the order of the parts within a topic.
        cdef list parts = [], topic_ids = [], rows = []
        at = self.open(begin, end, 1, &request_begin)
        if at == NULL:
            return False
        request.version = get16(begin + 2)
        group = PyBytes_FromStringAndSize(<const char *> request_begin.group, request_begin.group_bytes)
        for _ in range(request_begin.topics - 1):
            topic = None if end - at < 17 else self.topic(group, PyBytes_FromStringAndSize(<char *> at, 16))
            if topic is None:
                return False
            if topic.request_number != self.requests:
                topic.request_number = self.requests
                topic.place = len(rows)
                topic_ids.append(topic.topic_id)
                rows.append([])
            at = self.split_topic(
                topic, at + 16, end, frame, begin, request, &request_begin.elements_left,
                <list> rows[topic.place], parts
            )
            if at == NULL:
                return None if self.is_incomplete else False
        if end - at != 1 or at[0]:
            return False
        request.answer = _success_response(begin + 4, topic_ids, rows)
        request.owner = self
        request.origin = origin
        request.respond = respond
        request.received_s = received_s
        request.missing = len(parts)
        for part in parts:
            part.queue.submit(part)
        return True

    cdef bint read(self, int api_key, bytes frame, respond, double received_s) except -1:
        """Respond to a read if memory can answer it now; return False for any other request."""
        answer = None
        if api_key == READ_KEY or api_key == SUMMARY_KEY:
            answer = read_states(self, api_key, frame)
        if answer is None:
            return False
        respond(answer)
        self.count(api_key, 0, <double> self.time() - received_s)
        return True

    cdef int count(self, int api_key, int error_code, double seconds) except -1:
        """Count a response and its duration, as `Metrics.record_request` does."""
        key = WRITE_WITHOUT_ERROR if api_key == WRITE_KEY and not error_code else (api_key, error_code)
        cdef PyObject *before = PyDict_GetItemWithError(self.counts, key)
        self.counts[key] = 1 if before is NULL else <object> before + 1
        (<Histogram> self.durations[api_key]).add(seconds)
        return 0

    cdef const uint8_t *open(
        self, const uint8_t *begin, const uint8_t *end, int version_max, _RequestBegin *request_begin
    ) except? NULL:
        """Parse the header, the group id and the number of topics; return the end, NULL if it is no fast-path request."""
        cdef const uint8_t *at = begin
        cdef uint32_t size
        cdef int used
        if not 0 <= get16(at + 2) <= version_max or get16(at + 8) < -1:
            return NULL
        at += 10 + max(get16(at + 8), 0)
        # The header must have no tagged fields, and a group id must follow.
        if end - at < 2 or at[0]:
            return NULL
        at += 1
        used = get_uvarint(at, end, &size)
        at += used
        if not used or not 1 < size <= GROUP_BYTES_MAX + 1 or end - at < <Py_ssize_t> size:
            return NULL
        request_begin.group, request_begin.group_bytes = at, size - 1
        at += size - 1
        used = get_uvarint(at, end, &request_begin.topics)
        request_begin.elements_left = self.elements_max - (<int64_t> request_begin.topics - 1)
        if not used or request_begin.topics < 2 or request_begin.elements_left < 0:
            return NULL
        self.requests += 1
        self.additions_left, self.is_incomplete = ADDED_IN_STEP, False
        if self.cached_bytes > CACHE_BYTES_MAX:
            self.groups.clear()
            self.cached_bytes = 0
        return at + used

    cdef const uint8_t *split_topic(
        self, _Topic topic, const uint8_t *at, const uint8_t *end, bytes frame, const uint8_t *frame_begin,
        _Request request, int64_t *elements_left, list row, list parts
    ) except? NULL:
        """Create the parts of one topic; return the end of its entries, NULL if it is not a fast-path write."""
        cdef Py_ssize_t fixed_bytes = 20 if request.version == 0 else 24
        cdef Py_ssize_t batch
        cdef uint32_t partitions, batches
        cdef int used = get_uvarint(at, end, &partitions)
        cdef _Entry entry
        cdef _Partition named
        cdef WriteOperation part
        if not used or partitions < 2:
            return NULL
        elements_left[0] -= partitions - 1
        if elements_left[0] < 0:
            return NULL
        at += used
        for _ in range(partitions - 1):
            if end - at < fixed_bytes + 1:
                return NULL
            named = self.partition(topic, get32(at))
            if named is None:
                return NULL
            entry.state_epoch = get32(at + 4)
            entry.leader_epoch = get32(at + 8)
            entry.start_offset = get64(at + 12)
            entry.complete_count = NO_COMPLETE_COUNT if request.version == 0 else get32(at + 20)
            at += fixed_bytes
            used = get_uvarint(at, end, &batches)
            at += used
            if not used or not 0 < batches <= self.batches_max + 1:
                return NULL
            if end - at <= <int64_t> (batches - 1) * BATCH_BYTES:
                return NULL
            entry.batches_at = at - frame_begin
            entry.batch_count = batches - 1
            # Neither a batch nor the partition may have tagged fields.
            for batch in range(entry.batch_count):
                if at[19]:
                    return NULL
                at += BATCH_BYTES
            if at[0]:
                return NULL
            at += 1
            if named.request_number == self.requests:
                if not (<WriteOperation> parts[named.place]).add(&entry, self.batches_max):
                    return NULL
                continue
            named.request_number = self.requests
            named.place = len(parts)
            part = WriteOperation.__new__(WriteOperation)
            part.request = request
            part.key = named.key
            part.queue = named.queue
            part.writes = True
            part.record_key = topic.record_key
            part.frame = frame
            part.partition = named.number
            part.entry = entry
            parts.append(part)
            row.append(part)
        if at >= end or at[0]:
            return NULL
        return at + 1

    cdef _Topic topic(self, bytes group, bytes topic_id):
        """Return a topic of a group from the cache, or add it; None if the group id is not UTF-8."""
        cdef PyObject *topics = PyDict_GetItemWithError(self.groups, group)
        cdef PyObject *topic = NULL if topics is NULL else PyDict_GetItemWithError(<dict> topics, topic_id)
        if topic is not NULL:
            return <_Topic> topic
        try:
            made = _Topic(group.decode(), topic_id)
        except UnicodeDecodeError:
            return None
        self.groups.setdefault(group, {})[topic_id] = made
        # The cache contains the group id three times: encoded, as text, and in the record key.
        self.cached_bytes += TOPIC_BYTES + 3 * len(group)
        return made

    cdef _Partition partition(self, _Topic topic, int32_t number):
        """Return a partition of a topic from the cache, or add it; None if that is not possible now."""
        partition = number
        cdef PyObject *known = PyDict_GetItemWithError(topic.partitions, partition)
        if known is not NULL:
            return <_Partition> known
        if self.cached_bytes > CACHE_BYTES_MAX:
            # The next request clears the cache.
            return None
        if not self.additions_left:
            self.is_incomplete = True
            return None
        self.additions_left -= 1
        cdef _Partition made = _Partition.__new__(_Partition)
        made.number = number
        made.key = SharePartitionKey(topic.group_id, topic.topic_id, partition)
        made.queue = self.queues[state_partition(made.key, len(self.queues))]
        topic.partitions[partition] = made
        self.cached_bytes += PARTITION_BYTES
        return made
