/* Copies in situations that break libraries which replace memcpy; prints "ok" at the end, or what failed. Sizes are around
 * every threshold. Compiled by tests/programs.rs and run with and without the preloaded library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Above any machine's thresholds: more than half of a 64 MiB last-level cache. */
#define MOST ((size_t)48 << 20)

static unsigned char *source, *destination;
static uint64_t state = 0x9e3779b97f4a7c15u;

static unsigned char random_byte(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned char)state;
}

static void fail(const char *what, size_t bytes) {
    fprintf(stderr, "%s: wrong with %zu bytes\n", what, bytes);
    exit(1);
}

/* A plain loop, which no library replaces. */
static int differs(const volatile unsigned char *a, const volatile unsigned char *b, size_t bytes) {
    for (size_t at = 0; at < bytes; at++)
        if (a[at] != b[at])
            return 1;
    return 0;
}

static int is_all(const volatile unsigned char *a, unsigned char byte, size_t bytes) {
    for (size_t at = 0; at < bytes; at++)
        if (a[at] != byte)
            return 0;
    return 1;
}

/* Writes the complement of the expected bytes, so that a missing byte is noticed. */
static void spoil(volatile unsigned char *to, const volatile unsigned char *from, size_t bytes) {
    typedef uint64_t __attribute__((may_alias, aligned(1))) word;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8)
        *(volatile word *)(to + at) = ~*(const volatile word *)(from + at);
    for (; at < bytes; at++)
        to[at] = (unsigned char)~from[at];
}

/* Evicts a range from the caches, since the library chooses its method by that. */
static void cool(unsigned char *to, size_t bytes) {
#ifdef __x86_64__
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_ia32_clflush(to + at);
    __builtin_ia32_mfence();
#else
    (void)to, (void)bytes;
#endif
}

static void fresh(void) {
    for (size_t at = 0; at < MOST; at++)
        ((volatile unsigned char *)source)[at] = random_byte();
}

static const size_t sizes[] = {0, 1, 63, 4096, 65535, 65536, 65537, 131071, 131072, 262144, 1048577, 4194304, 33554433};
#define COUNT (sizeof sizes / sizeof *sizes)

static void check_copies(void *(*copy)(void *, const void *, size_t), const char *name, int returns_end) {
    for (size_t at = 0; at < 2 * COUNT; at++) {
        size_t bytes = sizes[at / 2];
        /* A different range each time: the library assumes recently written ranges to be cached. */
        unsigned char *to = destination + 3 + 67 * at, *from = source + 5;
        spoil(to, from, bytes);
        to[-1] = 0xa5;
        to[bytes] = 0x5a;
        if (at % 2)
            cool(to, bytes);
        void *result = copy(to, from, bytes);
        if (result != (returns_end ? to + bytes : to) || differs(to, from, bytes))
            fail(name, bytes);
        if (to[-1] != 0xa5 || to[bytes] != 0x5a)
            fail("a neighbour of the destination", bytes);
    }
}

static void functions(void) {
    check_copies(memcpy, "memcpy", 0);
    check_copies(memmove, "memmove", 0);
    check_copies(mempcpy, "mempcpy", 1);
    for (size_t at = 0; at < COUNT; at++)
        for (int byte = 0; byte < 2; byte++) {
            size_t bytes = sizes[at];
            destination[bytes + 7] = 0x5a;
            if (memset(destination + 7, byte * 0x1c3, bytes) != destination + 7)
                fail("memset's result", bytes);
            if (!is_all(destination + 7, (unsigned char)(byte * 0x1c3), bytes) || destination[bytes + 7] != 0x5a)
                fail("memset", bytes);
        }
}

/* Overlapping ranges in both directions, at short and long distances. */
static void overlaps(void) {
    static const size_t distances[] = {1, 63, 4096, 65536, 1048576};
    for (size_t at = 0; at < COUNT; at++)
        for (size_t far = 0; far < sizeof distances / sizeof *distances; far++)
            for (int up = 0; up < 2; up++) {
                size_t bytes = sizes[at], distance = distances[far];
                if (bytes + distance > MOST)
                    continue;
                for (size_t i = 0; i < bytes + distance; i++)
                    ((volatile unsigned char *)destination)[i] = source[i];
                unsigned char *low = destination, *high = destination + distance;
                memmove(up ? high : low, up ? low : high, bytes);
                if (differs(up ? high : low, up ? source : source + distance, bytes))
                    fail("memmove of overlapping ranges", bytes);
            }
}

static volatile sig_atomic_t copying, handled, wrong;
static timer_t timer;

/* One shot, re-armed by the handler, so that the interrupted copy progresses however long the handler takes. */
static void interrupt_soon(void) {
    struct itimerspec once = {{0, 0}, {0, 500000}};
    timer_settime(timer, 0, &once, NULL);
}

/* Spoils only one byte per cache line, so that most time is spent in copies. */
static void on_alarm(int number) {
    (void)number;
    static unsigned char own[1 << 20];
    for (size_t at = 0; at < sizeof own; at += 61)
        own[at] = (unsigned char)~source[at];
    memcpy(own, source, sizeof own);
    if (memcmp(own, source, sizeof own))
        wrong = 1;
    handled += copying;
    interrupt_soon();
}

/* Copies interrupted by signal handlers that copy. */
static void signals(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    interrupt_soon();
    while (handled < 50) {
        spoil(destination, source, 8 << 20);
        copying = 1;
        memcpy(destination, source, 8 << 20);
        copying = 0;
        if (memcmp(destination, source, 8 << 20))
            fail("a copy that was interrupted", 8 << 20);
        if (wrong)
            fail("a copy in a handler", 1 << 20);
    }
    /* A last signal may be pending. */
    signal(SIGALRM, SIG_IGN);
    timer_delete(timer);
}

static void *in_thread(void *number) {
    size_t bytes = (size_t)4 << 20, at = (size_t)number * bytes;
    for (int round = 0; round < 20; round++) {
        memcpy(destination + at, source + at, bytes);
        if (memcmp(destination + at, source + at, bytes))
            fail("a copy in one of several threads", bytes);
        memset(destination + at, 0, bytes);
        if (!is_all(destination + at, 0, 4096))
            fail("zeroing in one of several threads", bytes);
    }
    return NULL;
}

/* Copies in threads while the process forks children that copy. */
static void threads_and_forks(void) {
    pthread_t threads[6];
    for (size_t number = 0; number < 6; number++)
        pthread_create(&threads[number], NULL, in_thread, (void *)number);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            memcpy(destination + (40 << 20), source, 4 << 20);
            _exit(memcmp(destination + (40 << 20), source, 4 << 20) != 0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            fail("a copy in a forked child", 4 << 20);
    }
    for (size_t number = 0; number < 6; number++)
        pthread_join(threads[number], NULL);
    pid_t child = vfork();
    if (child == 0) {
        spoil(destination, source, 4 << 20);
        memcpy(destination, source, 4 << 20);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    if (differs(destination, source, 4 << 20))
        fail("a copy in a vforked child", 4 << 20);
}

/* Without any descriptor, and unable to open one. */
static void without_descriptors(void) {
    struct rlimit none = {0, 0};
    close_range(0, ~0u, 0);
    setrlimit(RLIMIT_NOFILE, &none);
    spoil(destination, source, 16 << 20);
    memcpy(destination, source, 16 << 20);
    _exit(differs(destination, source, 16 << 20) ? 1 : 42);
}

/* Strict seccomp: any system call but read, write, exit and sigreturn kills the process. */
static void confined(void) {
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    spoil(destination, source, 40 << 20);
    memcpy(destination, source, 40 << 20);
    memset(destination + (41 << 20), 0, 2 << 20);
    int wrong = differs(destination, source, 40 << 20) || !is_all(destination + (41 << 20), 0, 2 << 20);
    syscall(SYS_exit, wrong ? 1 : 42);
}

static void in_child(void (*what)(void), const char *name) {
    pid_t child = fork();
    if (child == 0)
        what();
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 42)
        fail(name, 0);
}

static void overflow(void) {
    signal(SIGABRT, SIG_DFL);
    void *(*checked)(void *, const void *, size_t, size_t) = dlsym(RTLD_DEFAULT, "__memcpy_chk");
    int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, 2);
    checked(destination, source, 4097, 4096);
    _exit(0);
}

/* The checked variants abort instead of overflowing. */
static void checked(void) {
    pid_t child = fork();
    if (child == 0)
        overflow();
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail("__memcpy_chk beyond its room", 4097);
}

/* Untouched pages, read-only sources, shared memory, and the end of a mapping. */
static void memory(void) {
    size_t bytes = 8 << 20;
    unsigned char *edge = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(edge + bytes, 4096, PROT_NONE);
    memcpy(edge, source, bytes);
    if (differs(edge, source, bytes))
        fail("a copy to the end of a mapping", bytes);
    mprotect(edge, bytes, PROT_READ);
    spoil(destination, edge, bytes);
    memcpy(destination, edge, bytes);
    memset(destination, 0, 3 << 20);
    if (!is_all(destination, 0, 3 << 20) || differs(destination + (3 << 20), edge + (3 << 20), 5 << 20))
        fail("a copy from read-only memory", bytes);
    unsigned char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memmove(shared, source, bytes);
    if (differs(shared, source, bytes))
        fail("a copy to shared memory", bytes);
}

int main(void) {
    source = malloc(MOST + 64);
    destination = malloc(MOST + 64);
    if (!source || !destination)
        return 2;
    fresh();
    functions();
    overlaps();
    signals();
    threads_and_forks();
    in_child(without_descriptors, "a copy without descriptors");
    in_child(confined, "a copy under seccomp");
    checked();
    memory();
    puts("ok");
    return 0;
}
