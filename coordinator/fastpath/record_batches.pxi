# Encode record batches, and find the records in them.


cdef inline uint64_t _zigzag(int64_t value) noexcept:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


def encode_batch(
    int64_t base_offset, int64_t timestamp_ms, list records, tuple headers=(), int32_t leader_epoch=0,
    int64_t producer_id=-1, int producer_epoch=-1, int32_t base_sequence=0
):
    """Encode (key, value) records as one batch; see `protocol.record_batch.encode_batch`."""
    cdef Py_ssize_t count = len(records)
    cdef bytes tail = encode_headers(headers)
    cdef Py_ssize_t tail_bytes = PyBytes_GET_SIZE(tail)
    cdef Py_ssize_t i, size, covered_bytes = 40
    cdef Py_ssize_t key_bytes, value_bytes
    cdef uint8_t *out
    cdef uint8_t *begin
    if not count:
        raise ValueError("a batch needs at least one record")
    for i in range(count):
        key, value = <tuple?> records[i]
        size = _record_bytes(i, key, value) + tail_bytes
        covered_bytes += uvarint_bytes(_zigzag(size)) + size
    if covered_bytes + 9 > INT32_MAX:
        raise OverflowError(f"a batch of {covered_bytes + 21} bytes: its length does not fit into 31 bits")
    batch = PyBytes_FromStringAndSize(NULL, 21 + covered_bytes)
    begin = <uint8_t *> PyBytes_AS_STRING(batch)
    put64(begin, base_offset)
    put32(begin + 8, covered_bytes + 9)
    put32(begin + 12, leader_epoch)
    begin[16] = MAGIC
    out = begin + 21
    put16(out, 0)
    put32(out + 2, count - 1)
    put64(out + 6, timestamp_ms)
    put64(out + 14, timestamp_ms)
    put64(out + 22, producer_id)
    put16(out + 30, producer_epoch)
    put32(out + 32, base_sequence)
    put32(out + 36, count)
    out += 40
    for i in range(count):
        key, value = <tuple?> records[i]
        out += put_uvarint(out, _zigzag(_record_bytes(i, key, value) + tail_bytes))
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
        memcpy(out, PyBytes_AS_STRING(tail), tail_bytes)
        out += tail_bytes
    covered = PyBytes_FromStringAndSize(<const char *> begin + COVERED_AT, covered_bytes)
    put32(begin + CRC_AT, <int32_t> <uint32_t> crc32c(covered))
    return batch


cdef Py_ssize_t _record_bytes(Py_ssize_t index, bytes key, bytes value):
    """Return the size of a record without its length field and its headers."""
    # Attributes and timestamp delta are one zero byte each.
    cdef Py_ssize_t size = 2 + uvarint_bytes(_zigzag(index))
    size += uvarint_bytes(_zigzag(PyBytes_GET_SIZE(key))) + PyBytes_GET_SIZE(key)
    if value is None:
        return size + 1
    return size + uvarint_bytes(_zigzag(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value)


def record_starts(bytes data, list begins, list ends, list counts):
    """Return the positions of records as native 64-bit integers; see `coordinator.recovery.parse`.

    `counts[i]` records are between `begins[i]` and `ends[i]`. Returns None if they do not fill this space exactly.
    """
    cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef Py_ssize_t at, end, count
    cdef int64_t size = 0
    cdef int used
    cdef bytes starts = PyBytes_FromStringAndSize(NULL, sum(counts) * sizeof(int64_t))
    cdef int64_t *start = <int64_t *> PyBytes_AS_STRING(starts)
    for place in range(len(begins)):
        at, end, count = begins[place], ends[place], counts[place]
        for _ in range(count):
            used = _varint(begin + at, begin + end, &size)
            if not used or not 0 <= size <= end - at - used:
                return None
            start[0] = at
            start += 1
            at += used + size
        if at != end:
            return None
    return starts
