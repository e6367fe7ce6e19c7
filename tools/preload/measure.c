/* Measures what the preloaded library adds to a short call and gains on a long copy, against the C library in the same process.
 * Compiled and run by the bench group "preload" with the library preloaded; any argument makes the run quick. Prints lines
 * "KIND BYTES VALUE": for "added", nanoseconds per call; for all others, the speed relative to the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef void *(*copy_function)(void *, const void *, size_t);
typedef void *(*set_function)(void *, int, size_t);

/* Larger than the caches. */
#define POOL ((size_t)256 << 20)

static unsigned char *source, *destination;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Mean nanoseconds of copying the same few bytes. */
static double short_copy(copy_function copy, size_t bytes) {
    enum { COUNT = 100000 };
    double started = now_ns();
    for (int at = 0; at < COUNT; at++) {
        copy(destination, source, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (now_ns() - started) / COUNT;
}

/* Number of operations of this size in a round. */
static size_t repetitions(size_t bytes) {
    const size_t round = (size_t)16 << 20;
    return bytes < round ? round / bytes : 1;
}

/* The next position in the pool, which wraps around. */
static size_t next_place(size_t *at, size_t bytes) {
    size_t place = *at + bytes > POOL ? 0 : *at;
    *at = place + bytes;
    return place;
}

/* Nanoseconds per copy between uncached ranges; each range is used once per pass over the pool. */
static double cold_copy(copy_function copy, size_t bytes) {
    static size_t at;
    size_t count = repetitions(bytes);
    double started = now_ns();
    for (size_t turn = 0; turn < count; turn++) {
        size_t place = next_place(&at, bytes);
        copy(destination + place, source + place, bytes);
    }
    return (now_ns() - started) / count;
}

/* Nanoseconds per copy between the same two ranges, from the third copy on: the library keeps ranges in the caches once
 * they repeat. */
static double same_copy(copy_function copy, size_t bytes) {
    size_t count = repetitions(bytes);
    for (int turn = 0; turn < 2; turn++)
        copy(destination, source, bytes);
    double started = now_ns();
    for (size_t turn = 0; turn < count; turn++)
        copy(destination, source, bytes);
    return (now_ns() - started) / count;
}

/* Nanoseconds per zeroing of an uncached range. */
static double cold_zero(set_function set, size_t bytes) {
    static size_t at;
    size_t count = repetitions(bytes);
    double started = now_ns();
    for (size_t turn = 0; turn < count; turn++) {
        set(destination + next_place(&at, bytes), 0, bytes);
    }
    return (now_ns() - started) / count;
}

static unsigned char *new_memory(size_t bytes) {
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(2);
    return memory;
}

/* Nanoseconds to copy to untouched memory and then read a byte of each page. */
static double new_copy(copy_function copy, size_t bytes) {
    static size_t at;
    at = at + 2 * bytes > POOL ? 0 : at + bytes;
    unsigned char *to = new_memory(bytes);
    double started = now_ns();
    copy(to, source + at, bytes);
    for (size_t page = 0; page < bytes; page += 4096)
        (void)((volatile unsigned char *)to)[page];
    double took = now_ns() - started;
    munmap(to, bytes);
    return took;
}

/* Mean nanoseconds of copies to new memory, including reading it. */
static double allocated_copy(copy_function copy, size_t bytes) {
    size_t count = repetitions(bytes);
    double took = 0;
    for (size_t turn = 0; turn < count; turn++)
        took += new_copy(copy, bytes);
    return took / count;
}

/* Two implementations of the same functions. The second one finds the caches and free-page lists as the first left them, so
 * their order alternates. */
struct sides {
    copy_function copies[2];
    set_function sets[2];
    int swapped;
};

/* Prints the speed of our library relative to the C library; with `swapped`, the first time is the C library's. */
static void print_ratio(const char *kind, size_t bytes, const struct sides *sides, double first, double second) {
    printf("%s %zu %.4f\n", kind, bytes, sides->swapped ? first / second : second / first);
}

static void compare(const char *kind, double (*measure)(copy_function, size_t), size_t bytes, const struct sides *sides) {
    double first = measure(sides->copies[0], bytes);
    double second = measure(sides->copies[1], bytes);
    print_ratio(kind, bytes, sides, first, second);
}

static void compare_zeroing(size_t bytes, const struct sides *sides) {
    double first = cold_zero(sides->sets[0], bytes);
    double second = cold_zero(sides->sets[1], bytes);
    print_ratio("zero", bytes, sides, first, second);
}

static void measure_added(size_t bytes, const struct sides *sides) {
    double first = short_copy(sides->copies[0], bytes);
    double second = short_copy(sides->copies[1], bytes);
    printf("added %zu %.3f\n", bytes, sides->swapped ? second - first : first - second);
}

static unsigned char *random_pool(void) {
    uint64_t state = 0x9e3779b97f4a7c15u;
    uint64_t *pool = (uint64_t *)new_memory(POOL);
    madvise(pool, POOL, MADV_HUGEPAGE);
    for (size_t at = 0; at < POOL / sizeof *pool; at++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pool[at] = state;
    }
    return (unsigned char *)pool;
}

int main(int count, char **arguments) {
    (void)arguments;
    static const size_t short_sizes[] = {8, 64, 256, 1024};
    static const size_t long_sizes[] = {65536, 262144, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20};
    void *library = dlopen("libc.so.6", RTLD_NOW);
    copy_function theirs = (copy_function)dlsym(library, "memcpy"), ours = (copy_function)dlsym(RTLD_DEFAULT, "memcpy");
    set_function their_set = (set_function)dlsym(library, "memset"), our_set = (set_function)dlsym(RTLD_DEFAULT, "memset");
    if (ours == theirs) {
        fputs("the library is not preloaded\n", stderr);
        return 3;
    }
    source = random_pool();
    destination = random_pool();
    for (int round = 0; round < (count > 1 ? 3 : 15); round++) {
        int swapped = round % 2;
        struct sides sides = {{ours, theirs}, {our_set, their_set}, swapped};
        if (swapped)
            sides = (struct sides){{theirs, ours}, {their_set, our_set}, swapped};
        for (size_t at = 0; at < sizeof short_sizes / sizeof *short_sizes; at++)
            measure_added(short_sizes[at], &sides);
        for (size_t at = 0; at < sizeof long_sizes / sizeof *long_sizes; at++) {
            size_t bytes = long_sizes[at];
            compare("cold", cold_copy, bytes, &sides);
            compare("again", same_copy, bytes, &sides);
            compare_zeroing(bytes, &sides);
            compare("new", allocated_copy, bytes, &sides);
        }
    }
    return 0;
}
