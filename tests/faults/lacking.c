/* A file system that lacks what LACKS names: flock, fcntl, mmap or xattr. Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/xattr.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int lacks(const char *what, int error)
{
    const char *lacking = getenv("LACKS");
    if (!lacking || strcmp(lacking, what))
        return 0;
    errno = error;
    return 1;
}

int flock(int fd, int operation)
{
    return lacks("flock", ENOLCK) ? -1 : REAL(flock)(fd, operation);
}

int fcntl64(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if ((command == F_SETLK || command == F_SETLKW) && lacks("fcntl", ENOLCK))
        return -1;
    return REAL(fcntl64)(fd, command, argument);
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && lacks("mmap", ENODEV))
        return MAP_FAILED;
    return REAL(mmap64)(at, size, protection, flags, fd, offset);
}

void *mmap(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap64")));

ssize_t fgetxattr(int fd, const char *name, void *value, size_t size)
{
    return lacks("xattr", ENOSYS) ? -1 : REAL(fgetxattr)(fd, name, value, size);
}

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
    return lacks("xattr", ENOSYS) ? -1 : REAL(fsetxattr)(fd, name, value, size, flags);
}
