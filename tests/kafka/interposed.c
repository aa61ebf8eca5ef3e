/* Preloaded library (LD_PRELOAD): redirects the connections of a process to proxies, and shifts its clocks.
 *
 * INTERPOSED_LINKS   "PORT:PROXY,PORT:PROXY,...": a connection to PORT of the loopback address goes to PROXY
 * INTERPOSED_CLOCKS  a file with three int64 values in nanoseconds, native-endian. They are added to the wall clock,
 *                    CLOCK_MONOTONIC and CLOCK_BOOTTIME, and may change while the process runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINKS_MAX = 64 };
enum { WALL, MONOTONIC, BOOTTIME, CLOCKS };
static const int64_t SECOND_NS = 1000000000;

static struct { uint16_t port, proxy; } links[LINKS_MAX];
static int link_count;
static volatile const int64_t *shifts_ns;
static int (*real_connect)(int, const struct sockaddr *, socklen_t);
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
    real_connect = dlsym(RTLD_NEXT, "connect");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    char *next = getenv("INTERPOSED_LINKS");
    while (next && *next && link_count < LINKS_MAX) {
        links[link_count].port = (uint16_t)strtoul(next, &next, 10);
        links[link_count++].proxy = (uint16_t)strtoul(next + 1, &next, 10);
        next += *next == ',';
    }
    const char *path = getenv("INTERPOSED_CLOCKS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, CLOCKS * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        shifts_ns = mapped == MAP_FAILED ? NULL : mapped;
        close(file);
    }
}

static in_port_t redirect(in_port_t port) {
    for (int i = 0; i < link_count; i++)
        if (links[i].port == ntohs(port))
            return htons(links[i].proxy);
    return port;
}

int connect(int socket, const struct sockaddr *address, socklen_t bytes) {
    struct sockaddr_storage changed;
    if (link_count && bytes <= sizeof changed) {
        memcpy(&changed, address, bytes);
        if (changed.ss_family == AF_INET)
            ((struct sockaddr_in *)&changed)->sin_port = redirect(((struct sockaddr_in *)&changed)->sin_port);
        if (changed.ss_family == AF_INET6)
            ((struct sockaddr_in6 *)&changed)->sin6_port = redirect(((struct sockaddr_in6 *)&changed)->sin6_port);
        return real_connect(socket, (struct sockaddr *)&changed, bytes);
    }
    return real_connect(socket, address, bytes);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    /* Constructors of other libraries may read clocks before `prepare`. */
    int failed = real_clock_gettime ? real_clock_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    int which = -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        which = WALL;
    if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW)
        which = MONOTONIC;
    if (clock == CLOCK_BOOTTIME)
        which = BOOTTIME;
    if (failed || which < 0 || !shifts_ns)
        return failed;
    int64_t ns = now->tv_sec * SECOND_NS + now->tv_nsec + shifts_ns[which];
    now->tv_sec = ns / SECOND_NS;
    now->tv_nsec = ns % SECOND_NS;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
