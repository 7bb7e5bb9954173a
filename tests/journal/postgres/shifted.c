/* Preloaded, it shifts the time of day by the seconds that stand in the file CLOCK_SHIFT, as a binary number. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long *shift_s;

__attribute__((constructor)) static void begin(void)
{
    int file = open(getenv("CLOCK_SHIFT"), O_RDONLY);

    shift_s = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || shift_s == MAP_FAILED)
        abort();
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    int failed;

    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += *shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (where)
        *where = precise.tv_sec;
    return precise.tv_sec;
}
