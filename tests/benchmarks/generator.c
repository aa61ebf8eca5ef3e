/* A closed loop of writers that costs next to nothing: each connection has one request in flight, as brokers do.
 *
 *   generator HOST PORT SECONDS < frames > figures
 *
 * frames:  int32 connections, then for each: int32 count, then count frames of the Kafka protocol (with their
 *          sizes). The first is sent once, before the measurement; the others in turn, the next one when the answer
 *          to the last is there.
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
#define CODE_AT 30
#define LATENCIES_MAX (64u << 20)

typedef struct {
    int fd, frames, turn;
    uint8_t **frame;
    uint32_t *size;
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

static void send_frame(Connection *c, int which) {
    uint32_t sent = 0;
    while (sent < c->size[which]) {
        ssize_t n = send(c->fd, c->frame[which] + sent, c->size[which] - sent, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        sent += n;
    }
    c->sent = now();
}

/* Take what came; return 1 when the whole answer is there. */
static int take(Connection *c, int which, uint64_t *errors) {
    ssize_t n = recv(c->fd, c->answer + c->have, ANSWER_MAX - c->have, 0);
    if (n <= 0) die("the connection was closed");
    c->have += n;
    if (c->have < 4 || c->have < 4 + int32_at(c->answer)) return 0;
    if (memcmp(c->answer + 4, c->frame[which] + 8, 4)) die("an answer to another request");
    if (c->have < CODE_AT + 2 || c->answer[CODE_AT] || c->answer[CODE_AT + 1]) ++*errors;
    c->have = 0;
    return 1;
}

static void open_connection(Connection *c, const struct sockaddr_in *address) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)address, sizeof *address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->frames = (int)read_int32();
    c->frame = calloc(c->frames, sizeof *c->frame);
    c->size = calloc(c->frames, sizeof *c->size);
    for (int i = 0; i < c->frames; i++) {
        uint32_t body = read_int32();
        c->size[i] = body + 4;
        c->frame[i] = malloc(c->size[i]);
        for (int b = 0; b < 4; b++) c->frame[i][b] = body >> (24 - 8 * b);
        if (fread(c->frame[i] + 4, 1, body, stdin) != body) die("the frames end too early");
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4) die("HOST PORT SECONDS");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) die("HOST must be an IPv4 address");
    double seconds = atof(argv[3]);
    int count = (int)read_int32(), poll = epoll_create1(0);
    Connection *all = calloc(count, sizeof *all);
    float *latency = malloc(sizeof(float) * LATENCIES_MAX);
    uint64_t answers = 0, errors = 0, ignored = 0;
    for (int i = 0; i < count; i++) {
        open_connection(&all[i], &address);
        send_frame(&all[i], 0);
        while (!take(&all[i], 0, &ignored)) {}
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll_ctl");
    }
    if (ignored) die("the first request was refused");
    double began = now(), until = began + seconds, ended = began;
    for (int i = 0; i < count; i++) send_frame(&all[i], all[i].turn = 1);
    for (int open = count; open;) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(poll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (!take(c, c->turn, &errors)) continue;
            ended = now();
            if (answers < LATENCIES_MAX) latency[answers++] = (float)((ended - c->sent) * 1e6);
            c->turn = c->turn + 1 < c->frames ? c->turn + 1 : 1;
            if (ended < until) send_frame(c, c->turn);
            else open--;
        }
    }
    qsort(latency, answers, sizeof *latency, by_size);
    printf("%llu %.6f %llu %.1f %.1f %.1f %.1f\n", (unsigned long long)answers, ended - began,
           (unsigned long long)errors, latency[answers / 2], latency[answers * 99 / 100],
           latency[answers * 999 / 1000], latency[answers - 1]);
    return 0;
}
