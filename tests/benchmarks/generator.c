/* Closed-loop load generator for the benchmarks: one thread, epoll.
 *
 *   generator HOST PORT SECONDS ANSWERS PID < clients > figures
 *
 * The run ends after SECONDS, or after ANSWERS responses if ANSWERS is not 0. If PID is not 0, the CPU time that this
 * process uses during the run is read from its CPU clock.
 *
 * clients: int32 connections, int64 offset step, int32 epoch step; then for each connection: int32 requests in flight,
 *          int32 milliseconds between two requests (0: none), and two lists of frames: the prologue, sent once before
 *          the run, and the frames of the run, which are repeated until the end.
 *          A list: int32 count; then for each frame: int32 count and positions of int64 offsets, int32 count and
 *          positions of int32 epochs, and the frame with its size prefix.
 *          Each repetition of a frame adds one step to its offsets and epochs.
 * figures: one line: responses, seconds, failed responses, first error code, CPU seconds of PID, and the p50, p99, p99.9
 *          and maximum latency in microseconds.
 *
 * A response fails if the error code of any share-partition or coordinator in it is not 0. Each request gets a
 * correlation id of its own. A response out of order, a failed response to a prologue and a closed connection end the
 * run with exit code 1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 256
#define LATENCIES_MAX (64u << 20)
#define RESPONSE_BYTES_MIN 4096
#define FIND_COORDINATOR 10
#define READ 84
#define SUMMARY 87

typedef struct {
    uint32_t size, offsets, epochs;
    uint32_t *offset_at, *epoch_at;
    uint8_t *bytes;
} Frame;

typedef struct {
    uint32_t count;
    Frame *frame;
} Frames;

typedef struct {
    uint8_t api_key, version;
    double sent_s;
} Request;

typedef struct {
    int fd;
    uint32_t depth, interval_ms;
    Frames prologue, run;
    /* The index of the next frame to send, and how often all frames were sent before. */
    uint32_t next;
    uint64_t lap;
    /* Requests in flight: a ring buffer of `depth` entries. */
    Request *request;
    uint32_t sent, answered;
    uint32_t received, capacity;
    uint8_t *response;
    int waiting, done;
    double due_s;
} Connection;

static uint64_t failed, first_error;

static void die(const char *why) {
    fprintf(stderr, "generator: %s: %s\n", why, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Return the CPU seconds of a process with all its threads; /proc has a resolution of only 10 ms. */
static double cpu_seconds(int pid) {
    clockid_t clock;
    struct timespec t;
    if (!pid) return 0;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t)) die("the CPU clock of the process");
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t int32_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint64_t int64_at(const uint8_t *p) { return (uint64_t)int32_at(p) << 32 | int32_at(p + 4); }

static void put_int32(uint8_t *p, uint32_t value) {
    for (int b = 0; b < 4; b++) p[b] = (uint8_t)(value >> (24 - 8 * b));
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("memory");
    return memory;
}

static uint32_t read_int32(void) {
    uint8_t b[4];
    if (fread(b, 1, 4, stdin) != 4) die("the input is too short");
    return int32_at(b);
}

static uint32_t read_positions(uint32_t **positions) {
    uint32_t count = read_int32();
    *positions = allocate(count, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) (*positions)[i] = read_int32();
    return count;
}

static Frames read_frames(void) {
    Frames frames = {.count = read_int32()};
    frames.frame = allocate(frames.count, sizeof(Frame));
    for (uint32_t i = 0; i < frames.count; i++) {
        Frame *frame = &frames.frame[i];
        frame->offsets = read_positions(&frame->offset_at);
        frame->epochs = read_positions(&frame->epoch_at);
        uint32_t body = read_int32();
        frame->size = body + 4;
        frame->bytes = allocate(frame->size, 1);
        put_int32(frame->bytes, body);
        if (fread(frame->bytes + 4, 1, body, stdin) != body) die("the input is too short");
    }
    return frames;
}

static void advance(Frame *frame, uint64_t offset_step, uint32_t epoch_step) {
    for (uint32_t i = 0; i < frame->offsets; i++) {
        uint8_t *at = frame->bytes + frame->offset_at[i];
        uint64_t moved = int64_at(at) + offset_step;
        put_int32(at, (uint32_t)(moved >> 32));
        put_int32(at + 4, (uint32_t)moved);
    }
    for (uint32_t i = 0; i < frame->epochs; i++) {
        uint8_t *at = frame->bytes + frame->epoch_at[i];
        put_int32(at, int32_at(at) + epoch_step);
    }
}

static void send_frame(Connection *c, Frame *frame) {
    Request *request = &c->request[c->sent % c->depth];
    put_int32(frame->bytes + 8, c->sent++);
    request->api_key = frame->bytes[5];
    request->version = frame->bytes[7];
    request->sent_s = now();
    for (uint32_t sent = 0; sent < frame->size;) {
        ssize_t n = send(c->fd, frame->bytes + sent, frame->size - sent, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        sent += n;
    }
}

static void send_next(Connection *c, uint64_t offset_step, uint32_t epoch_step) {
    Frame *frame = &c->run.frame[c->next];
    if (c->lap) advance(frame, offset_step, epoch_step);
    if (++c->next == c->run.count) c->next = 0, c->lap++;
    c->waiting = 0;
    c->due_s = now() + c->interval_ms * 1e-3;
    send_frame(c, frame);
}

/* A cursor over a response; a read past the end of the response is an error. */
typedef struct {
    const uint8_t *at, *end;
} Cursor;

static const uint8_t *skip(Cursor *cursor, uint64_t bytes) {
    const uint8_t *at = cursor->at;
    if (bytes > (uint64_t)(cursor->end - at)) die("a response is too short");
    cursor->at += bytes;
    return at;
}

static uint64_t uvarint(Cursor *cursor) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t byte = *skip(cursor, 1);
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    die("a response is malformed");
    return 0;
}

static uint64_t elements(Cursor *cursor) {
    uint64_t count = uvarint(cursor);
    return count ? count - 1 : 0;
}

static void skip_tags(Cursor *cursor) {
    for (uint64_t count = uvarint(cursor); count; count--) {
        uvarint(cursor);
        skip(cursor, uvarint(cursor));
    }
}

static uint32_t error_code(Cursor *cursor) {
    const uint8_t *code = skip(cursor, 2);
    /* The error message follows. */
    skip(cursor, elements(cursor));
    return (uint32_t)code[0] << 8 | code[1];
}

static uint32_t coordinators_error(Cursor *cursor) {
    uint32_t error = 0;
    skip(cursor, 4); /* throttle time */
    for (uint64_t count = elements(cursor); count; count--) {
        skip(cursor, elements(cursor)); /* key */
        skip(cursor, 4);                /* node id */
        skip(cursor, elements(cursor)); /* host */
        skip(cursor, 4);                /* port */
        uint32_t code = error_code(cursor);
        error = error ? error : code;
        skip_tags(cursor);
    }
    return error;
}

static uint32_t share_partitions_error(Cursor *cursor, const Request *request) {
    uint32_t error = 0;
    for (uint64_t topics = elements(cursor); topics; topics--) {
        skip(cursor, 16);
        for (uint64_t count = elements(cursor); count; count--) {
            skip(cursor, 4); /* partition */
            uint32_t code = error_code(cursor);
            error = error ? error : code;
            if (request->api_key == READ) { /* state epoch, start offset, state batches */
                skip(cursor, 12);
                for (uint64_t batches = elements(cursor); batches; batches--) skip(cursor, 19), skip_tags(cursor);
            } else if (request->api_key == SUMMARY) { /* both epochs, start offset; v1: delivery complete count */
                skip(cursor, request->version ? 20 : 16);
            }
            skip_tags(cursor);
        }
        skip_tags(cursor);
    }
    return error;
}

static void check(const Request *request, const uint8_t *response, uint32_t size) {
    Cursor cursor = {response + 8, response + size};
    skip_tags(&cursor);
    uint32_t error = request->api_key == FIND_COORDINATOR ? coordinators_error(&cursor)
                                                          : share_partitions_error(&cursor, request);
    if (error) {
        first_error = failed++ ? first_error : error;
    }
}

/* Call recv() once and append the received bytes to the connection's buffer. */
static void receive(Connection *c) {
    if (c->received == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : RESPONSE_BYTES_MIN;
        c->response = realloc(c->response, c->capacity);
        if (!c->response) die("memory");
    }
    ssize_t n = recv(c->fd, c->response + c->received, c->capacity - c->received, 0);
    if (n <= 0) die("the connection was closed");
    c->received += n;
}

/* Remove the next response from the buffer; return its request, or NULL if the response is incomplete. */
static const Request *next_response(Connection *c) {
    uint32_t size = c->received < 4 ? 0 : 4 + int32_at(c->response);
    if (!size || c->received < size) return NULL;
    const Request *request = &c->request[c->answered % c->depth];
    if (c->sent == c->answered || int32_at(c->response + 4) != c->answered++) die("a response is out of order");
    check(request, c->response, size);
    c->received -= size;
    memmove(c->response, c->response + size, c->received);
    return request;
}

static void read_connection(Connection *c) {
    c->depth = read_int32();
    c->interval_ms = read_int32();
    c->request = allocate(c->depth, sizeof(Request));
    c->prologue = read_frames();
    c->run = read_frames();
}

static void open_connection(Connection *c, const struct sockaddr_in *address) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)address, sizeof *address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (uint32_t i = 0; i < c->prologue.count; i++) {
        send_frame(c, &c->prologue.frame[i]);
        while (!next_response(c)) receive(c);
        if (failed) {
            fprintf(stderr, "generator: the prologue failed with error code %llu\n", (unsigned long long)first_error);
            exit(1);
        }
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 6) die("HOST PORT SECONDS ANSWERS PID");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) die("HOST must be an IPv4 address");
    double seconds = atof(argv[3]);
    uint64_t answers_max = strtoull(argv[4], NULL, 10), requests = 0, answers = 0;
    if (!answers_max) answers_max = UINT64_MAX;
    int pid = atoi(argv[5]), count = (int)read_int32(), poll = epoll_create1(0), open = count;
    uint64_t offset_step = (uint64_t)read_int32() << 32;
    offset_step |= read_int32();
    uint32_t epoch_step = read_int32();
    Connection *all = allocate(count, sizeof *all);
    float *latency = malloc(sizeof(float) * LATENCIES_MAX);
    for (int i = 0; i < count; i++) read_connection(&all[i]);
    for (int i = 0; i < count; i++) {
        open_connection(&all[i], &address);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll_ctl");
    }
    double cpu = cpu_seconds(pid), began = now(), until = began + seconds, ended = began;
    for (int i = 0; i < count; i++)
        for (uint32_t n = 0; n < all[i].depth; n++, requests++) send_next(&all[i], offset_step, epoch_step);
    while (open) {
        struct epoll_event events[EVENTS_MAX];
        double wake = -1, at = now();
        for (int i = 0; i < count && all[i].interval_ms; i++) { /* Connections with an interval come first. */
            Connection *c = &all[i];
            if (c->waiting && at >= until) {
                c->waiting = 0, c->done = 1, open--;
            } else if (c->waiting && at >= c->due_s) {
                requests++;
                send_next(c, offset_step, epoch_step);
            } else if (c->waiting && (wake < 0 || c->due_s < wake)) {
                wake = c->due_s < until ? c->due_s : until;
            }
        }
        if (!open) break;
        int ready = epoll_wait(poll, events, EVENTS_MAX, wake < 0 ? -1 : (int)((wake - at) * 1e3) + 1);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            receive(c);
            for (const Request *request; (request = next_response(c));) {
                ended = now();
                if (answers < LATENCIES_MAX) latency[answers++] = (float)((ended - request->sent_s) * 1e6);
                if (ended >= until || requests >= answers_max) {
                    if (!c->done && c->sent == c->answered) c->done = 1, open--;
                } else if (c->interval_ms) {
                    c->waiting = 1;
                } else {
                    requests++;
                    send_next(c, offset_step, epoch_step);
                }
            }
        }
    }
    cpu = cpu_seconds(pid) - cpu;
    qsort(latency, answers, sizeof *latency, by_size);
    printf("%llu %.6f %llu %llu %.3f %.1f %.1f %.1f %.1f\n", (unsigned long long)answers, ended - began,
           (unsigned long long)failed, (unsigned long long)first_error, cpu, latency[answers / 2],
           latency[answers * 99 / 100], latency[answers * 999 / 1000], latency[answers - 1]);
    return 0;
}
