/* What the preloaded library adds to a call and gains by a copy: each side by turns, in one process. Compiled and run by the bench
 * group "preload" with the library preloaded; an argument makes it quick. Writes lines "KIND BYTES VALUE": nanoseconds "added" to a
 * call, else how many times as fast as the C library. */
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

/* More than the caches hold. */
#define POOL ((size_t)256 << 20)

static unsigned char *source, *destination;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Nanoseconds of a copy of the same few bytes, in the mean of many. */
static double short_copy(copy_function copy, size_t bytes) {
    enum { COUNT = 100000 };
    double begun = now_ns();
    for (int at = 0; at < COUNT; at++) {
        copy(destination, source, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (now_ns() - begun) / COUNT;
}

/* How often a round does something of so many bytes. */
static size_t turns(size_t bytes) {
    const size_t round = (size_t)16 << 20;
    return bytes < round ? round / bytes : 1;
}

/* The next place of the pool, going round. */
static size_t next_place(size_t *at, size_t bytes) {
    size_t place = *at + bytes > POOL ? 0 : *at;
    *at = place + bytes;
    return place;
}

/* Nanoseconds of a copy from and to memory that is in no cache; each place once, going round. */
static double cold_copy(copy_function copy, size_t bytes) {
    static size_t at;
    size_t count = turns(bytes);
    double begun = now_ns();
    for (size_t turn = 0; turn < count; turn++) {
        size_t place = next_place(&at, bytes);
        copy(destination + place, source + place, bytes);
    }
    return (now_ns() - begun) / count;
}

/* Nanoseconds of a copy between the same two places again, from the third on: what comes again is kept in the caches, once it is
 * known to come again. */
static double same_copy(copy_function copy, size_t bytes) {
    size_t count = turns(bytes);
    for (int turn = 0; turn < 2; turn++)
        copy(destination, source, bytes);
    double begun = now_ns();
    for (size_t turn = 0; turn < count; turn++)
        copy(destination, source, bytes);
    return (now_ns() - begun) / count;
}

/* Nanoseconds of zeroing memory that is in no cache. */
static double cold_zero(set_function set, size_t bytes) {
    static size_t at;
    size_t count = turns(bytes);
    double begun = now_ns();
    for (size_t turn = 0; turn < count; turn++) {
        set(destination + next_place(&at, bytes), 0, bytes);
    }
    return (now_ns() - begun) / count;
}

static unsigned char *new_memory(size_t bytes) {
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(2);
    return memory;
}

/* Nanoseconds of a copy to memory that was never touched, and of then reading a byte of each page. */
static double new_copy(copy_function copy, size_t bytes) {
    static size_t at;
    at = at + 2 * bytes > POOL ? 0 : at + bytes;
    unsigned char *to = new_memory(bytes);
    double begun = now_ns();
    copy(to, source + at, bytes);
    for (size_t page = 0; page < bytes; page += 4096)
        (void)((volatile unsigned char *)to)[page];
    double took = now_ns() - begun;
    munmap(to, bytes);
    return took;
}

/* Nanoseconds of copies to new memory that is then read. */
static double allocated_copy(copy_function copy, size_t bytes) {
    size_t count = turns(bytes);
    double took = 0;
    for (size_t turn = 0; turn < count; turn++)
        took += new_copy(copy, bytes);
    return took / count;
}

/* Two functions that do the same. Who comes second finds caches and lists of free pages as the other left them, so they change
 * places. */
struct sides {
    copy_function copies[2];
    set_function sets[2];
    int swapped;
};

/* How many times as fast as the C library, which came first when they were swapped. */
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
    static const size_t brief[] = {8, 64, 256, 1024};
    static const size_t lengthy[] = {65536, 262144, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20};
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
        for (size_t at = 0; at < sizeof brief / sizeof *brief; at++)
            measure_added(brief[at], &sides);
        for (size_t at = 0; at < sizeof lengthy / sizeof *lengthy; at++) {
            size_t bytes = lengthy[at];
            compare("cold", cold_copy, bytes, &sides);
            compare("again", same_copy, bytes, &sides);
            compare_zeroing(bytes, &sides);
            compare("new", allocated_copy, bytes, &sides);
        }
    }
    return 0;
}
