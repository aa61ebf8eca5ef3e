# Encode the responses to fast-path requests.


cdef bytes _success_response(const uint8_t *correlation_id, list topic_ids, list rows):
    """Return the response in which all parts are stored, with its size field; set the result index of each part."""
    cdef WriteOperation part
    cdef list row
    cdef Py_ssize_t place
    cdef int result = 0
    cdef Py_ssize_t size = 10 + uvarint_bytes(len(rows) + 1)
    for row in rows:
        size += 17 + uvarint_bytes(len(row) + 1) + RESULT_BYTES * len(row)
    answer = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(answer)
    put32(out, size - 4)
    memcpy(out + 4, correlation_id, 4)
    out[8] = 0
    out += 9
    out += put_uvarint(out, len(rows) + 1)
    for place in range(len(rows)):
        row = <list> rows[place]
        memcpy(out, PyBytes_AS_STRING(topic_ids[place]), 16)
        out += 16
        out += put_uvarint(out, len(row) + 1)
        for part in row:
            part.place = result
            result += 1
            # No error, no message, no tagged fields.
            put32(out, part.partition)
            put32(out + 4, 0)
            out += RESULT_BYTES
        out[0] = 0
        out += 1
    out[0] = 0
    return answer


cdef tuple _add_refusals(bytes answer, int version, dict refused):
    """Return the response, including its size field, with the refused results, and the first error code."""
    response = write_api.decode_response(answer, RESPONSE_HEADER_BYTES, version)
    error_code = place = 0
    for topic in response.results:
        for index in range(len(topic.partitions)):
            result = refused.get(place)
            if result is not None:
                topic.partitions[index] = result
                error_code = error_code or result.error_code
            place += 1
    body = write_api.encode_response(response, version)
    size = RESPONSE_HEADER_BYTES - SIZE_BYTES + len(body)
    return size.to_bytes(4, "big") + answer[SIZE_BYTES:RESPONSE_HEADER_BYTES] + body, error_code


cdef Py_ssize_t _result_bytes(int api_key, int version, bytes packed) noexcept:
    cdef Py_ssize_t batches_bytes = PyBytes_GET_SIZE(packed) - <Py_ssize_t> sizeof(StateNumbers)
    if api_key == SUMMARY_KEY:
        return SUMMARY_BYTES if version == 0 else COUNTED_SUMMARY_BYTES
    return READ_BYTES + uvarint_bytes(batches_bytes // BATCH_BYTES + 1) + batches_bytes


cdef bytes _read_response(
    int api_key, const uint8_t *begin, const uint8_t *at, uint32_t topics, Py_ssize_t size, list states
):
    """Encode a response of `size` bytes; `at` is the position of the topics in a request that was validated."""
    cdef uint32_t partitions
    cdef Py_ssize_t place = 0
    cdef int version = get16(begin + 2)
    answer = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(answer)
    put32(out, size - SIZE_BYTES)
    memcpy(out + 4, begin + 4, 4)
    out[8] = 0
    out += 9
    out += put_uvarint(out, topics)
    for _ in range(topics - 1):
        memcpy(out, at, 16)
        at += 16
        at += get_uvarint(at, at + 4, &partitions)
        out += 16
        out += put_uvarint(out, partitions)
        for _ in range(partitions - 1):
            out = _put_state(out, api_key, version, get32(at), <bytes> states[place])
            place += 1
            at += REQUESTED_BYTES
        out[0] = 0
        out += 1
        at += 1
    out[0] = 0
    return answer


cdef uint8_t *_put_state(uint8_t *out, int api_key, int version, int32_t partition, bytes packed) noexcept:
    """Encode a result without an error; return its end."""
    cdef StateNumbers numbers
    cdef Py_ssize_t batches_bytes = PyBytes_GET_SIZE(packed) - <Py_ssize_t> sizeof(StateNumbers)
    memcpy(&numbers, PyBytes_AS_STRING(packed), sizeof(StateNumbers))
    put32(out, partition)
    # No error and no message.
    out[4] = out[5] = out[6] = 0
    put32(out + 7, numbers.state_epoch)
    out += 11
    if api_key == SUMMARY_KEY:
        put32(out, numbers.leader_epoch)
        out += 4
    put64(out, numbers.start_offset)
    out += 8
    if api_key == READ_KEY:
        out += put_uvarint(out, batches_bytes // BATCH_BYTES + 1)
        memcpy(out, PyBytes_AS_STRING(packed) + sizeof(StateNumbers), batches_bytes)
        out += batches_bytes
    elif version > 0:
        put32(out, numbers.complete_count)
        out += 4
    out[0] = 0
    return out + 1
