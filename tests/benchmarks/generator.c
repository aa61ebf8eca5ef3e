/* A closed loop of clients that costs next to nothing: each connection has one request in flight, as brokers do.
 *
 *   generator HOST PORT SECONDS ANSWERS < frames > figures
 *
 * It ends after so many seconds, or when so many answers are there, whatever is first; 0 answers is no limit.
 *
 * frames:  int32 connections, int64 step, then for each connection two lists of frames: what is sent once, before
 *          the measurement, and what is sent in turn, lap after lap, the next one when the answer to the last is there.
 *          A list: int32 count, then for each frame int32 places, so many int32, and the frame with its size. In each
 *          lap but the first, the int64 at each place of a frame grows by the step.
 * figures: one line: answers, seconds, errors, p50, p99, p99.9 and greatest latency in microseconds.
 *
 * An answer must carry the correlation id of its request; that, or a closed connection, ends the run with code 1. An
 * error is a first share-partition whose code is not 0: it stands behind size, header, counts, topic id, partition.
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

#define ANSWER_MAX 65536
#define EVENTS_MAX 256
#define CODE_AT 31
#define LATENCIES_MAX (64u << 20)

typedef struct {
    uint32_t size, places;
    uint32_t *place;
    uint8_t *bytes;
} Frame;

typedef struct {
    uint32_t count;
    Frame *frame;
} Frames;

typedef struct {
    int fd;
    uint32_t turn;
    uint64_t lap;
    Frames first, measured;
    double sent;
    uint32_t have;
    uint8_t answer[ANSWER_MAX];
} Connection;

static void die(const char *why) {
    fprintf(stderr, "generator: %s: %s\n", why, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint32_t int32_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t read_int32(void) {
    uint8_t b[4];
    if (fread(b, 1, 4, stdin) != 4) die("the frames end too early");
    return int32_at(b);
}

static uint64_t int64_at(const uint8_t *p) { return (uint64_t)int32_at(p) << 32 | int32_at(p + 4); }

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("memory");
    return memory;
}

static Frames read_frames(void) {
    Frames frames = {.count = read_int32()};
    frames.frame = allocate(frames.count, sizeof(Frame));
    for (uint32_t i = 0; i < frames.count; i++) {
        Frame *frame = &frames.frame[i];
        frame->places = read_int32();
        frame->place = allocate(frame->places, sizeof(uint32_t));
        for (uint32_t j = 0; j < frame->places; j++) frame->place[j] = read_int32();
        uint32_t body = read_int32();
        frame->size = body + 4;
        frame->bytes = allocate(frame->size, 1);
        for (int b = 0; b < 4; b++) frame->bytes[b] = (uint8_t)(body >> (24 - 8 * b));
        if (fread(frame->bytes + 4, 1, body, stdin) != body) die("the frames end too early");
    }
    return frames;
}

static void move_on(Frame *frame, uint64_t step) {
    for (uint32_t i = 0; i < frame->places; i++) {
        uint8_t *at = frame->bytes + frame->place[i];
        uint64_t moved = int64_at(at) + step;
        for (int b = 0; b < 8; b++) at[b] = (uint8_t)(moved >> (56 - 8 * b));
    }
}

static void send_frame(Connection *c, const Frame *frame) {
    uint32_t sent = 0;
    c->sent = now();
    while (sent < frame->size) {
        ssize_t n = send(c->fd, frame->bytes + sent, frame->size - sent, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        sent += n;
    }
}

/* Take what came; return 1 when the whole answer is there. */
static int take(Connection *c, const Frame *frame, uint64_t *errors) {
    ssize_t n = recv(c->fd, c->answer + c->have, ANSWER_MAX - c->have, 0);
    if (n <= 0) die("the connection was closed");
    c->have += n;
    if (c->have < 4 || c->have < 4 + int32_at(c->answer)) return 0;
    if (memcmp(c->answer + 4, frame->bytes + 8, 4)) die("an answer to another request");
    if (c->have < CODE_AT + 2 || c->answer[CODE_AT] || c->answer[CODE_AT + 1]) ++*errors;
    c->have = 0;
    return 1;
}

static void open_connection(Connection *c, const struct sockaddr_in *address) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)address, sizeof *address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->first = read_frames();
    c->measured = read_frames();
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) die("HOST PORT SECONDS ANSWERS");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) die("HOST must be an IPv4 address");
    double seconds = atof(argv[3]);
    uint64_t answers_max = strtoull(argv[4], NULL, 10), requests = 0;
    if (!answers_max) answers_max = UINT64_MAX;
    int count = (int)read_int32(), poll = epoll_create1(0);
    uint64_t step = (uint64_t)read_int32() << 32;
    step |= read_int32();
    Connection *all = allocate(count, sizeof *all);
    float *latency = malloc(sizeof(float) * LATENCIES_MAX);
    uint64_t answers = 0, errors = 0, refused = 0;
    for (int i = 0; i < count; i++) {
        open_connection(&all[i], &address);
        for (uint32_t j = 0; j < all[i].first.count; j++) {
            send_frame(&all[i], &all[i].first.frame[j]);
            while (!take(&all[i], &all[i].first.frame[j], &refused)) {}
        }
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll_ctl");
    }
    if (refused) die("what goes first was refused");
    double began = now(), until = began + seconds, ended = began;
    for (int i = 0; i < count; i++, requests++) send_frame(&all[i], &all[i].measured.frame[0]);
    for (int open = count; open;) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(poll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (!take(c, &c->measured.frame[c->turn], &errors)) continue;
            ended = now();
            if (answers < LATENCIES_MAX) latency[answers++] = (float)((ended - c->sent) * 1e6);
            if (ended >= until || requests >= answers_max) {
                open--;
                continue;
            }
            requests++;
            if (++c->turn == c->measured.count) c->turn = 0, c->lap++;
            if (c->lap) move_on(&c->measured.frame[c->turn], step);
            send_frame(c, &c->measured.frame[c->turn]);
        }
    }
    qsort(latency, answers, sizeof *latency, by_size);
    printf("%llu %.6f %llu %.1f %.1f %.1f %.1f\n", (unsigned long long)answers, ended - began,
           (unsigned long long)errors, latency[answers / 2], latency[answers * 99 / 100],
           latency[answers * 999 / 1000], latency[answers - 1]);
    return 0;
}
