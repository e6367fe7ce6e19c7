/* What programs share that look for bytes which copies still to be made must not show. */
#ifndef UNSEEN_H
#define UNSEEN_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define BYTES ((size_t)8 << 20)
#define WORDS (BYTES / 8)

static uint64_t seed;
static const char *now_at = "the beginning";
static int pending;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s (seed %llu, errno %d)\n", now_at, what, (unsigned long long)seed, errno);
    _exit(1);
}

static void need(int sound, const char *what) {
    if (!sound)
        fail(what);
}

/* The status a child ended with, or -1. */
static int ended(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Past every library. */
static long raw(long number, void *a, size_t b, size_t c, long d, void *e) {
#if defined __x86_64__
    long answer;
    register long fourth __asm__("r10") = d;
    register void *fifth __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return answer;
#else
    return syscall(number, a, b, c, d, e);
#endif
}

static void *moved_to(void *to, void *from, size_t bytes) {
    return (void *)raw(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}

static uint64_t word(uint64_t of, size_t at) { return (of + at) * 0x9e3779b97f4a7c15u + 1; }

static void *fresh(void) {
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(memory != MAP_FAILED, "mmap");
    return memory;
}

static void *source(void) {
    volatile uint64_t *memory = fresh();
    for (size_t at = 0; at < WORDS; at++)
        memory[at] = word(seed, at);
    return (void *)memory;
}

/* Whether words of a place are those of the source from word `from` on. */
static int is_copy(const volatile uint64_t *memory, size_t from, size_t words) {
    for (size_t at = 0; at < words; at++)
        if (memory[at] != word(seed, from + at))
            return 0;
    return 1;
}

static int is_zero(const volatile uint64_t *memory, size_t words) {
    for (size_t at = 0; at < words; at++)
        if (memory[at])
            return 0;
    return 1;
}

/* Whether the last whole page is not there: asking does not touch it. */
static int is_pending(void *to) {
    unsigned char there = 1;
    return mincore((char *)to + BYTES - PAGE, PAGE, &there) == 0 && !(there & 1);
}

/* A copy to new memory. */
static void *copied(void *from) {
    void *to = fresh();
    need(memcpy(to, from, BYTES) == to, "memcpy's answer");
    pending += is_pending(to);
    return to;
}

#endif
