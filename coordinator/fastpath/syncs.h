/* A timer and asynchronous fdatasync of the Linux kernel, for _compiled.pyx. File descriptors signal the end of both.
 * The sync requires Linux 4.18 (io_submit with IOCB_CMD_FDSYNC). Functions return 0 or an errno by default. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__) && defined(__has_include)
#if __has_include(<linux/aio_abi.h>)
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#endif
#endif

typedef struct {
    unsigned long context;
    int eventfd;
} Syncs;

/* At most one sync is in progress. A trial sync that takes longer than TRIAL_MS has failed. */
enum { SYNCS_MAX = 1, TRIAL_MS = 10000, IN_PROGRESS = -1 };

/* Return whether a timer has fired since the last call. */
static int take_timer(int timer) {
    uint64_t count;
    return read(timer, &count, sizeof count) > 0;
}

/* Write all bytes at a position of a file. */
static int write_all(int file, const uint8_t *data, Py_ssize_t size, int64_t position) {
    while (size) {
        ssize_t written = pwrite(file, data, (size_t)size, (off_t)position);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        if (written == 0) return EIO;
        data += written;
        size -= written;
        position += written;
    }
    return 0;
}

#if defined(IOCB_FLAG_RESFD) && defined(SYS_io_getevents)
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

static int new_timer(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); }

/* Make the timer readable once after this time, or never if it is 0. */
static void set_timer(int timer, int64_t ns) {
    struct itimerspec when = {{0, 0}, {(time_t)(ns / 1000000000), (long)(ns % 1000000000)}};
    timerfd_settime(timer, 0, &when, NULL);
}

static int begin_sync(const Syncs *syncs, int file) {
    struct iocb sync, *all[] = {&sync};
    memset(&sync, 0, sizeof sync);
    sync.aio_lio_opcode = IOCB_CMD_FDSYNC;
    sync.aio_fildes = (uint32_t)file;
    sync.aio_flags = IOCB_FLAG_RESFD;
    sync.aio_resfd = (uint32_t)syncs->eventfd;
    for (;;) {
        long begun = syscall(SYS_io_submit, syncs->context, 1L, all);
        if (begun == 1) return 0;
        if (begun < 0 && errno != EINTR) return errno;
    }
}

/* Return the result of the sync: 0, an errno, or IN_PROGRESS.  The kernel signals the eventfd afterwards. */
static int take_result(const Syncs *syncs) {
    uint64_t count;
    struct io_event event;
    if (read(syncs->eventfd, &count, sizeof count) < 0) return IN_PROGRESS;
    for (;;) {
        long events = syscall(SYS_io_getevents, syncs->context, 0L, (long)SYNCS_MAX, &event, NULL);
        if (events == 1) return event.res < 0 ? (int)-event.res : 0;
        if (events == 0) return IN_PROGRESS;
        if (errno != EINTR) return errno;
    }
}

static void end_syncs(Syncs *syncs) {
    if (syncs->context) syscall(SYS_io_destroy, syncs->context);
    if (syncs->eventfd >= 0) close(syncs->eventfd);
    syncs->context = 0;
    syncs->eventfd = -1;
}

/* Sync a file in memory as a trial: some systems have io_submit, but not IOCB_CMD_FDSYNC. */
static int try_sync(const Syncs *syncs) {
    struct pollfd waiting = {syncs->eventfd, POLLIN, 0};
    int file = memfd_create("sync", MFD_CLOEXEC);
    if (file < 0) return errno;
    int failure = begin_sync(syncs, file);
    if (!failure) {
        while (poll(&waiting, 1, TRIAL_MS) < 0 && errno == EINTR) {}
        failure = take_result(syncs);
    }
    close(file);
    return failure == IN_PROGRESS ? EIO : failure;
}

static int prepare_syncs(Syncs *syncs) {
    syncs->context = 0;
    syncs->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failure = syncs->eventfd < 0 || syscall(SYS_io_setup, (long)SYNCS_MAX, &syncs->context) < 0;
    failure = failure ? errno : try_sync(syncs);
    if (failure) end_syncs(syncs);
    return failure;
}
#else
static int new_timer(void) { errno = ENOSYS; return -1; }
static void set_timer(int timer, int64_t ns) {}
static int begin_sync(const Syncs *syncs, int file) { return ENOSYS; }
static int take_result(const Syncs *syncs) { return IN_PROGRESS; }
static void end_syncs(Syncs *syncs) {}
static int prepare_syncs(Syncs *syncs) { return ENOSYS; }
#endif
