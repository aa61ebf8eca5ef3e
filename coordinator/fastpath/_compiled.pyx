# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decode, decide and encode fast-path writes, and replay records, in C. `coordinator.fastpath` defines the terms.

Each class and function has a Python reference. Tests in tests/property check that the results are equal; for Commits,
tests/unit/log/test_committer.py checks this:

    FastPathExecutor       write_share_group_state.decode_request, encode_response; Service; routing
    read_states            ShardQueue.submit, decisions.decide_read and decide_summary, without a record or a refusal
    WriteKernel            decisions.decide_write, state.apply_record, state_records.encode_record
    Replay                 ReferenceReplay in coordinator.serve.runtime.replay
    _normalise, _merge     batches.normalise, batches.combine
    encode_batch           record_batch.encode_batch
    record_starts          parse.find_record_starts in coordinator.recovery
    Commits                ThreadCommitter in coordinator.log.journal.committer
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from coordinator.fastpath.histogram cimport Histogram
from coordinator.fastpath.operation_queue cimport CommitBatch, OperationQueue, QueuedOperation, WriteDecider

import os

from crc32c import crc32c

from coordinator.shard import Shard
from coordinator.shard.packed_state import NUMBERS
from coordinator.shard.state import RECORD_OVERHEAD_BYTES
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.record_batch import MAGIC, decode_batches, encode_headers
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, encode_record
from protocol.wire import ELEMENTS_MAX

cdef extern from "wire.h":
    int64_t get64(const uint8_t *at)
    void put64(uint8_t *at, int64_t value)
    int32_t get32(const uint8_t *at)
    void put32(uint8_t *at, int32_t value)
    int get16(const uint8_t *at)
    void put16(uint8_t *at, int value)
    int get_uvarint(const uint8_t *at, const uint8_t *end, uint32_t *value)
    int put_uvarint(uint8_t *at, uint64_t value)
    int uvarint_bytes(uint64_t value)
    const char *STATE_NUMBERS
    ctypedef struct StateNumbers:
        int64_t first_needed_offset, start_offset, create_timestamp, write_timestamp, last_write_ms, updates, update_bytes
        int32_t snapshot_epoch, state_epoch, leader_epoch, leader_epoch_max, complete_count, unreadable_bytes
    bytes packed_state(const StateNumbers *numbers, const uint8_t *batches, Py_ssize_t batches_bytes)
    Py_ssize_t send_now(int file, const char *data, Py_ssize_t size)

cdef extern from "syncs.h":
    enum:
        IN_PROGRESS
    ctypedef struct Syncs:
        int eventfd
    int prepare_syncs(Syncs *syncs) nogil
    int write_all(int file, const uint8_t *data, Py_ssize_t size, int64_t position) nogil
    int begin_sync(const Syncs *syncs, int file) nogil
    int take_result(const Syncs *syncs)
    void end_syncs(Syncs *syncs) nogil
    int new_timer()
    void set_timer(int timer, int64_t ns)
    int take_timer(int timer)

cdef extern from "unistd.h":
    int close(int file)

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object mapping, object key) except? NULL
    void PyObject_GC_UnTrack(PyObject *instance)

cdef enum:
    READ_KEY = 84
    WRITE_KEY = 85
    SUMMARY_KEY = 87
    HEADER_BYTES_MIN = 16
    GROUP_BYTES_MAX = 255
    # Partition, error code, message and tagged fields of a result without an error.
    RESULT_BYTES = 8
    # Maximum size of the cache of topics and partitions, and estimated size of an entry without the group's name.
    CACHE_BYTES_MAX = 67108864
    TOPIC_BYTES = 1024
    PARTITION_BYTES = 256
    # More than the share-partitions of a write below 64 KiB, which is executed in one step.
    ADDED_IN_STEP = 3000
    SIZE_BYTES = 4
    # Size, correlation id and tagged fields at the beginning of a response.
    RESPONSE_HEADER_BYTES = 9
    # Work that takes as long as a write to a small state: bytes of a state to copy, and of batches to sort.
    STATE_BYTES_PER_UNIT = 16384
    WRITTEN_BYTES_PER_UNIT = 512
    NO_COMPLETE_COUNT = -1
    NOT_UNREADABLE = -1
    # The type of a ShareUpdate in its key.
    UPDATE_TYPE = 1

# The beginning of a request: its group id, the encoded number of topics, and the topics and partitions still allowed.
cdef struct _RequestBegin:
    const uint8_t *group
    uint32_t group_bytes
    uint32_t topics
    int64_t elements_left

# One PartitionData of a write request; `batches_at` is the position of its state batches in the frame.
cdef struct _Entry:
    Py_ssize_t batches_at
    Py_ssize_t batch_count
    int64_t start_offset
    int32_t state_epoch
    int32_t leader_epoch
    int32_t complete_count

# The state of a share-partition during a write or a replay.
cdef struct _State:
    StateNumbers numbers
    const uint8_t *batches
    Py_ssize_t batches_bytes

cdef int64_t OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES
cdef object WRITE_STATE = Shard.write_state
cdef int64_t RESPONSE_BYTES_MAX = 16 << 20
cdef tuple WRITE_WITHOUT_ERROR = (WRITE_KEY, 0)

if NUMBERS.format.encode() != STATE_NUMBERS:
    raise ImportError("the C struct StateNumbers does not have the layout of packed_state.NUMBERS")

# The .pxi files form one module, so that calls between them are C calls.
include "batches.pxi"
include "requests.pxi"
include "responses.pxi"
include "reads.pxi"
include "write_kernel.pxi"
include "replay.pxi"
include "record_batches.pxi"
include "journal.pxi"


def send_on_socket(int file, bytes data):
    """Send bytes without blocking; return the number of sent bytes, 0 after an error."""
    return send_now(file, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def merge_batches(bytes current, bytes written, int64_t start_offset):
    """Return the result of `batches.combine`; None if a written batch ends before it begins. For tests."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(written) // BATCH_BYTES
    cdef int64_t floor = _floor(start_offset)
    cdef Py_ssize_t run_bytes, size
    cdef const uint8_t *result
    cdef uint8_t *run = _normalise(<const uint8_t *> PyBytes_AS_STRING(written), count, floor, &run_bytes)
    if run_bytes < 0:
        return None
    result = _scratch_memory(MERGED_SCRATCH, 2 * (run_bytes + PyBytes_GET_SIZE(current)) + BATCH_BYTES)
    size = _merge(
        <const uint8_t *> PyBytes_AS_STRING(current), PyBytes_GET_SIZE(current), run, run_bytes, floor, &result
    )
    return PyBytes_FromStringAndSize(<const char *> result, size)
