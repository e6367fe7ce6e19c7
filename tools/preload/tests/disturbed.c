/* Anything, in any order, done to any part of the destination and the source of copies that are still to be made when memcpy has
 * returned: a page that has other bytes than it must is a failure. Of so many rounds; "pending N of M" and "ok" at the end. Compiled
 * by tests/programs.rs and run with the library in asynchronous mode, and without. */
#define _GNU_SOURCE
#include <signal.h>

#include "unseen.h"

/* What became of the pages of one copy, and a generator to draw from. */
static struct {
    char *at[BYTES / PAGE]; /* NULL: unmapped */
    unsigned char discarded[BYTES / PAGE];
    unsigned mapping[BYTES / PAGE]; /* equal for neighbours in one mapping */
    uint64_t state;
    unsigned mappings;
} pages;

static uint64_t below(uint64_t limit) {
    pages.state ^= pages.state << 13, pages.state ^= pages.state >> 7, pages.state ^= pages.state << 17;
    return (pages.state >> 11) % limit;
}

static int page_is_right(size_t page) {
    uint64_t *words = (uint64_t *)pages.at[page];
    return !words || (pages.discarded[page] ? is_zero(words, 512) : is_copy(words, page * 512, 512));
}

static int all_are_right(void) {
    for (size_t page = 0; page < BYTES / PAGE; page++)
        if (!page_is_right(page))
            return 0;
    return 1;
}

/* `count` pages of a mapping are one of their own, and what follows them too. */
static void divide(size_t page, size_t count) {
    unsigned whole = pages.mapping[page], own = ++pages.mappings, rest = ++pages.mappings;
    for (size_t with = page; with < BYTES / PAGE && pages.mapping[with] == whole; with++)
        pages.mapping[with] = with < page + count ? own : rest;
}

/* Something happens to `count` pages of one mapping. */
static void disturb(size_t page, size_t count, uint64_t how) {
    char *at = pages.at[page], *to = NULL;
    size_t bytes = count * PAGE;
    if (how == 0)
        need(madvise(at, bytes, MADV_DONTFORK) == 0 && madvise(at, bytes, MADV_DOFORK) == 0, "MADV_DOFORK");
    else if (how == 1)
        need(madvise(at, bytes, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    else if (how == 2)
        need(mprotect(at, bytes, PROT_READ) == 0, "mprotect");
    else if (how == 3)
        need(munmap(at, bytes) == 0, "munmap");
    else {
        to = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        need(to != MAP_FAILED && moved_to(to, at, bytes) == to, "mremap");
    }
    if (how >= 2)
        divide(page, count);
    for (size_t with = page; with < page + count; with++) {
        if (how >= 3)
            pages.at[with] = to ? to + (with - page) * PAGE : NULL;
        pages.discarded[with] |= how == 1;
    }
}

/* One thing happens to part of the destination, or of the source. */
static void step(void *from) {
    size_t page = below(BYTES / PAGE), most = 1 + below(BYTES / PAGE / 4), count = 1;
    while (count < most && page + count < BYTES / PAGE && pages.mapping[page + count] == pages.mapping[page])
        count++;
    uint64_t how = below(9);
    if (how < 6 && pages.at[page])
        disturb(page, count, how);
    else if (how == 6)
        ((volatile uint64_t *)from)[page * 512] = 1;
    else if (how == 7)
        need(page_is_right(page), "a page in between");
    else if (how == 8 && below(4) == 0) {
        pid_t child = (pid_t)raw(SYS_clone, (void *)SIGCHLD, 0, 0, 0, NULL);
        if (child == 0)
            _exit(all_are_right() ? 42 : 1);
        need(ended(child) == 42, "in a child");
    }
}

int main(int count, char **arguments) {
    uint64_t rounds = count > 1 ? strtoull(arguments[1], NULL, 10) : 100;
    now_at = "disturbed";
    for (seed = 1; seed <= rounds; seed++) {
        void *from = source();
        char *to = copied(from);
        pages.state = seed * 0x9e3779b97f4a7c15u, pages.mappings = 2;
        for (size_t page = 0; page < BYTES / PAGE; page++) {
            pages.at[page] = to + page * PAGE, pages.discarded[page] = 0;
            /* What of the destination was copied at once is not of the mapping that is guarded. */
            pages.mapping[page] = page > 0 ? 2 : 1;
        }
        for (uint64_t steps = below(24); steps > 0; steps--)
            step(from);
        need(all_are_right(), "the copy");
        for (size_t page = 0; page < BYTES / PAGE; page++)
            if (pages.at[page])
                munmap(pages.at[page], PAGE);
        munmap(from, BYTES);
    }
    printf("pending %d of %llu\nok\n", pending, (unsigned long long)rounds);
    return 0;
}
