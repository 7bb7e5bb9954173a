/* Intercepts each change that this process makes to the files below one folder, and can kill the process there, or make
 * the call fail. Loaded by LD_PRELOAD; it does nothing before faults_arm(), which forker.py calls.
 *
 * Not seen are writes through mmap, which only the -shm has, and SQLite makes that anew after a crash; and changes of
 * owners and modes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

/* As in forker.py, where they are bits of a mask. */
enum kind { CREATE, WRITE, TRUNCATE, ALLOCATE, UNLINK, RENAME, LINK, MKDIR, XATTR, SYNC, SYNCED, READ, OPEN, CLOSE };
static const char *const NAMES[] = {"create", "write", "truncate", "allocate", "unlink", "rename", "link",
                                    "mkdir",  "xattr", "sync",     "synced",   "read",   "open",   "close"};
/* A write of no more than this is done or not done, however the process ends. */
#define SECTOR 512

/* SHORT_ON: from the n-th call on, reads and writes transfer only half of what is requested. */
enum action { RECORD, KILL_BEFORE, KILL_AMID, FAIL_ONCE, FAIL_ON, SHORT_ON };

static char folder[PATH_MAX];
static size_t folder_size; /* 0: not armed */
static int trace = -1;
static unsigned kinds;
static long nth, seen;
static enum action action;
static int failure;
static long room = -1;
static int no_room = ENOSPC;

static int due(enum kind kind);

/* Looked up once, as finding a name takes longer than most calls do. */
#define REAL(name) \
    ({ \
        static __typeof__(&name) real_; \
        if (!real_) \
            real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        real_; \
    })

/* From now on record operations below `below` in `trace_fd`, and take an action at the n-th call of these kinds. */
void faults_arm(const char *below, int trace_fd, unsigned mask, long number, int what, int error)
{
    folder_size = snprintf(folder, sizeof folder, "%s", below);
    trace = trace_fd;
    kinds = mask;
    nth = number;
    action = what;
    failure = error;
    seen = 0;
}

/* For a caller that simulates a call of this kind: returns the errno with which it has to fail, or 0. */
int faults_due(int kind)
{
    int error = due(kind);
    return error > 0 ? error : 0;
}

/* Whether the n-th call has come, at which the action is taken. */
int faults_came(void) { return nth && seen >= nth; }

/* From now on the files below the folder can grow by this many bytes; -1: as far as the disk allows. */
void faults_room(long bytes)
{
    room = bytes;
    no_room = ENOSPC;
}

/* The same by a quota, which statvfs does not show. */
void faults_quota(long bytes)
{
    room = bytes;
    no_room = EDQUOT;
}

static int is_told_by_statvfs(void) { return room >= 0 && no_room == ENOSPC; }

/* The path below the folder, "." for the folder itself, or NULL if it is elsewhere. */
static const char *below(const char *path)
{
    if (!folder_size || strncmp(path, folder, folder_size))
        return NULL;
    if (!path[folder_size])
        return ".";
    return path[folder_size] == '/' ? path + folder_size + 1 : NULL;
}

/* The same for a file descriptor; NULL also for a file that has been removed. */
static const char *below_fd(int fd, char *buffer)
{
    char link[64];
    if (!folder_size)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, buffer, PATH_MAX - 1);
    if (size < 0)
        return NULL;
    buffer[size] = 0;
    return strstr(buffer, " (deleted)") ? NULL : below(buffer);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Transfers of no more than this are never cut in half. */
#define FEW 16

/* Other results of due(), besides 0 and an errno: be killed amid a write, or do half of it. */
enum { AMID = -1, HALF = -2 };

/* To be called before each call: may kill the process; returns an errno with which to fail, 0, or one of the above. */
static int due(enum kind kind)
{
    if (!(kinds & 1u << kind))
        return 0;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (action == KILL_AMID && number == nth && kind == WRITE)
        return AMID;
    if (action == SHORT_ON && number >= nth)
        return HALF;
    if ((action == KILL_BEFORE || action == KILL_AMID) && number == nth)
        die();
    if ((action == FAIL_ONCE && number == nth) || (action == FAIL_ON && number >= nth))
        return failure;
    return 0;
}

static size_t half(size_t size) { return size > FEW ? size / 2 : size; }

/* To be called after a successful call: records a line "kind name offset size", then the data, and a newline. */
static void record(enum kind kind, const char *name, long offset, const void *data, size_t size)
{
    char line[PATH_MAX + 64];
    if (trace < 0)
        return;
    int error = errno;
    int length = snprintf(line, sizeof line, "%s %s %ld %zu\n", NAMES[kind], name, offset, size);
    struct iovec parts[] = {{line, length}, {(void *)data, size}, {"\n", 1}};
    if (writev(trace, parts, 3) < 0)
        die(); /* no trace is worse than half a test */
    errno = error;
}

#define FAIL_IF_DUE(kind, failed) \
    do { \
        int error_ = due(kind); \
        if (error_ > 0) { \
            errno = error_; \
            return failed; \
        } \
    } while (0)

/* -- open: a change only if it creates or truncates the file */

static int open_any(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode)
{
    const char *name = below(path);
    struct stat status;
    enum kind kind = OPEN;
    if (!name)
        return real(path, flags, mode);
    if (flags & (O_CREAT | O_TRUNC)) {
        if (stat(path, &status))
            kind = flags & O_CREAT ? CREATE : OPEN;
        else if (flags & O_TRUNC && status.st_size)
            kind = TRUNCATE;
    }
    FAIL_IF_DUE(kind, -1);
    int fd = real(path, flags, mode);
    if (fd >= 0 && kind != OPEN)
        record(kind, name, 0, NULL, 0);
    return fd;
}

#define MODE_OF(flags, last, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        MODE_OF(flags, flags, mode) \
        return open_any(REAL(name), path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

/* None of these programs opens files relative to a folder. */
#define OPENS_AT(name, plain) \
    int name(int dir, const char *path, int flags, ...) \
    { \
        MODE_OF(flags, flags, mode) \
        return path[0] == '/' ? open_any(REAL(plain), path, flags, mode) : REAL(name)(dir, path, flags, mode); \
    }
OPENS_AT(openat, open)
OPENS_AT(openat64, open64)

/* -- content, and the free space for it */

/* A file is about to get this size: returns the errno if there is no space for that, or 0. */
static int grows(int fd, off_t size)
{
    struct stat status;
    if (room < 0 || fstat(fd, &status))
        return 0;
    long more = size - status.st_size;
    if (more > room)
        return no_room;
    room -= more;
    return 0;
}

static int grows_to(int fd, off_t size)
{
    struct stat status;
    return room >= 0 && !fstat(fd, &status) && size > status.st_size ? grows(fd, size) : 0;
}

int fstatvfs64(int fd, struct statvfs64 *disk)
{
    char buffer[PATH_MAX];
    int result = REAL(fstatvfs64)(fd, disk);
    if (!result && is_told_by_statvfs() && below_fd(fd, buffer))
        disk->f_bavail = room / disk->f_frsize;
    return result;
}

int fstatvfs(int fd, struct statvfs *disk)
{
    char buffer[PATH_MAX];
    int result = REAL(fstatvfs)(fd, disk);
    if (!result && is_told_by_statvfs() && below_fd(fd, buffer))
        disk->f_bavail = room / disk->f_frsize;
    return result;
}

static ssize_t write_any(int fd, const void *data, size_t size, off_t offset)
{
    char buffer[PATH_MAX];
    const char *name = below_fd(fd, buffer);
    off_t place = offset;
    if (name) {
        if (place < 0)
            place = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
        int error = due(WRITE);
        if (error == HALF) {
            size = half(size);
            error = 0;
        }
        if (error == AMID) {
            if (size > SECTOR)
                REAL(pwrite64)(fd, data, size / 2, place);
            die();
        }
        if (!error)
            error = grows_to(fd, place + size);
        if (error) {
            errno = error;
            return -1;
        }
    }
    ssize_t done = offset < 0 ? REAL(write)(fd, data, size) : REAL(pwrite64)(fd, data, size, offset);
    if (name && done > 0)
        record(WRITE, name, place, data, done);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return write_any(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return write_any(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return write_any(fd, data, size, offset); }

/* Programs that copy files then fall back to read and write, which are intercepted. */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size)
{
    char buffer[PATH_MAX];
    if (below_fd(out, buffer)) {
        errno = EINVAL;
        return -1;
    }
    return REAL(sendfile64)(out, in, offset, size);
}

static int truncate_any(int fd, off_t size)
{
    char buffer[PATH_MAX];
    const char *name = below_fd(fd, buffer);
    if (name)
        FAIL_IF_DUE(TRUNCATE, -1);
    if (name && grows(fd, size)) {
        errno = no_room;
        return -1;
    }
    int result = REAL(ftruncate64)(fd, size);
    if (name && !result)
        record(TRUNCATE, name, size, NULL, 0);
    return result;
}

int ftruncate(int fd, off_t size) { return truncate_any(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_any(fd, size); }

/* These return their error. The size is what the file grows to at least. */
static int allocate_any(int fd, off_t offset, off_t size)
{
    char buffer[PATH_MAX] = "";
    const char *name = below_fd(fd, buffer);
    int error = name ? due(ALLOCATE) : 0;
    if (!name && room >= 0 && below(buffer) && offset + size > room)
        return no_room; /* it has no name, and so takes the space only for a moment */
    if (name && !error)
        error = grows_to(fd, offset + size);
    if (error <= 0)
        error = REAL(posix_fallocate64)(fd, offset, size);
    if (name && !error)
        record(ALLOCATE, name, offset + size, NULL, 0);
    return error;
}

int posix_fallocate(int fd, off_t offset, off_t size) { return allocate_any(fd, offset, size); }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return allocate_any(fd, offset, size); }

/* -- names */

#define RETURN_RECORDED(kind, call, name, data) \
    do { \
        const char *name_ = name; \
        if (!name_) \
            return call; \
        FAIL_IF_DUE(kind, -1); \
        int result_ = call; \
        if (!result_) \
            record(kind, name_, 0, data, strlen(data)); \
        return result_; \
    } while (0)

static const char *or_none(const char *name) { return name ? name : ""; }

/* As below(), for a file that exists: removing a missing one is no operation. */
static const char *there(const char *path) { return access(path, F_OK) ? NULL : below(path); }

/* A file that is removed gives its space back, as if no process had it open. */
static int unlink_any(const char *path)
{
    struct stat status;
    int error = stat(path, &status), result = REAL(unlink)(path);
    if (!result && !error && room >= 0 && below(path))
        room += status.st_size;
    return result;
}

int unlink(const char *path) { RETURN_RECORDED(UNLINK, unlink_any(path), there(path), ""); }
int unlinkat(int dir, const char *path, int flags)
{
    RETURN_RECORDED(UNLINK, REAL(unlinkat)(dir, path, flags), there(path), "");
}
int rename(const char *from, const char *to)
{
    RETURN_RECORDED(RENAME, REAL(rename)(from, to), there(from), or_none(below(to)));
}
int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    RETURN_RECORDED(RENAME, REAL(renameat)(from_dir, from, to_dir, to), there(from), or_none(below(to)));
}
int link(const char *from, const char *to)
{
    RETURN_RECORDED(LINK, REAL(link)(from, to), there(from), or_none(below(to)));
}
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    RETURN_RECORDED(LINK, REAL(linkat)(from_dir, from, to_dir, to, flags), there(from), or_none(below(to)));
}
int mkdir(const char *path, mode_t mode) { RETURN_RECORDED(MKDIR, REAL(mkdir)(path, mode), below(path), ""); }

/* Attributes: the key, and after an equals sign the value, unless it is removed. */
int fsetxattr(int fd, const char *key, const void *value, size_t size, int flags)
{
    char buffer[PATH_MAX], pair[1024];
    snprintf(pair, sizeof pair, "%s=%.*s", key, (int)size, (const char *)value);
    RETURN_RECORDED(XATTR, REAL(fsetxattr)(fd, key, value, size, flags), below_fd(fd, buffer), pair);
}
int setxattr(const char *path, const char *key, const void *value, size_t size, int flags)
{
    char pair[1024];
    snprintf(pair, sizeof pair, "%s=%.*s", key, (int)size, (const char *)value);
    RETURN_RECORDED(XATTR, REAL(setxattr)(path, key, value, size, flags), below(path), pair);
}
int fremovexattr(int fd, const char *key)
{
    char buffer[PATH_MAX];
    RETURN_RECORDED(XATTR, REAL(fremovexattr)(fd, key), below_fd(fd, buffer), key);
}

/* -- syncs: not carried out, as a kill does not affect the kernel's cache, and power failures are modelled */

static int sync_any(int (*real)(int), int fd)
{
    char buffer[PATH_MAX];
    const char *name = below_fd(fd, buffer);
    if (!name)
        return real(fd);
    FAIL_IF_DUE(SYNC, -1);
    record(SYNC, name, 0, NULL, 0);
    record(SYNCED, name, 0, NULL, 0);
    return 0;
}

int fsync(int fd) { return sync_any(REAL(fsync), fd); }
int fdatasync(int fd) { return sync_any(REAL(fdatasync), fd); }

/* The kernel's asynchronous I/O, for which glibc has no wrappers. "synced" is recorded when the process gets the event;
 * data written between "sync" and "synced" need not be on the medium. */
static long submit(long context, long count, struct iocb **operations)
{
    char buffer[PATH_MAX];
    for (long i = 0; i < count; i++) {
        const char *name = below_fd(operations[i]->aio_fildes, buffer);
        int operation = operations[i]->aio_lio_opcode;
        if (!name || (operation != IOCB_CMD_FDSYNC && operation != IOCB_CMD_FSYNC))
            continue;
        FAIL_IF_DUE(SYNC, -1);
        record(SYNC, name, 0, NULL, 0);
    }
    return REAL(syscall)(SYS_io_submit, context, count, operations);
}

static long get_events(long a, long b, long c, struct io_event *events, long e)
{
    char buffer[PATH_MAX];
    long count = REAL(syscall)(SYS_io_getevents, a, b, c, events, e);
    for (long i = 0; i < count; i++) {
        struct iocb *operation = (struct iocb *)events[i].obj;
        const char *name = below_fd(operation->aio_fildes, buffer);
        if (name && !events[i].res)
            record(SYNCED, name, 0, NULL, 0);
    }
    return count;
}

long syscall(long number, ...)
{
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_io_submit)
        return submit(a, b, (struct iocb **)c);
    if (number == SYS_io_getevents)
        return get_events(a, b, c, (struct io_event *)d, e);
    return REAL(syscall)(number, a, b, c, d, e, f);
}

/* -- reads, which can only fail or be short. They are many: where kinds are named and this is none of them, they are not
 * recorded either. */

static ssize_t read_any(int fd, void *data, size_t size, off_t offset)
{
    char buffer[PATH_MAX];
    const char *name = !kinds || kinds & 1u << READ ? below_fd(fd, buffer) : NULL;
    if (name) {
        int error = due(READ);
        if (error == HALF)
            size = half(size);
        else if (error) {
            errno = error;
            return -1;
        }
        record(READ, name, offset, NULL, 0);
    }
    return offset < 0 ? REAL(read)(fd, data, size) : REAL(pread64)(fd, data, size, offset);
}

ssize_t read(int fd, void *data, size_t size) { return read_any(fd, data, size, -1); }
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return read_any(fd, data, size, offset); }
ssize_t pread64(int fd, void *data, size_t size, off64_t offset) { return read_any(fd, data, size, offset); }

/* -- close: the file descriptor is gone, whatever close() returns */

int close(int fd)
{
    char buffer[PATH_MAX];
    const char *name = below_fd(fd, buffer);
    int error = name ? due(CLOSE) : 0;
    int result = REAL(close)(fd);
    if (result || error <= 0)
        return result;
    errno = error;
    return -1;
}
