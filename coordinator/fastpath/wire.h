/* Integers in Kafka's wire format, packed states, and a send without the transport, for _compiled.pyx. */
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

static inline uint64_t to_big_endian(uint64_t value) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return value;
#else
    return (value & 0xFF) << 56 | (value & 0xFF00) << 40 | (value & 0xFF0000) << 24 | (value & 0xFF000000) << 8 |
           (value >> 8 & 0xFF000000) | (value >> 24 & 0xFF0000) | (value >> 40 & 0xFF00) | value >> 56;
#endif
}

static inline int64_t get64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return (int64_t)to_big_endian(value);
}

static inline void put64(uint8_t *at, int64_t value) {
    uint64_t wire = to_big_endian((uint64_t)value);
    memcpy(at, &wire, 8);
}

static inline int32_t get32(const uint8_t *at) {
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

static inline void put32(uint8_t *at, int32_t value) {
    uint32_t wire = (uint32_t)value;
    at[0] = (uint8_t)(wire >> 24);
    at[1] = (uint8_t)(wire >> 16);
    at[2] = (uint8_t)(wire >> 8);
    at[3] = (uint8_t)wire;
}

static inline int get16(const uint8_t *at) { return (int16_t)(at[0] << 8 | at[1]); }

static inline void put16(uint8_t *at, int value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Read the length of a compact type; return its size in bytes, 0 if it is truncated or is not below 2^28. */
static inline int get_uvarint(const uint8_t *at, const uint8_t *end, uint32_t *value) {
    uint32_t found = 0;
    for (int i = 0; i < 4 && at + i < end; i++) {
        found |= (uint32_t)(at[i] & 0x7F) << 7 * i;
        if (at[i] < 0x80) {
            *value = found;
            return i + 1;
        }
    }
    return 0;
}

static inline int put_uvarint(uint8_t *at, uint64_t value) {
    int bytes = 0;
    while (value > 0x7F) {
        at[bytes++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    at[bytes++] = (uint8_t)value;
    return bytes;
}

static inline int uvarint_bytes(uint64_t value) {
    int bytes = 1;
    while (value >>= 7) bytes++;
    return bytes;
}

/* The beginning of a packed state; see `shard.packed_state`. State batches and, if unreadable, the reason follow. */
#define STATE_NUMBERS "=7q6i"
typedef struct {
    int64_t first_needed_offset, start_offset, create_timestamp, write_timestamp, last_write_ms, updates, update_bytes;
    int32_t snapshot_epoch, state_epoch, leader_epoch, leader_epoch_max, complete_count, unreadable_bytes;
} StateNumbers;

static PyObject *packed_state(const StateNumbers *numbers, const uint8_t *batches, Py_ssize_t batches_bytes) {
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof *numbers + batches_bytes);
    if (packed == NULL) return NULL;
    memcpy(PyBytes_AS_STRING(packed), numbers, sizeof *numbers);
    memcpy(PyBytes_AS_STRING(packed) + sizeof *numbers, batches, (size_t)batches_bytes);
    return packed;
}

/* Send without waiting; return the number of bytes sent, 0 on failure. The transport's write then reports the error. */
static Py_ssize_t send_now(int file, const char *data, Py_ssize_t size) {
#if defined(MSG_NOSIGNAL)
    ssize_t sent = send(file, data, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
#else
    ssize_t sent = send(file, data, (size_t)size, MSG_DONTWAIT);
#endif
    return sent < 0 ? 0 : sent;
}
