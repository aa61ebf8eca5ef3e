# Answer read requests from the packed states of shards.

cdef enum:
    # Partition, leader epoch and tagged fields in a request.
    REQUESTED_BYTES = 9
    # A result without state batches: Read, Summary version 0 and Summary version 1.
    READ_BYTES = 20
    SUMMARY_BYTES = 24
    COUNTED_SUMMARY_BYTES = 28


cdef bytes read_states(FastPathExecutor requests, int api_key, bytes frame):
    """Return the response to a Read or a Summary, with its size field.

    The result is None if a share-partition cannot be answered from memory now, if its result would be an error or
    require a record, or if the request names a topic or a share-partition twice. The states do not change.
    """
    cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(frame)
    cdef const uint8_t *end = begin + PyBytes_GET_SIZE(frame)
    cdef const uint8_t *at
    cdef const uint8_t *topics_at
    cdef uint32_t partitions
    cdef int64_t batches_bytes = 0
    cdef Py_ssize_t size
    cdef int used
    cdef _RequestBegin request_begin
    cdef _Topic topic
    cdef bytes group, packed
    cdef list states = []
    at = topics_at = requests.open(begin, end, 0 if api_key == READ_KEY else 1, &request_begin)
    if at == NULL:
        return None
    group = PyBytes_FromStringAndSize(<const char *> request_begin.group, request_begin.group_bytes)
    size = 10 + uvarint_bytes(request_begin.topics)
    for _ in range(request_begin.topics - 1):
        if end - at < 17:
            return None
        topic = requests.topic(group, PyBytes_FromStringAndSize(<const char *> at, 16))
        if topic is None or topic.request_number == requests.requests:
            return None
        topic.request_number = requests.requests
        used = get_uvarint(at + 16, end, &partitions)
        at += 16 + used
        if not used or partitions < 2:
            return None
        request_begin.elements_left -= partitions - 1
        if request_begin.elements_left < 0:
            return None
        size += 17 + uvarint_bytes(partitions)
        for _ in range(partitions - 1):
            packed = None if end - at < REQUESTED_BYTES or at[8] else _state_to_read(requests, topic, api_key, at)
            if packed is None:
                return None
            states.append(packed)
            size += _result_bytes(api_key, get16(begin + 2), packed)
            batches_bytes += PyBytes_GET_SIZE(packed) - <Py_ssize_t> sizeof(StateNumbers)
            at += REQUESTED_BYTES
        if at >= end or at[0]:
            return None
        at += 1
    if end - at != 1 or at[0] or (api_key == READ_KEY and batches_bytes >= requests.response_bytes_max):
        return None
    return _read_response(api_key, begin, topics_at, request_begin.topics, size, states)


cdef bytes _state_to_read(FastPathExecutor requests, _Topic topic, int api_key, const uint8_t *asked):
    """Return the packed state of a share-partition if a read returns it without a record; None otherwise."""
    cdef _Partition named = requests.partition(topic, get32(asked))
    cdef StateNumbers numbers
    if named is None or named.number < 0 or named.request_number == requests.requests:
        return None
    named.request_number = requests.requests
    cdef bytes packed = named.queue.state_to_read(named.key)
    if packed is None or not _topic_exists(requests.topics, named.key):
        return None
    memcpy(&numbers, PyBytes_AS_STRING(packed), sizeof(StateNumbers))
    if numbers.unreadable_bytes >= 0:
        return None
    # A Read with another leader epoch writes a record or is refused.
    if api_key == READ_KEY and (get32(asked + 4) != numbers.leader_epoch_max or numbers.leader_epoch_max < 0):
        return None
    return packed
