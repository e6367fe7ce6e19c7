/* Makes a process's time of day jump: when preloaded, every reading of CLOCK_REALTIME is off by a number of days that changes each
 * second, backwards as often as forwards. Nothing in memferry may depend on that clock. Monotonic clocks are not
 * changed. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t jump(time_t second) {
    unsigned long mixed = (unsigned long)second * 0x9e3779b97f4a7c15ul;
    return (time_t)(mixed >> 40) - (1 << 23);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += jump(time->tv_sec);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
