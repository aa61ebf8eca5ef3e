/* For _compiled.pyx: syncs of files that the kernel carries out by itself, and tells of through an eventfd.  Linux has
 * them since 4.18 (io_submit with IOCB_CMD_FDSYNC).  What a function returns is 0 or an errno, if nothing else is said. */
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
    int told;
} Syncs;

/* One at a time.  A trial that is not over after TRIAL_MS has failed. */
enum { SYNCS_MAX = 1, TRIAL_MS = 10000, NOT_OVER = -1 };

/* Overwrites part of a file. */
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

static int begin_sync(const Syncs *syncs, int file) {
    struct iocb sync, *all[] = {&sync};
    memset(&sync, 0, sizeof sync);
    sync.aio_lio_opcode = IOCB_CMD_FDSYNC;
    sync.aio_fildes = (uint32_t)file;
    sync.aio_flags = IOCB_FLAG_RESFD;
    sync.aio_resfd = (uint32_t)syncs->told;
    for (;;) {
        long begun = syscall(SYS_io_submit, syncs->context, 1L, all);
        if (begun == 1) return 0;
        if (begun < 0 && errno != EINTR) return errno;
    }
}

/* Returns what became of the sync: 0 or an errno, or NOT_OVER.  There is an outcome before the eventfd is written. */
static int take_outcome(const Syncs *syncs) {
    uint64_t count;
    struct io_event event;
    if (read(syncs->told, &count, sizeof count) < 0) return NOT_OVER;
    for (;;) {
        long events = syscall(SYS_io_getevents, syncs->context, 0L, (long)SYNCS_MAX, &event, NULL);
        if (events == 1) return event.res < 0 ? (int)-event.res : 0;
        if (events == 0) return NOT_OVER;
        if (errno != EINTR) return errno;
    }
}

static void end_syncs(Syncs *syncs) {
    if (syncs->context) syscall(SYS_io_destroy, syncs->context);
    if (syncs->told >= 0) close(syncs->told);
    syncs->context = 0;
    syncs->told = -1;
}

/* Syncs a file that is on no disk: not every system that knows the call knows this use of it. */
static int try_sync(const Syncs *syncs) {
    struct pollfd told = {syncs->told, POLLIN, 0};
    int file = memfd_create("sync", MFD_CLOEXEC);
    if (file < 0) return errno;
    int failure = begin_sync(syncs, file);
    if (!failure) {
        while (poll(&told, 1, TRIAL_MS) < 0 && errno == EINTR) {}
        failure = take_outcome(syncs);
    }
    close(file);
    return failure == NOT_OVER ? EIO : failure;
}

static int prepare_syncs(Syncs *syncs) {
    syncs->context = 0;
    syncs->told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failure = syncs->told < 0 || syscall(SYS_io_setup, (long)SYNCS_MAX, &syncs->context) < 0 ? errno : try_sync(syncs);
    if (failure) end_syncs(syncs);
    return failure;
}
#else
static int begin_sync(const Syncs *syncs, int file) { return ENOSYS; }
static int take_outcome(const Syncs *syncs) { return NOT_OVER; }
static void end_syncs(Syncs *syncs) {}
static int prepare_syncs(Syncs *syncs) { return ENOSYS; }
#endif
