/* A snapshot of memory that goes on being written: its pages are protected by userfaultfd, and copied by memferry, by a thread of this
 * program, or by a forked child.
 *
 *     cc snapshot.c $(pkg-config --cflags --libs memferry) -lpthread
 *     ./a.out [MIB [ROUNDS]]
 *
 *   writer: page after page at random, a number that grows ──► a page that is protected: waits until it is copied
 *   snapshotter: all pages protected, then chunk after chunk: copy, unprotect; those first that the writer waits for
 *
 * Every page of a snapshot has to have the number that it had when the snapshot began; that is checked. Printed are, for each way: how long the
 * snapshot took, the writer's longest and 99.9th of a hundred waits, its writes per second against none beside, and the CPU time of the
 * snapshot. A forked child shares pages until they are written, so it needs memory that is not shared; it is beside the others on such. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <memferry.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 256 << 10, WINDOW = 4, BUCKETS = 64 };
enum { PROTECTED, RUNNING, COPIED };
enum way { NONE, FORK, THREAD, MEMFERRY, WAYS };
static const char *const names[WAYS] = {"none", "fork", "memcpy", "memferry"};

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        mf_error error = (call);                                                                                      \
        if (error != MF_ERROR_NONE) {                                                                                 \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)error, mf_last_message());                                    \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static void need(int holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(clockid_t clock) {
    struct timespec time;

    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* The writer. Waits are counted in powers of two of nanoseconds. */
struct writer {
    char *memory;
    size_t pages;
    atomic_int stop, pause, paused;
    atomic_ullong writes;
    double longest;
    unsigned long long waits[BUCKETS];
};

static void *write_on(void *argument) {
    struct writer *writer = argument;
    uint64_t state = 0x9e3779b97f4a7c15ULL, number = 1;

    while (!atomic_load(&writer->stop)) {
        double before, took;
        size_t page = next_random(&state) % writer->pages;

        if (atomic_load(&writer->pause)) {
            atomic_store(&writer->paused, 1);
            while (atomic_load(&writer->pause))
                sched_yield();
            atomic_store(&writer->paused, 0);
        }
        before = now_s(CLOCK_MONOTONIC);
        *(volatile uint64_t *)(writer->memory + page * PAGE) = number++;
        took = now_s(CLOCK_MONOTONIC) - before;
        writer->waits[took < 2e-9 ? 0 : 63 - __builtin_clzll((uint64_t)(took * 1e9))]++;
        if (took > writer->longest)
            writer->longest = took;
        atomic_fetch_add(&writer->writes, 1);
    }
    return NULL;
}

/* Upper bound of the 99.9 % shortest waits, in seconds. */
static double most_waits(const struct writer *writer) {
    unsigned long long all = atomic_load(&((struct writer *)writer)->writes), seen = 0;

    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += writer->waits[bucket];
        if (seen * 1000 >= all * 999)
            return (double)(2ULL << bucket) / 1e9;
    }
    return 0;
}

/* What a snapshot works on. */
struct snapshot {
    char *memory, *copy;
    size_t length;
    int faults;           /* the userfaultfd */
    int completions;      /* the queue's eventfd */
    unsigned char *state; /* of each chunk */
    mf_queue queue;
    struct {
        uint64_t tag;
        size_t chunk;
    } under_way[WINDOW];
    size_t running;
    mf_frame source, destination;
};

static void protect(struct snapshot *snapshot, size_t at, size_t length, int on) {
    struct uffdio_writeprotect change = {
        .range = {.start = (uintptr_t)snapshot->memory + at, .len = length},
        .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
    };
    int result;

    do
        result = ioctl(snapshot->faults, UFFDIO_WRITEPROTECT, &change);
    while (result < 0 && errno == EAGAIN);
    need(result == 0, "UFFDIO_WRITEPROTECT");
}

static size_t chunk_length(const struct snapshot *snapshot, size_t chunk) {
    size_t left = snapshot->length - chunk * CHUNK;

    return left < CHUNK ? left : CHUNK;
}

static void copied(struct snapshot *snapshot, size_t chunk) {
    snapshot->state[chunk] = COPIED;
    protect(snapshot, chunk * CHUNK, chunk_length(snapshot, chunk), 0);
}

/* Copies a chunk, or starts to: memferry goes on meanwhile. */
static void start(struct snapshot *snapshot, size_t chunk, enum way way) {
    size_t at = chunk * CHUNK, length = chunk_length(snapshot, chunk);
    mf_ticket ticket;

    if (way == THREAD) {
        memcpy(snapshot->copy + at, snapshot->memory + at, length);
        copied(snapshot, chunk);
        return;
    }
    CHECK(mf_submit_copy(snapshot->queue, (mf_range){snapshot->source, at, length},
                         (mf_range){snapshot->destination, at, length}, NULL, &ticket));
    snapshot->state[chunk] = RUNNING;
    snapshot->under_way[snapshot->running].tag = ticket.tag;
    snapshot->under_way[snapshot->running++].chunk = chunk;
}

/* Takes what has been copied, and unprotects it. */
static void take(struct snapshot *snapshot) {
    mf_completion done;
    mf_error error;

    while ((error = mf_poll(snapshot->queue, &done)) != MF_ERROR_NOTHING) {
        size_t which = 0;

        CHECK(error);
        while (which < snapshot->running && snapshot->under_way[which].tag != done.ticket.tag)
            which++;
        need(which < snapshot->running, "a completion of nothing");
        copied(snapshot, snapshot->under_way[which].chunk);
        snapshot->under_way[which] = snapshot->under_way[--snapshot->running];
    }
}

/* Sleeps until the writer waits for a page, or something has been copied. */
static void sleep_until_needed(struct snapshot *snapshot) {
    struct pollfd events[] = {{.fd = snapshot->faults, .events = POLLIN}, {.fd = snapshot->completions, .events = POLLIN}};
    uint64_t signals;
    int ready;

    CHECK(mf_arm(snapshot->queue, &ready));
    if (ready)
        return;
    need(poll(events, 2, 1000) >= 0 || errno == EINTR, "poll");
    if (events[1].revents & POLLIN)
        need(read(snapshot->completions, &signals, sizeof(signals)) == sizeof(signals), "the queue's eventfd");
}

/* The chunk that the writer waits for, or -1. */
static long waited_for(struct snapshot *snapshot) {
    struct uffd_msg message;

    if (read(snapshot->faults, &message, sizeof(message)) != sizeof(message))
        return -1;
    if (message.event != UFFD_EVENT_PAGEFAULT)
        return -1;
    return (long)((message.arg.pagefault.address - (uintptr_t)snapshot->memory) / CHUNK);
}

static void copy_all(struct snapshot *snapshot, enum way way) {
    size_t chunks = (snapshot->length + CHUNK - 1) / CHUNK, next = 0;

    memset(snapshot->state, PROTECTED, chunks);
    while (next < chunks || snapshot->running > 0) {
        long wanted = snapshot->running < WINDOW ? waited_for(snapshot) : -1;

        while (next < chunks && snapshot->state[next] != PROTECTED)
            next++;
        if (wanted >= 0 && snapshot->state[wanted] == COPIED)
            /* The fault came just before its chunk was unprotected. */
            protect(snapshot, (size_t)wanted * CHUNK, chunk_length(snapshot, (size_t)wanted), 0);
        else if (wanted >= 0 && snapshot->state[wanted] == PROTECTED)
            start(snapshot, (size_t)wanted, way);
        else if (snapshot->running < WINDOW && next < chunks)
            start(snapshot, next, way);
        else if (snapshot->running > 0)
            sleep_until_needed(snapshot);
        if (way == MEMFERRY)
            take(snapshot);
    }
}

static void open_faults(struct snapshot *snapshot) {
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM};
    struct uffdio_register region = {
        .range = {.start = (uintptr_t)snapshot->memory, .len = snapshot->length},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };

    snapshot->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    need(snapshot->faults >= 0, "userfaultfd");
    need(ioctl(snapshot->faults, UFFDIO_API, &api) == 0, "UFFDIO_API (Linux 5.19 or later)");
    need(ioctl(snapshot->faults, UFFDIO_REGISTER, &region) == 0, "UFFDIO_REGISTER");
}

/* Forks a child that copies all, and waits for it. */
static void copy_by_child(struct snapshot *snapshot) {
    pid_t child = fork();
    int status;

    need(child >= 0, "fork");
    if (child == 0) {
        memcpy(snapshot->copy, snapshot->memory, snapshot->length);
        _exit(0);
    }
    need(waitpid(child, &status, 0) == child && status == 0, "the child");
}

/* CPU time of this process and its children, but for the writer's. */
static double cpu_beside(clockid_t writer) {
    struct rusage own, children;

    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    return (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec) +
           (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec + children.ru_utime.tv_usec + children.ru_stime.tv_usec) / 1e6 -
           now_s(writer);
}

static void check(const struct snapshot *snapshot, const uint64_t *expected) {
    for (size_t page = 0; page < snapshot->length / PAGE; page++) {
        uint64_t found;

        memcpy(&found, snapshot->copy + page * PAGE, sizeof(found));
        if (found != expected[page]) {
            fprintf(stderr, "page %zu of the snapshot is from another moment\n", page);
            exit(1);
        }
    }
}

/* One snapshot beside the writer; prints a row. `plain` is the writer's rate beside none, and is set by the first call. */
static void round_of(struct snapshot *snapshot, enum way way, uint64_t *expected, double *plain) {
    struct writer writer = {.memory = snapshot->memory, .pages = snapshot->length / PAGE};
    double started, took, cpu, rate;
    pthread_t thread;
    clockid_t clock;

    need(pthread_create(&thread, NULL, write_on, &writer) == 0, "pthread_create");
    need(pthread_getcpuclockid(thread, &clock) == 0, "pthread_getcpuclockid");
    usleep(20000);
    atomic_store(&writer.pause, 1);
    while (!atomic_load(&writer.paused))
        sched_yield();
    for (size_t page = 0; page < snapshot->length / PAGE; page++)
        memcpy(&expected[page], snapshot->memory + page * PAGE, sizeof(*expected));
    writer.longest = 0;
    memset(writer.waits, 0, sizeof(writer.waits));
    atomic_store(&writer.writes, 0);
    cpu = cpu_beside(clock);
    started = now_s(CLOCK_MONOTONIC);
    if (way == THREAD || way == MEMFERRY) {
        protect(snapshot, 0, snapshot->length, 1);
        atomic_store(&writer.pause, 0);
        copy_all(snapshot, way);
    } else if (way == FORK) {
        /* As a server would: between two writes. */
        atomic_store(&writer.pause, 0);
        copy_by_child(snapshot);
    } else {
        atomic_store(&writer.pause, 0);
        usleep(200000);
    }
    took = now_s(CLOCK_MONOTONIC) - started;
    rate = (double)atomic_load(&writer.writes) / took;
    cpu = cpu_beside(clock) - cpu;
    atomic_store(&writer.stop, 1);
    pthread_join(thread, NULL);
    if (way == NONE)
        *plain = rate;
    if (way == THREAD || way == MEMFERRY)
        check(snapshot, expected);
    printf("| %s | %.1f | %.0f | %.0f | %.2f | %.0f |\n", names[way], took * 1e3, writer.longest * 1e6,
           most_waits(&writer) * 1e6, rate / *plain, cpu * 1e3);
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 256, rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
    struct snapshot shared = {.length = mib << 20}, private = {.length = mib << 20};
    uint64_t *expected, length, state = 1;
    mf_client client;
    double plain = 1;
    void *bytes;

    if (mib == 0 || mib > 1 << 20 || rounds == 0) {
        fprintf(stderr, "usage: %s [MIB [ROUNDS]]\n", argv[0]);
        return 2;
    }
    CHECK(mf_check_version(MF_VERSION));
    CHECK(mf_embed(&client));
    CHECK(mf_frame_allocate(client, shared.length, &shared.source));
    CHECK(mf_frame_allocate(client, shared.length, &shared.destination));
    CHECK(mf_frame_map(shared.source, &bytes, &length));
    shared.memory = bytes;
    CHECK(mf_frame_map(shared.destination, &bytes, NULL));
    shared.copy = bytes;
    CHECK(mf_queue_open(client, WINDOW, &shared.queue));
    CHECK(mf_eventfd(shared.queue, &shared.completions));
    private.memory = mmap(NULL, private.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(private.memory != MAP_FAILED, "mmap");
    private.copy = shared.copy;
    shared.state = calloc((shared.length + CHUNK - 1) / CHUNK, 1);
    expected = calloc(shared.length / PAGE, sizeof(*expected));
    need(shared.state && expected, "calloc");
    for (size_t at = 0; at < shared.length; at += sizeof(uint64_t)) {
        uint64_t word = next_random(&state);

        memcpy(shared.memory + at, &word, sizeof(word));
        memcpy(private.memory + at, &word, sizeof(word));
    }
    open_faults(&shared);
    printf("%zu MiB\n\n| by | snapshot, ms | longest wait, us | 99.9 %% of waits below, us | writes, against none | CPU, ms |\n", mib);
    printf("| --- | --- | --- | --- | --- | --- |\n");
    for (size_t round = 0; round < rounds; round++) {
        round_of(&shared, NONE, expected, &plain);
        round_of(&private, FORK, expected, &plain);
        round_of(&shared, THREAD, expected, &plain);
        round_of(&shared, MEMFERRY, expected, &plain);
    }
    printf("\nevery page is of its moment\n");
    CHECK(mf_queue_close(shared.queue));
    CHECK(mf_disconnect(client));
    return 0;
}
