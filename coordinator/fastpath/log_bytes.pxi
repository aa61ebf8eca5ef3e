# Parse records and state batches from the bytes of the log.


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


cdef bint _is_plain(const uint8_t *begin, Py_ssize_t size) noexcept:
    """Return whether a batch is valid, of version 2, and has no compression, transaction or broker timestamp."""
    cdef const uint8_t *at = begin + HEADER_BYTES
    cdef const uint8_t *end = begin + size
    cdef int32_t count = get32(begin + 57)
    cdef _Record record
    if begin[MAGIC_AT] != 2 or get16(begin + COVERED_AT) or get32(begin + 23) < 0:
        return False
    if crc32c_of(begin + COVERED_AT, size - COVERED_AT, 0) != <uint32_t> get32(begin + CRC_AT):
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


cdef bytes _normalised(const uint8_t *batches, Py_ssize_t count, int64_t start_offset):
    """See `batches.normalise`."""
    cdef Py_ssize_t run_bytes
    cdef const uint8_t *run = _normalise(batches, count, _floor(start_offset), &run_bytes)
    if run_bytes < 0:
        return normalise(PyBytes_FromStringAndSize(<char *> batches, count * BATCH_BYTES), start_offset)
    return PyBytes_FromStringAndSize(<char *> run, run_bytes)


cdef bytes _combined(bytes current, const uint8_t *written, Py_ssize_t count, int64_t start_offset):
    """See `batches.combine`."""
    cdef const uint8_t *before = <const uint8_t *> PyBytes_AS_STRING(current)
    cdef Py_ssize_t run_bytes, size = PyBytes_GET_SIZE(current)
    cdef int64_t floor = _floor(start_offset)
    cdef const uint8_t *run = _normalise(written, count, floor, &run_bytes)
    cdef const uint8_t *result
    if run_bytes < 0:
        return combine(current, PyBytes_FromStringAndSize(<char *> written, count * BATCH_BYTES), start_offset)
    result = _scratch_memory(EVEN_SPACE, 2 * (size + run_bytes) + BATCH_BYTES)
    size = _merge(before, size, run, run_bytes, floor, &result)
    return current if result == before else PyBytes_FromStringAndSize(<char *> result, size)


make_crc_table()
