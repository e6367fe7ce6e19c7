/* Copies that are still to be made when memcpy has returned, looked for by every way a program has to see memory: an old byte, or one
 * of what came after, is a failure. Each way by its name, "ok" at the end, and in how many rounds the copy really was still
 * to be made ("pending N of M"). Compiled by tests/programs.rs and run with the library in each mode, and without. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "unseen.h"

static void done(void *a, void *b) {
    munmap(a, BYTES);
    munmap(b, BYTES);
}

static void loads(void) {
    uint64_t *from = source(), *to = copied(from);
    need(is_copy(to + WORDS - 1, WORDS - 1, 1) && is_copy(to + WORDS / 2, WORDS / 2, 1), "a load");
    need(is_copy(to, 0, WORDS), "loads");
    done(from, to);
}

static void stores_to_the_source(void) {
    uint64_t *from = source(), *to = copied(from);
    for (size_t at = WORDS; at-- > 0;)
        ((volatile uint64_t *)from)[at] = 7;
    need(is_copy(to, 0, WORDS), "what was stored later is there");
    need(from[0] == 7 && from[WORDS - 1] == 7, "what was stored is lost");
    done(from, to);
}

/* A source that has no pages of its own yet. */
static void stores_to_a_new_source(void) {
    uint64_t *from = fresh(), *to = copied(from);
    from[WORDS - 1] = from[WORDS / 2] = from[0] = 6;
    need(is_zero(to, WORDS), "what was stored later is there");
    need(from[WORDS - 1] == 6 && from[0] == 6 && is_zero(from + 1, 1000), "what was stored is lost");
    done(from, to);
}

static void stores_to_the_destination(void) {
    uint64_t *from = source(), *to = copied(from);
    to[WORDS - 1] = 1, to[WORDS / 2] = 2, to[600] = 3;
    need(to[WORDS - 1] == 1 && to[WORDS / 2] == 2 && to[600] == 3, "what was stored is lost");
    need(is_copy(to, 0, 600) && is_copy(to + 601, 601, WORDS / 2 - 601), "the rest before");
    need(is_copy(to + WORDS / 2 + 1, WORDS / 2 + 1, WORDS / 2 - 2), "the rest after");
    done(from, to);
}

static void written_to_a_file(void) {
    uint64_t *from = source(), *to = copied(from), *view = fresh();
    int file = memfd_create("unseen", 0);
    need(pwrite(file, to, BYTES, 0) == (ssize_t)BYTES, "write failed");
    need(pread(file, view, BYTES, 0) == (ssize_t)BYTES && is_copy(view, 0, WORDS), "write");
    close(file);
    munmap(view, BYTES);
    done(from, to);
}

static void written_to_a_pipe(void) {
    uint64_t *from = source(), *to = copied(from), got[512];
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    need(write(ends[1], to + WORDS - 512, PAGE) == (ssize_t)PAGE, "write failed");
    need(read(ends[0], got, PAGE) == (ssize_t)PAGE && is_copy(got, WORDS - 512, 512), "write");
    struct iovec last = {to + WORDS - 1024, PAGE};
    need(vmsplice(ends[1], &last, 1, 0) == (ssize_t)PAGE, "vmsplice failed");
    need(read(ends[0], got, PAGE) == (ssize_t)PAGE && is_copy(got, WORDS - 1024, 512), "vmsplice");
    close(ends[0]), close(ends[1]);
    done(from, to);
}

static void source_read_into(void) {
    static uint64_t *other;
    static int file = -1;
    if (file < 0) {
        other = fresh();
        for (size_t at = 0; at < WORDS; at++)
            ((volatile uint64_t *)other)[at] = 9;
        file = memfd_create("unseen", 0);
        need(pwrite(file, other, BYTES, 0) == (ssize_t)BYTES, "write failed");
    }
    uint64_t *from = source(), *to = copied(from);
    need(pread(file, from + WORDS / 2, BYTES / 2, 0) == (ssize_t)BYTES / 2, "read failed");
    need(from[WORDS - 1] == 9, "what was read is lost");
    need(is_copy(to, 0, WORDS), "what was read later is there");
    done(from, to);
}

static void seen_by_another_process(void) {
    int ask[2], answer[2];
    uint64_t *from = source(), *to = fresh();
    need(pipe(ask) == 0 && pipe(answer) == 0, "pipe");
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        char one;
        uint64_t *view = fresh();
        need(read(ask[0], &one, 1) == 1, "told");
        struct iovec here = {view, BYTES}, there = {to, BYTES};
        ssize_t got = process_vm_readv(parent, &here, 1, &there, 1, 0);
        _exit(got == (ssize_t)BYTES && is_copy(view, 0, WORDS) ? 42 : 1);
    }
    memcpy(to, from, BYTES);
    pending += is_pending(to);
    need(write(ask[1], "", 1) == 1 && ended(child) == 42, "process_vm_readv");
    close(ask[0]), close(ask[1]), close(answer[0]), close(answer[1]);
    done(from, to);
}

static void written_by_another_process(void) {
    int ask[2];
    uint64_t *from = source(), *to = fresh();
    need(pipe(ask) == 0, "pipe");
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        char one;
        uint64_t nine = 9;
        need(read(ask[0], &one, 1) == 1, "told");
        struct iovec here = {&nine, 8}, there[2] = {{from + WORDS - 1, 8}, {to + WORDS - 2, 8}};
        ssize_t got = process_vm_writev(parent, &here, 1, there, 1, 0);
        got += process_vm_writev(parent, &here, 1, there + 1, 1, 0);
        _exit(got == 16 ? 42 : 1);
    }
    memcpy(to, from, BYTES);
    pending += is_pending(to);
    need(write(ask[1], "", 1) == 1 && ended(child) == 42, "process_vm_writev failed");
    need(from[WORDS - 1] == 9 && to[WORDS - 2] == 9, "what was written is lost");
    need(is_copy(to, 0, WORDS - 2) && is_copy(to + WORDS - 1, WORDS - 1, 1), "process_vm_writev");
    close(ask[0]), close(ask[1]);
    done(from, to);
}

/* The kernel cannot wait on behalf of who reads memory so: it may give an error, never an old byte. */
static void seen_through_proc(void) {
    uint64_t *from = source(), *to = copied(from), got[512];
    int memory = open("/proc/self/mem", O_RDWR);
    for (size_t at = WORDS - 512; at > 0; at -= 512) {
        ssize_t read = pread(memory, got, PAGE, (off_t)(uintptr_t)(to + at));
        need(read < 0 ? errno == EIO : is_copy(got, at, (size_t)read / 8), "/proc/self/mem");
    }
    got[0] = 5;
    ssize_t wrote = pwrite(memory, got, 8, (off_t)(uintptr_t)(from + WORDS - 1));
    need(wrote == 8 || (wrote < 0 && errno == EIO), "/proc/self/mem written");
    need(is_copy(to, 0, WORDS), "the copy");
    close(memory);
    done(from, to);
}

static void fork_checks(long number) {
    uint64_t *from = source(), *to = copied(from);
    pid_t child = number < 0 ? fork() : syscall(number, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        if (number >= 0) {
            pid_t grandchild = syscall(number, SIGCHLD, 0, 0, 0, 0);
            if (grandchild == 0)
                _exit(is_copy(to, 0, WORDS) ? 42 : 1);
            if (ended(grandchild) != 42)
                _exit(2);
        }
        from[WORDS - 1] = 3;
        _exit(is_copy(to, 0, WORDS) && from[WORDS - 1] == 3 ? 42 : 1);
    }
    need(from[WORDS - 1] == word(seed, WORDS - 1), "the parent's source");
    need(is_copy(to, 0, WORDS), "in the parent");
    int status = ended(child);
    need(status != 2, "in the grandchild");
    need(status == 42, "in the child");
    done(from, to);
}

static void forks(void) { fork_checks(-1); }
static void forks_past_the_library(void) { fork_checks(SYS_clone); }

static void vforks(void) {
    uint64_t *from = source(), *to = copied(from);
    pid_t child = vfork();
    if (child == 0)
        _exit(((volatile uint64_t *)to)[WORDS - 1] == word(seed, WORDS - 1) ? 42 : 1);
    need(ended(child) == 42, "in the child");
    need(is_copy(to, 0, WORDS), "in the parent");
    done(from, to);
}

/* The source goes, and something else comes to its place. */
static void source_unmapped(void) {
    uint64_t *from = source(), *to = copied(from);
    munmap(from, BYTES);
    volatile uint64_t *other =
        mmap(from, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    for (size_t at = 0; other == from && at < WORDS; at += 512)
        other[at] = 4;
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void source_mapped_over(void) {
    uint64_t *from = source(), *to = copied(from);
    void *other = mmap(from, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    need(other == from && is_zero(from, WORDS), "what was mapped");
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void source_discarded(void) {
    uint64_t *from = source(), *to = copied(from);
    need(madvise(from, BYTES, MADV_DONTNEED) == 0, "madvise");
    need(is_zero(from, WORDS), "what was discarded is there");
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void source_protected(void) {
    uint64_t *from = source(), *to = copied(from);
    need(mprotect(from, BYTES, PROT_NONE) == 0, "mprotect");
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void source_moved(void) {
    uint64_t *from = source(), *to = copied(from);
    /* The second half to the place of the first. */
    volatile uint64_t *moved = moved_to(from, from + WORDS / 2, BYTES / 2);
    need(moved == from, "mremap");
    for (size_t at = 0; at < WORDS / 2; at++)
        moved[at] = 8;
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void destination_moved(void) {
    uint64_t *from = source(), *to = copied(from);
    uint64_t *place = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *half = moved_to(place, to + WORDS / 2, BYTES / 2);
    uint64_t *rest = moved_to(place + WORDS, to + 1024, BYTES / 2 - 2 * PAGE);
    need(half == place && rest == place + WORDS, "mremap");
    need(is_copy(half, WORDS / 2, WORDS / 2) && is_copy(rest, 1024, WORDS / 2 - 1024), "the copy");
    need(is_copy(to, 0, 1024), "what stayed");
    munmap(place, 2 * BYTES);
    done(from, to);
}

static void destination_moved_over_itself(void) {
    uint64_t *from = source(), *to = copied(from), *half = moved_to(to, to + WORDS / 2, BYTES / 2);
    need(half == to && is_copy(to, WORDS / 2, WORDS / 2), "the copy");
    done(from, to);
}

static void destination_grown(void) {
    uint64_t *from = source(), *to = copied(from), *grown = mremap(to, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    need(grown != MAP_FAILED && is_copy(grown, 0, WORDS) && is_zero(grown + WORDS, WORDS), "the copy");
    uint64_t *less = mremap(from, BYTES, BYTES / 2, 0);
    need(less == from && is_copy(from, 0, WORDS / 2), "the source");
    munmap(grown, 2 * BYTES);
    munmap(from, BYTES / 2);
}

static void destination_discarded(void) {
    uint64_t *from = source(), *to = copied(from);
    need(madvise(to + WORDS / 2, BYTES / 4, MADV_DONTNEED) == 0, "madvise");
    need(is_zero(to + WORDS / 2, WORDS / 4), "what was discarded is there");
    need(is_copy(to, 0, WORDS / 2) && is_copy(to + WORDS / 4 * 3, WORDS / 4 * 3, WORDS / 4), "the rest");
    done(from, to);
}

static void destination_unmapped(void) {
    uint64_t *from = source(), *to = copied(from);
    munmap(to + WORDS / 2, BYTES / 4);
    uint64_t *other =
        mmap(to + WORDS / 2, BYTES / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    need(is_zero(other, WORDS / 4), "what was mapped there is not new");
    need(is_copy(to, 0, WORDS / 2) && is_copy(to + WORDS / 4 * 3, WORDS / 4 * 3, WORDS / 4), "the rest");
    done(from, to);
}

static void destination_protected(void) {
    uint64_t *from = source(), *to = copied(from);
    need(mprotect(to, BYTES, PROT_READ) == 0, "mprotect");
    need(is_copy(to, 0, WORDS), "the copy");
    uint64_t *again = copied(from);
    need(mprotect(again, BYTES, PROT_NONE) == 0 && mprotect(again, BYTES, PROT_READ) == 0, "mprotect");
    need(is_copy(again, 0, WORDS), "the copy that could not be read for a moment");
    munmap(again, BYTES);
    done(from, to);
}

/* Part of it is another mapping by then, of which nobody is told. */
static void destination_divided(void) {
    for (int way = 0; way < 3; way++) {
        uint64_t *from = source(), *to = copied(from);
        for (size_t page = BYTES / PAGE; way < 2 && page > 64; page -= 37)
            need((way ? mprotect((char *)to + page * PAGE - 3 * PAGE, PAGE, PROT_READ)
                      : madvise((char *)to + page * PAGE - 3 * PAGE, 2 * PAGE, MADV_DONTFORK)) == 0,
                 "division");
        need(way < 2 || mprotect(to + WORDS / 2, BYTES / 4, PROT_READ) == 0, "mprotect");
        need(is_copy(to, 0, WORDS), "the copy");
        done(from, to);
    }
}

/* Some of the destination is there already, where nobody looks at once. */
static void destination_partly_there(void) {
    uint64_t *from = source(), *to = fresh();
    to[1024] = to[WORDS / 3] = to[WORDS - 2048] = 5;
    memcpy(to, from, BYTES);
    pending += is_pending(to);
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

static void copied_on(void) {
    uint64_t *from = source(), *second = copied(from), *third = copied(second), *back = fresh();
    memmove(back + 1, third, BYTES - 8);
    memcpy(from, third + WORDS / 2, BYTES / 2);
    need(is_copy(third, 0, WORDS) && is_copy(second, 0, WORDS), "the copies");
    need(is_copy(back + 1, 0, WORDS - 1) && is_copy(from, WORDS / 2, WORDS / 2), "copies of the copy");
    munmap(third, BYTES), munmap(back, BYTES);
    done(from, second);
}

/* Ranges that begin and end anywhere, and share pages at their ends. */
static void anywhere(void) {
    unsigned char *room = mmap(NULL, 3 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t shift = 1 + seed % 5000, bytes = BYTES - seed % 7000;
    for (size_t at = 0; at < bytes; at++)
        ((volatile unsigned char *)room)[shift + at] = (unsigned char)word(seed, at);
    memcpy(room + shift + bytes, room + shift, bytes);
    ((volatile unsigned char *)room)[shift + bytes - 1] ^= 0xff;
    for (size_t at = 0; at < bytes; at++)
        need(((volatile unsigned char *)room)[shift + bytes + at] == (unsigned char)word(seed, at), "a byte");
    need(room[shift + 2 * bytes] == 0 && (shift == 0 || room[shift - 1] == 0), "a neighbour");
    munmap(room, 3 * BYTES);
}

/* What becomes of old memory when an array grows. */
static void grown_by_hand(void) {
    size_t words = 1 << 16;
    uint64_t *array = malloc(words * 8);
    for (size_t at = 0; at < words; at++)
        array[at] = word(seed, at);
    for (; words < 1 << 21; words *= 2) {
        uint64_t *larger = malloc(words * 16);
        memcpy(larger, array, words * 8);
        free(array);
        for (size_t at = words; at < 2 * words; at++)
            larger[at] = word(seed, at);
        array = realloc(larger, words * 16 + 4096);
        array = realloc(array, words * 16);
    }
    need(is_copy(array, 0, words), "the array");
    free(array);
}

static volatile sig_atomic_t interrupted;
static uint64_t *volatile watched;
static timer_t timer;

/* Once, and again at the handler's end: what is interrupted goes on in between, however long the handler takes. */
static void interrupt_soon(void) {
    struct itimerspec once = {{0, 0}, {0, 300000}};
    timer_settime(timer, 0, &once, NULL);
}

static void on_alarm(int number) {
    static uint64_t own[1 << 17];
    uint64_t *to = watched;
    if (number && to && !is_copy(to + WORDS - 512, WORDS - 512, 512))
        fail("in a signal handler");
    memcpy(own, (void *)own + sizeof own / 2, sizeof own / 2);
    interrupted++;
    interrupt_soon();
}

static void signals(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    uint64_t *from = source();
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    interrupted = 0;
    interrupt_soon();
    while (interrupted < 10) {
        uint64_t *to = copied(from);
        watched = to;
        raise(SIGALRM);
        need(is_copy(to, 0, WORDS), "the copy");
        watched = NULL;
        munmap(to, BYTES);
    }
    /* The last one may be about to come. */
    signal(SIGALRM, SIG_IGN);
    timer_delete(timer);
    munmap(from, BYTES);
}

static void *in_thread(void *memory) {
    uint64_t *from = memory;
    for (int round = 0; round < 8; round++) {
        uint64_t *to = fresh();
        memcpy(to, from, BYTES);
        need(is_copy(to + WORDS - 8, WORDS - 8, 8) && is_copy(to, 0, WORDS), "in a thread");
        munmap(to, BYTES);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    uint64_t *from = source();
    for (int at = 0; at < 4; at++)
        pthread_create(&all[at], NULL, in_thread, from);
    for (int round = 0; round < 6; round++) {
        pid_t child = round % 2 ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0)
            _exit(is_copy(from, 0, WORDS) ? 42 : 1);
        need(ended(child) == 42, "a child's source");
    }
    for (int at = 0; at < 4; at++)
        pthread_join(all[at], NULL);
    munmap(from, BYTES);
}

/* Everything is closed, and other files get the numbers. */
static void descriptors_closed(void) {
    uint64_t *from = source(), *to = copied(from);
    pid_t child = fork();
    if (child == 0) {
        uint64_t *again = copied(from);
        close_range(0, ~0u, 0);
        for (int at = 0; at < 40; at++)
            open("/dev/null", O_RDWR);
        need(is_copy(again, 0, WORDS), "the copy of the child");
        uint64_t *last = copied(from);
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_NOFILE, &none);
        need(is_copy(last, 0, WORDS), "the copy of the child, with no descriptor allowed");
        last = copied(from);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(is_copy(last, 0, WORDS) ? 42 : 1);
        need(ended(grandchild) == 42, "the grandchild");
        _exit(42);
    }
    need(ended(child) == 42, "the child");
    need(is_copy(to, 0, WORDS), "the copy");
    done(from, to);
}

/* No descriptor of the library's is among the program's. */
static void descriptors_kept(void) {
    int before[64];
    for (int at = 0; at < 64; at++)
        before[at] = fcntl(at, F_GETFD);
    uint64_t *from = source(), *to = copied(from);
    for (int at = 0; at < 64; at++)
        need(fcntl(at, F_GETFD) == before[at], "a descriptor came or went");
    done(from, to);
}

/* What a process of one thread may do. */
static void made_alone(void) {
    uint64_t *from = source();
    for (int way = 0; way < 4; way++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t *to = copied(from);
            int answer = way == 0   ? unshare(CLONE_NEWUSER)
                         : way == 1 ? (int)syscall(SYS_unshare, CLONE_NEWUSER)
                                    : 0;
            if (way == 2)
                syscall(SYS_exit, is_copy(to, 0, WORDS) ? 42 : 1);
            if (way == 3)
                exit(42);
            /* Where it is forbidden it is forbidden for another reason. */
            if (answer != 0 && errno == EINVAL)
                fail("unshare");
            _exit(is_copy(to, 0, WORDS) ? 42 : 1);
        }
        need(ended(child) == 42, "the child");
    }
    munmap(from, BYTES);
}

/* A filter for all threads, though it forbids nothing: nothing is left for later from there on. */
static void confined(void) {
    for (int way = 0; way < 2; way++) {
        pid_t child = fork();
        if (child == 0) {
            struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            struct sock_fprog filter = {1, &all};
            uint64_t *from = source(), *to = copied(from), *next = fresh();
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            long answer = way ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)
                              : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
            memcpy(next, from, BYTES);
            need(answer == 0 && !is_pending(next) && is_copy(next, 0, WORDS), "a copy after that");
            _exit(is_copy(to, 0, WORDS) ? 42 : 1);
        }
        need(ended(child) == 42, "a copy before that");
    }
}

/* Memory of other kinds: not guarded, and right all the same. */
static void other_kinds(void) {
    uint64_t *from = source();
    int file = memfd_create("unseen", 0);
    need(ftruncate(file, (off_t)BYTES) == 0, "ftruncate");
    int kinds[] = {MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED, MAP_PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS};
    for (int at = 0; at < 4; at++) {
        int of = kinds[at] & MAP_ANONYMOUS ? -1 : file;
        uint64_t *to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, kinds[at], of, 0);
        uint64_t *same = of >= 0 && kinds[at] == MAP_SHARED ? mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0) : to;
        if (at == 3)
            mlock(to, BYTES);
        memcpy(to, from, BYTES);
        need(!is_pending(to) && is_copy(same, 0, WORDS), "the copy");
        uint64_t *out = fresh();
        memcpy(out, to, BYTES);
        need(is_copy(out, 0, WORDS), "a copy from it");
        munmap(to, BYTES), munmap(out, BYTES);
    }
    close(file);
    munmap(from, BYTES);
}

/* Memory that the kernel reads and writes by its pages, past the addresses. */
static void pinned(void) {
    struct io_uring_params parameters = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0)
        return;
    uint64_t *from = source();
    struct iovec buffer = {from, BYTES};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0) {
        uint64_t *to = fresh();
        memcpy(to, from, BYTES);
        need(!is_pending(to) && is_copy(to, 0, WORDS), "the copy");
        munmap(to, BYTES);
    }
    close(ring);
    munmap(from, BYTES);
}

/* errno is the program's, when the library has to start something too. */
static void errno_kept(void) {
    uint64_t *from = source();
    pid_t child = fork();
    if (child == 0) {
        uint64_t *to = fresh();
        errno = 77;
        memcpy(to, from, BYTES);
        _exit(errno == 77 ? 42 : 1);
    }
    need(ended(child) == 42, "errno");
    munmap(from, BYTES);
}

static void executed(void) {
    uint64_t *from = source();
    pid_t child = fork();
    if (child == 0) {
        char *text = fresh();
        for (size_t at = 0; at < BYTES; at++)
            ((volatile char *)text)[at] = 'a';
        text[BYTES - 100000] = '\0';
        text[BYTES - 1] = '\0';
        char *to = copied(text);
        execl("/bin/sh", "sh", "-c", "test ${#0} -eq 99998 && exit 42", to + BYTES - 99999, NULL);
        _exit(1);
    }
    need(ended(child) == 42, "the arguments");
    munmap(from, BYTES);
}

static const struct {
    const char *name;
    void (*what)(void);
} ways[] = {
    {"descriptors_kept", descriptors_kept},
    {"loads", loads},
    {"stores to the source", stores_to_the_source},
    {"stores to a new source", stores_to_a_new_source},
    {"stores to the destination", stores_to_the_destination},
    {"written to a file", written_to_a_file},
    {"written to a pipe", written_to_a_pipe},
    {"the source read into", source_read_into},
    {"seen by another process", seen_by_another_process},
    {"written by another process", written_by_another_process},
    {"seen through /proc", seen_through_proc},
    {"forks", forks},
    {"forks past the library", forks_past_the_library},
    {"vforks", vforks},
    {"the source unmapped", source_unmapped},
    {"the source mapped over", source_mapped_over},
    {"the source discarded", source_discarded},
    {"the source protected", source_protected},
    {"the source moved", source_moved},
    {"the destination moved", destination_moved},
    {"the destination moved over itself", destination_moved_over_itself},
    {"the destination grown", destination_grown},
    {"the destination discarded", destination_discarded},
    {"the destination unmapped", destination_unmapped},
    {"the destination protected", destination_protected},
    {"the destination divided", destination_divided},
    {"the destination partly there", destination_partly_there},
    {"copied on", copied_on},
    {"anywhere", anywhere},
    {"grown by hand", grown_by_hand},
    {"signals", signals},
    {"threads", threads},
    {"descriptors closed", descriptors_closed},
    {"made alone", made_alone},
    {"confined", confined},
    {"other kinds", other_kinds},
    {"pinned", pinned},
    {"errno kept", errno_kept},
    {"executed", executed},
};
#define WAYS (sizeof ways / sizeof *ways)

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 3, all = 0;
    /* Children look at this process, which Yama forbids them otherwise; without Yama this is an error, and not needed. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    for (int round = 0; round < rounds; round++)
        for (size_t at = 0; at < WAYS; at++) {
            seed = (uint64_t)round * 1000 + at * 17 + 1;
            now_at = ways[at].name;
            if (count > 2 && strcmp(now_at, arguments[2]) != 0)
                continue;
            int before = pending;
            ways[at].what();
            if (count > 2)
                fprintf(stderr, "%s: %d\n", now_at, pending - before);
            all++;
        }
    printf("pending %d of %d\nok\n", pending, all);
    return 0;
}
