/* A machine's clock that a test can set: it is shifted by the number of seconds in the file SHIFTED_BY. Loaded by
 * LD_PRELOAD. Clocks that count from the boot are not affected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long *by_s;

static __attribute__((constructor)) void begin(void)
{
    int fd = open(getenv("SHIFTED_BY"), O_RDONLY | O_CLOEXEC);
    by_s = mmap(NULL, sizeof *by_s, PROT_READ, MAP_SHARED, fd, 0);
    if (by_s == MAP_FAILED)
        abort();
    close(fd);
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (__typeof__(real))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (which == CLOCK_REALTIME && by_s)
        now->tv_sec += *by_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}
