# Merge state batches. A "run" is a sorted sequence of state batches that do not overlap.

cdef enum:
    BATCH_BYTES = 20
    NO_START_OFFSET = -1
    # Larger scratch buffers are freed after use.
    SCRATCH_BYTES_KEPT = 1048576

# Each scratch buffer contains one run. No buffer is in use during calls of Python code, which could overwrite it.
cdef enum:
    WRITTEN_SCRATCH
    MERGED_SCRATCH
    SCRATCH_BUFFERS

cdef uint8_t *_scratch_buffers[SCRATCH_BUFFERS]
cdef Py_ssize_t _scratch_bytes[SCRATCH_BUFFERS]


cdef uint8_t *_scratch_memory(int which, Py_ssize_t size) except NULL:
    """Return a scratch buffer of at least `size` bytes."""
    cdef void *scratch
    if size > _scratch_bytes[which]:
        # Reserve more than needed, so that a growing run seldom needs a new buffer.
        size += size // 2
        scratch = PyMem_Realloc(_scratch_buffers[which], size)
        if scratch == NULL:
            raise MemoryError()
        _scratch_buffers[which], _scratch_bytes[which] = <uint8_t *> scratch, size
    return _scratch_buffers[which]


cdef void free_large_scratch_buffers() noexcept:
    """Free the scratch buffers that an unusually large request enlarged."""
    cdef int which
    for which in range(SCRATCH_BUFFERS):
        if _scratch_bytes[which] > SCRATCH_BYTES_KEPT:
            PyMem_Free(_scratch_buffers[which])
            _scratch_buffers[which], _scratch_bytes[which] = NULL, 0


cdef inline int64_t _floor(int64_t start_offset) noexcept:
    """Return the lowest offset that is kept: the start offset, or the minimum if there is none."""
    return INT64_MIN if start_offset == NO_START_OFFSET else start_offset


cdef inline int _delivery_rank(const uint8_t *batch) noexcept:
    """Return the rank of a batch: where batches overlap, the higher (delivery count, delivery state) wins."""
    return get16(batch + 17) * 256 + <int8_t> batch[16]


cdef inline uint8_t *_put(uint8_t *out, int64_t first, int64_t last, int rank) noexcept:
    put64(out, first)
    put64(out + 8, last)
    # The delivery state is a signed byte, from -128 to 127, so the division must round to the nearest count.
    cdef int count = (rank + 128) >> 8
    out[16] = <uint8_t> (rank - count * 256)
    put16(out + 17, count)
    out[19] = 0
    return out + BATCH_BYTES


cdef inline uint8_t *_add(uint8_t *run, uint8_t *out, int64_t first, int64_t last, int rank) noexcept:
    """Append a batch to a run, or extend the last batch if it is adjacent and has the same rank."""
    if out > run and get64(out - 12) == first - 1 and _delivery_rank(out - BATCH_BYTES) == rank:
        put64(out - 12, last)
        return out
    return _put(out, first, last, rank)


cdef inline uint8_t *_add_rest(
    uint8_t *run, uint8_t *out, int64_t first, int64_t last, int rank, const uint8_t *rest, const uint8_t *rest_end
) noexcept:
    """Append a batch to a run, and then the remaining batches of its source run."""
    out = _add(run, out, first, last, rank)
    memcpy(out, rest, rest_end - rest)
    return out + (rest_end - rest)


cdef uint8_t *_normalise(const uint8_t *batches, Py_ssize_t count, int64_t floor, Py_ssize_t *run_bytes) except NULL:
    """Return the run of `batches.normalise` in a scratch buffer; `run_bytes` is -1 if a batch ends before it begins."""
    # Overlapping batches form a run of at most twice as many batches.
    cdef uint8_t *run = _scratch_memory(WRITTEN_SCRATCH, (2 * count + 1) * BATCH_BYTES)
    cdef uint8_t *scratch
    cdef Py_ssize_t i
    run_bytes[0] = _ascending(batches, count, floor, run)
    if run_bytes[0] >= 0:
        return run
    for i in range(count):
        if get64(batches + i * BATCH_BYTES + 8) < get64(batches + i * BATCH_BYTES):
            return run
    scratch = <uint8_t *> PyMem_Malloc((4 * count + 64) * BATCH_BYTES)
    if scratch == NULL:
        raise MemoryError()
    run_bytes[0] = _sorted(batches, count, floor, run, scratch)
    PyMem_Free(scratch)
    return run


cdef Py_ssize_t _sorted(
    const uint8_t *batches, Py_ssize_t count, int64_t floor, uint8_t *run, uint8_t *scratch
) noexcept:
    """Merge-sort batches in any order into a run; return its size in bytes. Takes O(n log n) for n batches."""
    cdef Py_ssize_t half = count // 2
    cdef uint8_t *upper = scratch + (2 * half + 1) * BATCH_BYTES
    cdef uint8_t *rest = upper + (2 * (count - half) + 1) * BATCH_BYTES
    cdef const uint8_t *result = run
    cdef Py_ssize_t lower_bytes, upper_bytes, run_bytes = _ascending(batches, count, floor, run)
    if run_bytes >= 0:
        return run_bytes
    lower_bytes = _sorted(batches, half, floor, scratch, rest)
    upper_bytes = _sorted(batches + half * BATCH_BYTES, count - half, floor, upper, rest)
    run_bytes = _merge(scratch, lower_bytes, upper, upper_bytes, floor, &result)
    if result != run:
        memcpy(run, result, run_bytes)
    return run_bytes


cdef Py_ssize_t _ascending(const uint8_t *batches, Py_ssize_t count, int64_t floor, uint8_t *out) noexcept:
    """Copy ascending batches to a run without offsets below `floor`; return its bytes, -1 if they do not ascend."""
    cdef uint8_t *run = out
    cdef int64_t first, last, next_first, next_last
    cdef int rank, next_rank
    cdef Py_ssize_t i
    if not count:
        return 0
    first, last, rank = get64(batches), get64(batches + 8), _delivery_rank(batches)
    if last < first:
        return -1
    for i in range(1, count):
        batches += BATCH_BYTES
        next_first, next_last, next_rank = get64(batches), get64(batches + 8), _delivery_rank(batches)
        if next_first <= last or next_last < next_first:
            return -1
        if next_first == last + 1 and next_rank == rank:
            last = next_last
            continue
        if last >= floor:
            out = _put(out, max(first, floor), last, rank)
        first, last, rank = next_first, next_last, next_rank
    if last >= floor:
        out = _put(out, max(first, floor), last, rank)
    return out - run


cdef Py_ssize_t _merge(
    const uint8_t *current, Py_ssize_t current_bytes, const uint8_t *written, Py_ssize_t written_bytes, int64_t floor,
    const uint8_t **result
) noexcept:
    """Merge the written run into the current run without offsets below `floor`; return the size of the result.

    The result is written to the buffer at `result`. If the current run does not change, `result` is set to it.
    """
    cdef uint8_t *run = <uint8_t *> result[0]
    cdef const uint8_t *one = current
    cdef const uint8_t *one_end = current + current_bytes
    cdef const uint8_t *other = written
    cdef const uint8_t *other_end = written + written_bytes
    cdef const uint8_t *kept
    cdef uint8_t *out = run
    cdef int64_t first = 0, last = 0, other_first = 0, other_last = 0, end
    cdef int rank = 0, other_rank = 0
    while one < one_end and get64(one + 8) < floor:
        one += BATCH_BYTES
    if other == other_end and one < one_end and one == current and get64(one) >= floor:
        result[0] = current
        return current_bytes
    if one < one_end:
        # Batches that end before the first written offset are copied; `floor` may shorten the first of them.
        first, last, rank = max(get64(one), floor), get64(one + 8), _delivery_rank(one)
        if other < other_end and last < get64(other):
            out = _put(out, first, last, rank)
            one += BATCH_BYTES
            kept = one
            while one < one_end and get64(one + 8) < get64(other):
                one += BATCH_BYTES
            memcpy(out, kept, one - kept)
            out += one - kept
            if one < one_end:
                first, last, rank = get64(one), get64(one + 8), _delivery_rank(one)
    if other < other_end:
        other_first, other_last, other_rank = get64(other), get64(other + 8), _delivery_rank(other)
    while one < one_end and other < other_end:
        if last < other_first:
            out = _add(run, out, first, last, rank)
            end = last
        elif other_last < first:
            out = _add(run, out, other_first, other_last, other_rank)
            end = other_last
        elif first < other_first:
            out = _add(run, out, first, other_first - 1, rank)
            first = other_first
            continue
        elif other_first < first:
            out = _add(run, out, other_first, first - 1, other_rank)
            other_first = first
            continue
        else:
            end = min(last, other_last)
            out = _add(run, out, first, end, max(rank, other_rank))
        # Both runs are merged up to `end`: skip complete batches, and keep the remainder of a longer batch.
        if last <= end:
            one += BATCH_BYTES
            if one < one_end:
                first, last, rank = get64(one), get64(one + 8), _delivery_rank(one)
        elif first <= end:
            first = end + 1
        if other_last <= end:
            other += BATCH_BYTES
            if other < other_end:
                other_first, other_last, other_rank = get64(other), get64(other + 8), _delivery_rank(other)
        elif other_first <= end:
            other_first = end + 1
    if one < one_end:
        out = _add_rest(run, out, first, last, rank, one + BATCH_BYTES, one_end)
    elif other < other_end:
        out = _add_rest(run, out, other_first, other_last, other_rank, other + BATCH_BYTES, other_end)
    return out - run
