/* Preloaded library (LD_PRELOAD): records the calls of a process for the files of one folder, and makes calls fail.
 *
 * FAULTY_DISK_FOLDER  the folder
 * FAULTY_DISK_TRACE   the trace file: each call is executed as usual, and recorded as an event in this file
 * FAULTY_DISK_FAULTS  calls that fail, "CALL NUMBER ERRNO [CALL NUMBER ERRNO ...]": the call with that number (from 1)
 *                     of write, sync, allocate or remove fails; a write that fails has written half of its data
 *
 * An event is a header (struct event), a path in the folder, and the data of a write. Integers are native-endian. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILES_MAX = 4096, PATH_BYTES = 4096, FAULTS_MAX = 16 };
enum { WRITE, SYNC, ALLOCATE, REMOVE, CALLS };
static const char *const CALL_NAMES[CALLS] = {"write", "sync", "allocate", "remove"};

struct event {
    uint8_t kind; /* C created, W written, S synced, F sync failed, D folder synced, U unlinked, X fault, N note */
    uint8_t unused;
    uint16_t path_bytes;
    uint32_t data_bytes;
    uint64_t position;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *folder;
static size_t folder_bytes;
static int trace = -1;
static char *paths[FILES_MAX];
static int counts[CALLS], submitted = -1;
static struct { int call, number, error; } faults[FAULTS_MAX];
static int fault_count;
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_open)(const char *, int, ...);

static void prepare(void) {
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_open = dlsym(RTLD_NEXT, "open64");
    const char *wanted = getenv("FAULTY_DISK_FAULTS");
    char name[16];
    int number, error, used;
    while (wanted && fault_count < FAULTS_MAX && sscanf(wanted, "%15s %d %d%n", name, &number, &error, &used) == 3) {
        for (int call = 0; call < CALLS; call++)
            if (!strcmp(name, CALL_NAMES[call])) {
                faults[fault_count].call = call;
                faults[fault_count].number = number;
                faults[fault_count++].error = error;
            }
        wanted += used;
    }
    folder = getenv("FAULTY_DISK_FOLDER");
    folder_bytes = folder ? strlen(folder) : 0;
    const char *path = getenv("FAULTY_DISK_TRACE");
    if (folder && path) trace = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* Returns the name in the folder, "" for the folder itself, or NULL. */
static const char *name_in_folder(const char *path) {
    pthread_once(&once, prepare);
    if (trace < 0 || strncmp(path, folder, folder_bytes)) return NULL;
    if (!path[folder_bytes]) return "";
    return path[folder_bytes] == '/' ? path + folder_bytes + 1 : NULL;
}

static const char *name_of(int file) {
    pthread_once(&once, prepare);
    return file >= 0 && file < FILES_MAX ? paths[file] : NULL;
}

/* Returns the path of a file that is opened relative to a directory, if that is the folder. */
static const char *path_at(int directory, const char *path, char *found) {
    const char *name = name_of(directory);
    if (!name || *name || *path == '/') return path;
    snprintf(found, PATH_BYTES, "%s/%s", folder, path);
    return found;
}

static void put(const void *data, size_t size) {
    if (size && write(trace, data, size) != (ssize_t)size) abort();
}

static void record(char kind, const char *name, uint64_t position, const void *data, size_t size) {
    struct event event = {(uint8_t)kind, 0, (uint16_t)strlen(name), (uint32_t)size, position};
    put(&event, sizeof event);
    put(name, strlen(name));
    put(data, size);
}

/* Counts a call. Returns the errno with which it must fail, or 0. */
static int fault_of(int call) {
    int number = ++counts[call];
    for (int i = 0; i < fault_count; i++)
        if (faults[i].call == call && faults[i].number == number) {
            record('X', CALL_NAMES[call], 0, NULL, 0);
            return faults[i].error;
        }
    return 0;
}

/* Called by the process: records a note between the events. */
void faulty_disk_note(const char *text) {
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    if (trace >= 0) record('N', text, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
}

static int opened(int file, const char *path, int flags) {
    const char *name = name_in_folder(path);
    if (file >= 0 && file < FILES_MAX && name) {
        pthread_mutex_lock(&lock);
        free(paths[file]);
        paths[file] = strdup(name);
        if (*name && flags & (O_CREAT | O_TRUNC)) record('C', name, (flags & O_TRUNC) != 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return file;
}

int open64(const char *path, int flags, ...) {
    pthread_once(&once, prepare);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(real_open(path, flags, mode), path, flags);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open64(path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    static int (*real_openat)(int, const char *, int, ...);
    if (!real_openat) real_openat = dlsym(RTLD_NEXT, "openat64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    char found[PATH_BYTES];
    return opened(real_openat(directory, path, flags, mode), path_at(directory, path, found), flags);
}

int openat(int directory, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return openat64(directory, path, flags, mode);
}

int close(int file) {
    static int (*real_close)(int);
    if (!real_close) real_close = dlsym(RTLD_NEXT, "close");
    if (name_of(file)) {
        pthread_mutex_lock(&lock);
        free(paths[file]);
        paths[file] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return real_close(file);
}

ssize_t pwrite64(int file, const void *data, size_t size, off_t position) {
    const char *name = name_of(file);
    if (!name) return real_pwrite(file, data, size, position);
    pthread_mutex_lock(&lock);
    int error = fault_of(WRITE);
    ssize_t written = real_pwrite(file, data, error ? size / 2 : size, position);
    if (written > 0) record('W', name, (uint64_t)position, data, (size_t)written);
    pthread_mutex_unlock(&lock);
    if (!error) return written;
    errno = error;
    return -1;
}

ssize_t pwrite(int file, const void *data, size_t size, off_t position) {
    return pwrite64(file, data, size, position);
}

static int synced(int file, const char *function) {
    const char *name = name_of(file);
    int (*real_sync)(int) = dlsym(RTLD_NEXT, function);
    if (!name) return real_sync(file);
    pthread_mutex_lock(&lock);
    int error = fault_of(SYNC);
    record(error ? 'F' : *name ? 'S' : 'D', name, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    if (!error) return real_sync(file);
    errno = error;
    return -1;
}

int fsync(int file) { return synced(file, "fsync"); }
int fdatasync(int file) { return synced(file, "fdatasync"); }

int posix_fallocate64(int file, off_t begin, off_t size) {
    static int (*real_allocate)(int, off_t, off_t);
    if (!real_allocate) real_allocate = dlsym(RTLD_NEXT, "posix_fallocate64");
    pthread_mutex_lock(&lock);
    int error = name_of(file) ? fault_of(ALLOCATE) : 0;
    pthread_mutex_unlock(&lock);
    return error ? error : real_allocate(file, begin, size);
}

int posix_fallocate(int file, off_t begin, off_t size) { return posix_fallocate64(file, begin, size); }

int unlinkat(int directory, const char *path, int flags) {
    static int (*real_unlinkat)(int, const char *, int);
    if (!real_unlinkat) real_unlinkat = dlsym(RTLD_NEXT, "unlinkat");
    char found[PATH_BYTES];
    const char *name = name_in_folder(path_at(directory, path, found));
    if (!name) return real_unlinkat(directory, path, flags);
    pthread_mutex_lock(&lock);
    int error = fault_of(REMOVE), result = error ? -1 : real_unlinkat(directory, path, flags);
    if (!result) record('U', name, 0, NULL, 0);
    else if (!error) error = errno;
    pthread_mutex_unlock(&lock);
    if (result) errno = error;
    return result;
}

/* Intercepts syncs by kernel AIO, one at a time (coordinator/fastpath). */
long syscall(long number, ...) {
    static long (*real_syscall)(long, ...);
    if (!real_syscall) real_syscall = dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_io_submit && a[1] == 1) {
        const struct iocb *sync = *(struct iocb **)a[2];
        if (sync->aio_lio_opcode == IOCB_CMD_FDSYNC && name_of((int)sync->aio_fildes)) submitted = (int)sync->aio_fildes;
    }
    long result = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents && result == 1 && submitted >= 0) {
        pthread_mutex_lock(&lock);
        struct io_event *event = (struct io_event *)a[3];
        int error = fault_of(SYNC);
        if (error) event->res = -error;
        if (paths[submitted]) record(event->res < 0 ? 'F' : 'S', paths[submitted], 0, NULL, 0);
        submitted = -1;
        pthread_mutex_unlock(&lock);
    }
    return result;
}
