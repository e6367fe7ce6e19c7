/* Forking, threading and copying together for some seconds, with every byte checked. Compiled by tests/programs.rs and run
 * with the preloaded library: stress SECONDS SEED. Prints "ok" and counts at the end; otherwise what failed and the seed.
 *
 *   main ─ four threads, each ─► copy, move, set with random length, position and overlap ─► compared with plain loops
 *        └ forks ─► child: copies, starts a thread, forks, or executes this program again ─► its exit status is checked
 *   a timer's signal interrupts all of them and copies too
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, CHILD_ROUNDS = 12 };
/* Bytes per thread. Copies are up to 4 MiB; hardships.c tests longer ones. */
#define SPACE ((size_t)6 << 20)

static uint64_t seed;
static time_t end;
static atomic_ulong copies, children;
static unsigned char *shared;

struct space {
    uint64_t state;
    unsigned char *a, *b, *expected;
};

static uint64_t next(struct space *space) {
    space->state ^= space->state << 13;
    space->state ^= space->state >> 7;
    space->state ^= space->state << 17;
    return space->state;
}

static void fail(const char *what, size_t bytes) {
    fprintf(stderr, "%s: wrong with %zu bytes; seed %llu\n", what, bytes, (unsigned long long)seed);
    _exit(1);
}

static int is_over(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec >= end;
}

/* A plain loop, which no library replaces. */
static void plain_copy(volatile unsigned char *to, const volatile unsigned char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at++)
        to[at] = from[at];
}

static int differs(const unsigned char *a, const unsigned char *b, size_t bytes) {
    for (size_t at = 0; at < bytes; at++)
        if (a[at] != b[at])
            return 1;
    return 0;
}

static unsigned char *pages(void) {
    void *found = mmap(NULL, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        fail("mmap", SPACE);
    return found;
}

static struct space begin(uint64_t number) {
    struct space space = {(seed + 1) * 0x9e3779b97f4a7c15u + number * 0xbf58476d1ce4e5b9u, pages(), pages(), pages()};
    for (size_t at = 0; at < SPACE; at += 8)
        *(volatile uint64_t *)(space.a + at) = next(&space);
    return space;
}

static void finish(struct space *space) {
    munmap(space->a, SPACE);
    munmap(space->b, SPACE);
    munmap(space->expected, SPACE);
}

/* Mostly short lengths, as in real programs, with some of each order of magnitude. */
static size_t random_length(struct space *space) {
    uint64_t order = next(space) % 22;
    return next(space) % ((size_t)2 << order);
}

static void one_copy(struct space *space) {
    size_t bytes = random_length(space), room = SPACE - bytes;
    size_t to = next(space) % (room + 1), from = next(space) % (room + 1);
    switch (next(space) % 4) {
    case 0:
        if (memcpy(space->b + to, space->a + from, bytes) != space->b + to ||
            differs(space->b + to, space->a + from, bytes))
            fail("memcpy", bytes);
        break;
    case 1:
        if (mempcpy(space->b + to, space->a + from, bytes) != space->b + to + bytes ||
            differs(space->b + to, space->a + from, bytes))
            fail("mempcpy", bytes);
        break;
    case 2:
        if (next(space) % 2)
            to = from + bytes / 3 <= room ? from + bytes / 3 : from;
        plain_copy(space->expected, space->a + from, bytes);
        if (memmove(space->a + to, space->a + from, bytes) != space->a + to ||
            differs(space->a + to, space->expected, bytes))
            fail("memmove", bytes);
        break;
    default: {
        int byte = next(space) % 2 ? 0 : (int)(next(space) & 0xff);
        memset(space->b + to, byte, bytes);
        for (size_t at = 0; at < bytes; at++)
            if (space->b[to + at] != byte)
                fail("memset", bytes);
    }
    }
    atomic_fetch_add(&copies, 1);
}

static void *in_thread(void *number) {
    struct space space = begin((uint64_t)(uintptr_t)number);
    while (!is_over())
        one_copy(&space);
    finish(&space);
    return NULL;
}

static void *some_copies(void *number) {
    struct space space = begin((uint64_t)(uintptr_t)number);
    for (int round = 0; round < CHILD_ROUNDS; round++)
        one_copy(&space);
    finish(&space);
    return NULL;
}

/* Copies from memory that all processes share and none writes. Spoils one byte per cache line, so that a missing one is
 * noticed. */
static void on_alarm(int signal_number) {
    (void)signal_number;
    static _Thread_local unsigned char own[256 << 10];
    for (size_t at = 0; at < sizeof own; at += 61)
        own[at] = (unsigned char)~shared[at];
    memcpy(own, shared, sizeof own);
    for (size_t at = 0; at < sizeof own; at += 61)
        if (own[at] != shared[at])
            fail("a copy in a handler", sizeof own);
}

static void wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("a child", (size_t)status);
    atomic_fetch_add(&children, 1);
}

static void in_child(uint64_t number) {
    pthread_t thread;
    struct space space = begin(number);
    uint64_t way = next(&space) % 4;
    finish(&space);
    some_copies((void *)(uintptr_t)number);
    if (way == 0) {
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)(seed + number));
        execl("/proc/self/exe", "stress", "0", text, (char *)NULL);
        _exit(2);
    }
    if (way == 1 && pthread_create(&thread, NULL, some_copies, (void *)(uintptr_t)(number + 1)) == 0)
        pthread_join(thread, NULL);
    if (way == 2) {
        pid_t child = fork();
        if (child == 0) {
            some_copies((void *)(uintptr_t)(number + 2));
            _exit(0);
        }
        wait_for(child);
    }
    _exit(0);
}

static void interrupt_often(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerspec often = {{0, 7000000}, {0, 7000000}};
    timer_t timer;
    sigaction(SIGALRM, &action, NULL);
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    timer_settime(timer, 0, &often, NULL);
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    struct timespec now;
    if (count != 3)
        return 2;
    seed = strtoull(arguments[2], NULL, 10);
    shared = pages();
    struct space space = begin(1000);
    plain_copy(shared, space.a, SPACE);
    finish(&space);
    clock_gettime(CLOCK_MONOTONIC, &now);
    end = now.tv_sec + atol(arguments[1]);
    if (end == now.tv_sec) {
        some_copies((void *)7);
        return 0;
    }
    interrupt_often();
    for (uintptr_t number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, in_thread, (void *)number);
    for (uint64_t number = 2000; !is_over(); number += 10) {
        pid_t child = fork();
        if (child == 0)
            in_child(number);
        wait_for(child);
    }
    for (int number = 0; number < THREADS; number++)
        pthread_join(threads[number], NULL);
    printf("ok: %lu copies beside %lu children\n", atomic_load(&copies), atomic_load(&children));
    return 0;
}
