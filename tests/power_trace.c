/* What a process asks the kernel to do with files below POWER_ROOT, written to POWER_TRACE, flags included.

   For LD_PRELOAD: it stands where the system calls of the whole process are, SQLite's as well as Python's. Flushes are
   recorded and not done. One call at a time: a flush covers exactly what is recorded before it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, WRITE_FLUSHED, SYNC, ALLOCATE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, SYNC_DIRECTORY, MAPPED };
#define FDS 65536

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int trace = -1;
static const char *root;
static size_t root_size;
static unsigned char watched[FDS]; /* 1: a file, 2: a directory, 4: flushed with each write */
static char *names[FDS];

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    root = getenv("POWER_ROOT");
    const char *path = getenv("POWER_TRACE");
    if (!root || !path) return;
    root_size = strlen(root);
    trace = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace < 0) abort();
}

static int below(const char *path) {
    return trace >= 0 && path && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static void put(const struct iovec *parts, int count) {
    for (int i = 0; i < count; i++) {
        const char *at = parts[i].iov_base;
        size_t left = parts[i].iov_len;
        while (left) {
            ssize_t done = REAL(write)(trace, at, left);
            if (done < 0) abort();
            at += done;
            left -= done;
        }
    }
}

/* One step: its head, a path, another path or the bytes that were written. */
static void note(uint32_t what, uint64_t inode, int64_t offset, const char *path, const struct iovec *data, int count,
                 size_t size) {
    struct __attribute__((packed)) { uint32_t what, path; uint64_t inode; int64_t offset; uint64_t size; } head = {
        what, (uint32_t)strlen(path), inode, offset, size};
    struct iovec first[2] = {{&head, sizeof head}, {(void *)path, head.path}};
    put(first, 2);
    for (int i = 0; i < count && size; i++) {
        struct iovec part = data[i];
        if (part.iov_len > size) part.iov_len = size;
        put(&part, 1);
        size -= part.iov_len;
    }
}

static uint64_t inode_of(int fd) {
    struct stat status;
    if (fstat(fd, &status)) abort();
    return status.st_ino;
}

static int is_watched(int fd, int kind) { return fd >= 0 && fd < FDS && (watched[fd] & kind); }

static int opened(const char *path, int there, int fd, int flags) {
    if (fd < 0 || fd >= FDS) { if (fd >= FDS) abort(); return fd; }
    struct stat status;
    if (fstat(fd, &status)) abort();
    watched[fd] = S_ISDIR(status.st_mode) ? 2 : flags & (O_DSYNC | O_SYNC) ? 5 : 1;
    free(names[fd]);
    names[fd] = strdup(path + root_size + 1 - !path[root_size]);
    if (watched[fd] & 1 && !there) note(CREATE, status.st_ino, 0, names[fd], 0, 0, 0);
    else if (watched[fd] & 1 && flags & O_TRUNC) note(TRUNCATE, status.st_ino, 0, names[fd], 0, 0, 0);
    return fd;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);                         \
        if (!below(path)) return REAL(name)(path, flags, mode);                                                        \
        pthread_mutex_lock(&lock);                                                                                     \
        int there = !access(path, F_OK);                                                                               \
        int fd = opened(path, there, REAL(name)(path, flags & ~(O_DSYNC | O_SYNC), mode), flags);                      \
        int error = errno; pthread_mutex_unlock(&lock); errno = error;                                                 \
        return fd;                                                                                                     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int at, const char *path, int flags, ...) {                                                               \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);                         \
        if (!below(path)) return REAL(name)(at, path, flags, mode);                                                    \
        pthread_mutex_lock(&lock);                                                                                     \
        int there = !access(path, F_OK);                                                                               \
        int fd = opened(path, there, REAL(name)(at, path, flags & ~(O_DSYNC | O_SYNC), mode), flags);                  \
        int error = errno; pthread_mutex_unlock(&lock); errno = error;                                                 \
        return fd;                                                                                                     \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    pthread_mutex_lock(&lock);
    if (fd >= 0 && fd < FDS) watched[fd] = 0;
    pthread_mutex_unlock(&lock);
    return REAL(close)(fd);
}

static void wrote(int fd, const struct iovec *parts, int count, int64_t offset, ssize_t done, int flushed) {
    if (done > 0)
        note(flushed || watched[fd] & 4 ? WRITE_FLUSHED : WRITE, inode_of(fd), offset, names[fd], parts, count, done);
}

#define WATCHED_WRITE(call, parts, count, where, flushed)                                                              \
    pthread_mutex_lock(&lock);                                                                                         \
    int64_t at = where;                                                                                                \
    ssize_t done = call;                                                                                               \
    int error = errno;                                                                                                 \
    wrote(fd, parts, count, at, done, flushed);                                                                        \
    pthread_mutex_unlock(&lock); errno = error;                                                                        \
    return done;

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_watched(fd, 1)) return REAL(write)(fd, data, size);
    struct iovec part = {(void *)data, size};
    int appends = REAL(fcntl)(fd, F_GETFL) & O_APPEND;
    WATCHED_WRITE(REAL(write)(fd, data, size), &part, 1, lseek(fd, 0, appends ? SEEK_END : SEEK_CUR), 0)
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_watched(fd, 1)) return REAL(writev)(fd, parts, count);
    int appends = REAL(fcntl)(fd, F_GETFL) & O_APPEND;
    WATCHED_WRITE(REAL(writev)(fd, parts, count), parts, count, lseek(fd, 0, appends ? SEEK_END : SEEK_CUR), 0)
}

#define PWRITE(name, off)                                                                                              \
    ssize_t name(int fd, const void *data, size_t size, off offset) {                                                  \
        if (!is_watched(fd, 1)) return REAL(name)(fd, data, size, offset);                                             \
        struct iovec part = {(void *)data, size};                                                                      \
        WATCHED_WRITE(REAL(name)(fd, data, size, offset), &part, 1, offset, 0)                                         \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, off)                                                                                             \
    ssize_t name(int fd, const struct iovec *parts, int count, off offset) {                                           \
        if (!is_watched(fd, 1)) return REAL(name)(fd, parts, count, offset);                                           \
        WATCHED_WRITE(REAL(name)(fd, parts, count, offset), parts, count, offset, 0)                                   \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, off)                                                                                            \
    ssize_t name(int fd, const struct iovec *parts, int count, off offset, int flags) {                                \
        if (!is_watched(fd, 1)) return REAL(name)(fd, parts, count, offset, flags);                                    \
        WATCHED_WRITE(REAL(name)(fd, parts, count, offset, flags & ~(RWF_DSYNC | RWF_SYNC)), parts, count, offset,     \
                      flags & (RWF_DSYNC | RWF_SYNC))                                                                  \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

static int flushed(int fd) {
    pthread_mutex_lock(&lock);
    note(watched[fd] & 2 ? SYNC_DIRECTORY : SYNC, inode_of(fd), 0, names[fd], 0, 0, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}
int fsync(int fd) { return is_watched(fd, 3) ? flushed(fd) : REAL(fsync)(fd); }
int fdatasync(int fd) { return is_watched(fd, 3) ? flushed(fd) : REAL(fdatasync)(fd); }

#define SIZED(what, call, size, test)                                                                                  \
    pthread_mutex_lock(&lock);                                                                                         \
    int result = call, error = errno;                                                                                  \
    if (!result && (test)) note(what, inode_of(fd), size, names[fd], 0, 0, 0);                                         \
    pthread_mutex_unlock(&lock); errno = error;                                                                        \
    return result;
#define TRUNCATING(name, off)                                                                                          \
    int name(int fd, off size) { SIZED(TRUNCATE, REAL(name)(fd, size), size, is_watched(fd, 1)) }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)
#define ALLOCATING(name, off)                                                                                          \
    int name(int fd, off from, off size) {                                                                             \
        SIZED(ALLOCATE, REAL(name)(fd, from, size), from + size, is_watched(fd, 1))                         \
    }
ALLOCATING(posix_fallocate, off_t)
ALLOCATING(posix_fallocate64, off64_t)

#define BY_PATH(name, off)                                                                                             \
    int name(const char *path, off size) {                                                                             \
        if (!below(path)) return REAL(name)(path, size);                                                               \
        int fd = open(path, O_WRONLY);                                                                                 \
        if (fd < 0) return -1;                                                                                         \
        int result = ftruncate(fd, size), error = errno;                                                               \
        close(fd); errno = error;                                                                                      \
        return result;                                                                                                 \
    }
BY_PATH(truncate, off_t)
BY_PATH(truncate64, off64_t)

#define NAMED(path, call, what, data, count, size)                                                                     \
    if (!below(path)) return call;                                                                                     \
    pthread_mutex_lock(&lock);                                                                                         \
    int result = call, error = errno;                                                                                  \
    if (!result) note(what, 0, 0, (path) + root_size + 1, data, count, size);                                          \
    pthread_mutex_unlock(&lock); errno = error;                                                                        \
    return result;
int rename(const char *from, const char *to) {
    struct iovec target = {(void *)(to + root_size + 1), below(to) ? strlen(to) - root_size - 1 : 0};
    NAMED(from, REAL(rename)(from, to), RENAME, &target, 1, target.iov_len)
}
int unlink(const char *path) { NAMED(path, REAL(unlink)(path), UNLINK, 0, 0, 0) }
int unlinkat(int at, const char *path, int flags) {
    NAMED(path, REAL(unlinkat)(at, path, flags), flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0)
}
int mkdir(const char *path, mode_t mode) { NAMED(path, REAL(mkdir)(path, mode), MKDIR, 0, 0, 0) }
int rmdir(const char *path) { NAMED(path, REAL(rmdir)(path), RMDIR, 0, 0, 0) }

#define MAPPING(name, off)                                                                                             \
    void *name(void *at, size_t size, int access, int flags, int fd, off offset) {                                     \
        if (is_watched(fd, 1) && flags & MAP_SHARED && access & PROT_WRITE) {                                          \
            pthread_mutex_lock(&lock);                                                                                 \
            note(MAPPED, inode_of(fd), 0, names[fd], 0, 0, 0);                                                         \
            pthread_mutex_unlock(&lock);                                                                               \
        }                                                                                                              \
        return REAL(name)(at, size, access, flags, fd, offset);                                                        \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)
