/* The service's hot path once more, in C: what the shared cache lines cost, whatever the language around them.
 *
 *   client, this process                 worker, its child
 *   encode ─► slots, the sequence last ─► decode ─► admit by two table entries ─► copy
 *   check the tag ◄─ records, a line at a time ◄─────────────────────────────────── done
 *
 * Usage: twin CLIENT_CPU WORKER_CPU. Each line of input names a design and runs one round of it:
 *
 *   short epoch   slots of 32 bytes, records of 8; the worker reads the table under an epoch (the ring of version 5)
 *   short mutex   the same, the table under a mutex
 *   long epoch    slots of 64 bytes, records of 32
 *   long mutex    both as in versions before 5
 *
 * A round prints "GETPID BATCH ROUND_TRIP MOVED": nanoseconds of a system call, of each empty request in batches of 32, of an empty
 * request there and back, and of 64 bytes moved and then read by the client. Between rounds the worker sleeps.
 *
 * It has every check that a request of the service passes: room, sequence, opcode, generation, session, rights, bounds, revocation,
 * tag. It has no second client, no policy and no request that is not done at once, and nothing revokes. It reads moved bytes with a
 * plain memcpy, where a frame checks its bounds. So figures are a lower bound.
 *
 * It ends with a message if the worker does, or if a round takes too long. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    CAPACITY = 256,
    /* Twice the slots, so that records of all outstanding requests fit whatever the client has taken. */
    RECORDS = 2 * CAPACITY,
    BATCH = 32,
    /* Requests after which one side tells the other how many it has taken. */
    HINT = 32,
    ENTRIES = 4096,
    LINE = 64,
    /* Words of a line. */
    LINE_WORDS = 8,
    /* Bytes that a round moves at a time, and of a table entry's memory. */
    PAYLOAD = 64,
    MEMORY = 1 << 16,
    /* Empty looks at the ring between two looks at the stop flag. */
    LOOKS = 1024,
    SESSION = 1,
    BATCHES = 50,
    /* Seconds after which a round has failed; it takes milliseconds. */
    LATE = 10,
    CALLS = 1000,
};
enum { NOP = 1, COPY = 2 };
enum { RIGHT_READ = 1, RIGHT_WRITE = 2 };
enum { DONE, UNKNOWN_OPERATION, STALE, FORBIDDEN, OUT_OF_BOUNDS };

/* All functions on the hot path are specialized for a design by the compiler, so that a design pays for nothing of another. */
#define INLINE static inline __attribute__((always_inline))

struct design {
    bool is_long;
    bool has_mutex;
};

/* What a handle stands for. */
struct entry {
    alignas(LINE) _Atomic uint32_t generation;
    uint16_t session;
    uint8_t rights;
    _Atomic uint8_t revoked;
    uint64_t length;
    unsigned char *base;
};
_Static_assert(sizeof(struct entry) == LINE, "an entry is a line");

struct request {
    unsigned operation;
    uint32_t tag;
    uint32_t source, source_generation, destination, destination_generation;
    uint64_t source_offset, destination_offset, length;
};

/* Words of different writers are two lines apart, because the CPU may fetch lines in pairs. */
struct shared {
    alignas(4096) _Atomic uint64_t slots[CAPACITY * LINE_WORDS];
    alignas(128) _Atomic uint64_t records_taken;
    alignas(128) _Atomic uint64_t client_parked;
    alignas(128) _Atomic uint64_t cancels;
    alignas(4096) _Atomic uint64_t records[RECORDS * 4];
    alignas(128) _Atomic uint64_t slots_taken;
    alignas(128) _Atomic uint64_t worker_parked;
    alignas(128) _Atomic uint64_t epoch;
    alignas(128) _Atomic bool stop;
    struct design design;
    sem_t start, stopped;
    pthread_mutex_t mutex;
    struct entry entries[ENTRIES];
    alignas(4096) unsigned char memory[2 * MEMORY];
};

static struct shared *shared;

#define RELAXED(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define ACQUIRE(word) atomic_load_explicit(&(word), memory_order_acquire)
#define STORE(word, value) atomic_store_explicit(&(word), value, memory_order_relaxed)
#define RELEASE(word, value) atomic_store_explicit(&(word), value, memory_order_release)

static void fail(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

/* Calls only what a signal handler may. */
__attribute__((cold, noreturn)) static void end(const char *message)
{
    ssize_t written = write(STDERR_FILENO, message, strlen(message));
    _exit(written < 0 ? 2 : EXIT_FAILURE);
}

/* Both sides poll, so each would wait for ever for one that has ended. */
static void worker_ended(int signal)
{
    (void)signal;
    end("the worker ended\n");
}

static void round_is_late(int signal)
{
    (void)signal;
    end("a round takes too long: the two sides do not run at the same time\n");
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        fail("sched_setaffinity");
}

INLINE _Atomic uint64_t *slot_at(uint32_t position, struct design design)
{
    return &shared->slots[position % CAPACITY * (design.is_long ? 8 : 4)];
}

/* Words of a record. */
INLINE unsigned record_words(struct design design)
{
    return design.is_long ? 4 : 1;
}

/* The sequence tells a slot or record of this lap from that of the lap before. */
INLINE bool has_sequence(uint64_t head, uint32_t position, struct design design)
{
    return design.is_long ? (uint32_t)head == position + 1 : (uint16_t)head == (uint16_t)(position + 1);
}

INLINE uint64_t sequence_of(uint32_t position, struct design design)
{
    return design.is_long ? (uint32_t)(position + 1) : (uint16_t)(position + 1);
}

/* ---- Worker ---- */

INLINE bool slot_is_ready(uint32_t position, struct design design)
{
    return has_sequence(ACQUIRE(*slot_at(position, design)), position, design);
}

/* Copies the slot once, so that the client cannot change what was checked. */
INLINE struct request decode(uint32_t position, struct design design)
{
    const _Atomic uint64_t *slot = slot_at(position, design);
    uint64_t words[8] = { RELAXED(slot[0]), RELAXED(slot[1]), RELAXED(slot[2]), RELAXED(slot[3]) };
    if (!design.is_long) {
        return (struct request){
            .operation = words[0] >> 16 & 0xff,
            .tag = words[0] >> 32,
            .source = words[1] & 0xfffff,
            .source_generation = words[1] >> 20 & 0xfff,
            .destination = words[1] >> 32 & 0xfffff,
            .destination_generation = words[1] >> 52,
            .source_offset = words[2] & 0xffffffffffff,
            .destination_offset = words[3] & 0xffffffffffff,
            .length = words[2] >> 48 | words[3] >> 48 << 16,
        };
    }
    for (unsigned word = 4; word < 8; word++)
        words[word] = RELAXED(slot[word]);
    return (struct request){
        .operation = words[0] >> 32 & 0xff,
        .tag = words[1],
        .source = words[3],
        .source_generation = words[3] >> 32,
        .source_offset = words[4],
        .destination = words[5],
        .destination_generation = words[5] >> 32,
        .destination_offset = words[6],
        .length = words[7],
    };
}

INLINE unsigned admit(uint32_t index, uint32_t generation, uint64_t offset, uint64_t length, uint8_t right,
                      unsigned char **at)
{
    if (index >= ENTRIES)
        return STALE;
    struct entry *entry = &shared->entries[index];
    if (RELAXED(entry->generation) != generation || entry->session != SESSION)
        return STALE;
    if (RELAXED(entry->revoked) || !(entry->rights & right))
        return FORBIDDEN;
    uint64_t end;
    if (__builtin_add_overflow(offset, length, &end) || end > entry->length)
        return OUT_OF_BOUNDS;
    *at = entry->base + offset;
    return DONE;
}

INLINE unsigned carry_out(const struct request *request)
{
    unsigned char *source, *destination;
    if (request->operation == NOP)
        return DONE;
    if (request->operation != COPY)
        return UNKNOWN_OPERATION;
    unsigned status = admit(request->source, request->source_generation, request->source_offset,
                            request->length, RIGHT_READ, &source);
    if (status == DONE)
        status = admit(request->destination, request->destination_generation,
                       request->destination_offset, request->length, RIGHT_WRITE, &destination);
    if (status != DONE)
        return status;
    if (request->length == PAYLOAD)
        memcpy(destination, source, PAYLOAD);
    else
        memmove(destination, source, request->length);
    return DONE;
}

/* Records of one line that are not yet visible. */
struct gathered {
    uint64_t words[LINE_WORDS];
    unsigned count;
    uint32_t first;
};

INLINE void show(struct gathered *gathered, struct design design)
{
    const unsigned size = record_words(design);
    for (unsigned at = 0; at < gathered->count; at++) {
        _Atomic uint64_t *record = &shared->records[(gathered->first + at) % RECORDS * size];
        for (unsigned word = 1; word < size; word++)
            STORE(record[word], gathered->words[at * size + word]);
        RELEASE(record[0], gathered->words[at * size]);
    }
    gathered->first += gathered->count;
    gathered->count = 0;
}

INLINE void complete(struct gathered *gathered, uint32_t position, const struct request *request,
                     unsigned status, struct design design)
{
    const unsigned size = record_words(design);
    uint64_t *words = &gathered->words[gathered->count * size];
    uint64_t sequence = sequence_of(position, design);
    if (design.is_long) {
        words[0] = sequence | (uint64_t)status << 32;
        words[1] = request->tag;
        words[2] = status == DONE ? request->length : 0;
        words[3] = 0;
    } else {
        words[0] = sequence | (uint64_t)status << 16 | (uint64_t)request->tag << 32;
    }
    gathered->count++;
    if ((position + 1) % (LINE_WORDS / size) == 0)
        show(gathered, design);
}

/* Until `leave`, an entry that was found valid stays so. The epoch is odd meanwhile: a revoker marks the entry, makes this core
 * see that by membarrier, and waits until the epoch has changed. So two plain stores are enough here. */
INLINE void enter(struct design design)
{
    if (design.has_mutex)
        pthread_mutex_lock(&shared->mutex);
    else
        STORE(shared->epoch, RELAXED(shared->epoch) + 1);
    atomic_signal_fence(memory_order_seq_cst);
}

INLINE void leave(struct design design)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (design.has_mutex)
        pthread_mutex_unlock(&shared->mutex);
    else
        RELEASE(shared->epoch, RELAXED(shared->epoch) + 1);
}

INLINE void serve(struct design design)
{
    /* One record for each slot, so both rings are at the same position. */
    uint32_t position = 0, told = 0;
    struct gathered gathered = { .count = 0, .first = 0 };
    for (;;) {
        for (unsigned looks = 1; !slot_is_ready(position, design); looks++)
            if (looks % LOOKS == 0 && ACQUIRE(shared->stop))
                return;
        /* The service takes its general way if any of these is set; here none ever is. */
        if (RELAXED(shared->cancels) != 0)
            return;
        enter(design);
        for (unsigned taken = 0; taken < BATCH && slot_is_ready(position, design); taken++) {
            __builtin_prefetch((const void *)slot_at(position + (design.is_long ? 4 : 8), design));
            struct request request = decode(position, design);
            unsigned status = carry_out(&request);
            complete(&gathered, position, &request, status, design);
            position++;
        }
        leave(design);
        show(&gathered, design);
        if (position - told >= HINT) {
            told = position;
            RELEASE(shared->slots_taken, position);
            /* Room for records, which the client tells in the same way. */
            if (position - (uint32_t)ACQUIRE(shared->records_taken) > RECORDS)
                return;
        }
        if (RELAXED(shared->client_parked) != 0)
            return;
    }
}

/* Calls the copy of FUNCTION that is specialized for the round's design. */
#define SPECIALIZED(FUNCTION) \
    do { \
        if (shared->design.is_long && shared->design.has_mutex) \
            FUNCTION((struct design){ .is_long = true, .has_mutex = true }); \
        else if (shared->design.is_long) \
            FUNCTION((struct design){ .is_long = true, .has_mutex = false }); \
        else if (shared->design.has_mutex) \
            FUNCTION((struct design){ .is_long = false, .has_mutex = true }); \
        else \
            FUNCTION((struct design){ .is_long = false, .has_mutex = false }); \
    } while (0)

static void worker(int cpu)
{
    pin(cpu);
    for (;;) {
        while (sem_wait(&shared->start) != 0)
            ;
        SPECIALIZED(serve);
        if (!ACQUIRE(shared->stop))
            end("the client asked for what the worker cannot do\n");
        sem_post(&shared->stopped);
    }
}

/* ---- Client ---- */

struct client {
    uint32_t position, taken, lap;
    unsigned unused;
    uint16_t indexes[CAPACITY];
    /* The tag of each outstanding request; its low bits are the index. */
    uint32_t tags[CAPACITY];
};

static struct client client;
static const uint32_t NO_TAG = UINT32_MAX;

INLINE void submit(unsigned operation, uint64_t offset, uint64_t length, struct design design)
{
    const uint64_t source = 0, destination = 1, generation = 1;
    if (client.unused == 0)
        end("the ring is full\n");
    uint16_t index = client.indexes[--client.unused];
    uint32_t tag = client.lap++ * CAPACITY + index;
    client.tags[index] = tag;
    _Atomic uint64_t *slot = slot_at(client.position, design);
    uint64_t sequence = sequence_of(client.position, design);
    client.position++;
    if (design.is_long) {
        STORE(slot[1], tag);
        STORE(slot[2], 0);
        STORE(slot[3], source | generation << 32);
        STORE(slot[4], offset);
        STORE(slot[5], destination | generation << 32);
        STORE(slot[6], offset);
        STORE(slot[7], length);
        RELEASE(slot[0], sequence | (uint64_t)operation << 32);
    } else {
        STORE(slot[1], source | generation << 20 | destination << 32 | generation << 52);
        STORE(slot[2], offset | length << 48);
        STORE(slot[3], offset | length >> 16 << 48);
        RELEASE(slot[0], sequence | (uint64_t)operation << 16 | (uint64_t)tag << 32);
    }
}

/* The look that decides whether the doorbell is rung; the worker of a round never sleeps. */
INLINE void publish(void)
{
    if (RELAXED(shared->worker_parked) != 0)
        fail("the worker sleeps");
}

/* Takes the next completion and checks that it belongs to an outstanding request. */
INLINE void take(struct design design)
{
    _Atomic uint64_t *record = &shared->records[client.taken % RECORDS * record_words(design)];
    uint64_t head;
    do {
        head = ACQUIRE(record[0]);
    } while (!has_sequence(head, client.taken, design));
    unsigned status = design.is_long ? head >> 32 & 0xff : head >> 16 & 0xff;
    uint32_t tag = design.is_long ? (uint32_t)RELAXED(record[1]) : (uint32_t)(head >> 32);
    uint16_t index = tag % CAPACITY;
    if (status != DONE || client.tags[index] != tag) {
        fprintf(stderr, "a request failed with %u\n", status);
        exit(EXIT_FAILURE);
    }
    client.tags[index] = NO_TAG;
    client.indexes[client.unused++] = index;
    client.taken++;
    if (client.taken % HINT == 0)
        RELEASE(shared->records_taken, client.taken);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median batch, timed like those of the bench: the two readings of the clock are part of it. */
INLINE double batches(struct design design)
{
    double times[BATCHES];
    for (unsigned batch = 0; batch < BATCHES; batch++) {
        double started = now_ns();
        for (unsigned request = 0; request < BATCH; request++)
            submit(NOP, 0, 0, design);
        publish();
        for (unsigned request = 0; request < BATCH; request++)
            take(design);
        times[batch] = (now_ns() - started) / BATCH;
    }
    qsort(times, BATCHES, sizeof(times[0]), compare);
    return times[BATCHES / 2];
}

INLINE double round_trips(unsigned operation, struct design design)
{
    unsigned char read[PAYLOAD];
    double started = now_ns();
    for (unsigned call = 0; call < CALLS; call++) {
        submit(operation, 0, operation == COPY ? PAYLOAD : 0, design);
        publish();
        take(design);
        if (operation == COPY) {
            memcpy(read, shared->entries[1].base, PAYLOAD);
            __asm__ volatile("" : : "r"(read) : "memory");
        }
    }
    return (now_ns() - started) / CALLS;
}

INLINE void measure(struct design design)
{
    double started = now_ns();
    for (unsigned call = 0; call < CALLS; call++)
        syscall(SYS_getpid);
    double getpid = (now_ns() - started) / CALLS;
    round_trips(NOP, design);
    double round_trip = round_trips(NOP, design);
    double batch = batches(design);
    double moved = round_trips(COPY, design);
    printf("%.1f %.2f %.1f %.1f\n", getpid, batch, round_trip, moved);
    fflush(stdout);
}

static void run_round(struct design design)
{
    client = (struct client){ .unused = CAPACITY };
    for (unsigned index = 0; index < CAPACITY; index++) {
        client.indexes[index] = CAPACITY - 1 - index;
        client.tags[index] = NO_TAG;
    }
    memset((void *)shared->slots, 0, sizeof(shared->slots));
    memset((void *)shared->records, 0, sizeof(shared->records));
    STORE(shared->records_taken, 0);
    STORE(shared->slots_taken, 0);
    STORE(shared->stop, false);
    shared->design = design;
    alarm(LATE);
    sem_post(&shared->start);
    SPECIALIZED(measure);
    if (memcmp(shared->memory, shared->memory + MEMORY, PAYLOAD) != 0) {
        fprintf(stderr, "the bytes did not arrive\n");
        exit(EXIT_FAILURE);
    }
    RELEASE(shared->stop, true);
    while (sem_wait(&shared->stopped) != 0)
        ;
    alarm(0);
}

static void prepare(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (pthread_mutex_init(&shared->mutex, &attributes) != 0 || sem_init(&shared->start, 1, 0) != 0 ||
        sem_init(&shared->stopped, 1, 0) != 0)
        fail("mutex and semaphores");
    for (unsigned index = 0; index < ENTRIES; index++) {
        struct entry *entry = &shared->entries[index];
        STORE(entry->generation, 1);
        entry->session = SESSION;
        entry->rights = index % 2 == 0 ? RIGHT_READ : RIGHT_WRITE;
        entry->length = MEMORY;
        entry->base = shared->memory + index % 2 * MEMORY;
    }
    /* Not zeros: some CPUs do not write those. */
    for (unsigned at = 0; at < MEMORY; at++)
        shared->memory[at] = (unsigned char)(at * 2654435761u >> 24 | 1);
}

int main(int count, char **words)
{
    if (count != 3) {
        fprintf(stderr, "usage: twin CLIENT_CPU WORKER_CPU, and lines \"short|long epoch|mutex\" as input\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare();
    struct sigaction action = { .sa_handler = worker_ended, .sa_flags = SA_NOCLDSTOP };
    sigaction(SIGCHLD, &action, NULL);
    signal(SIGALRM, round_is_late);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        worker(atoi(words[2]));
    }
    pin(atoi(words[1]));
    char slots[8], table[8];
    while (scanf("%7s %7s", slots, table) == 2) {
        bool is_long = strcmp(slots, "long") == 0, has_mutex = strcmp(table, "mutex") == 0;
        if ((!is_long && strcmp(slots, "short") != 0) || (!has_mutex && strcmp(table, "epoch") != 0)) {
            fprintf(stderr, "no design is called %s %s\n", slots, table);
            return 2;
        }
        run_round((struct design){ .is_long = is_long, .has_mutex = has_mutex });
    }
    signal(SIGCHLD, SIG_DFL);
    return kill(child, SIGKILL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
