/* Makes a known number of copies, which `memferry profile` must count; each kind has its own function, so that the caller's
 * name identifies it. Compiled by tests/two-process/profile.rs. The argument selects the action. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static _Alignas(64) unsigned char source[1 << 20], destination[1 << 20];

typedef void *(*checked_copy)(void *, const void *, size_t, size_t);
typedef void *(*checked_set)(void *, int, size_t, size_t);

/* Code after a call keeps the compiler from turning it into a jump, which has no return address of its own. */
#define AFTERWARDS __asm__ volatile("" ::: "memory")
#define TIMES(count) for (int time = 0; time < (count); time++)

__attribute__((noinline)) void by_memcpy(int count) {
    TIMES(count) {
        memcpy(destination, source, 100);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_memmove(int count) {
    TIMES(count) {
        memmove(destination + 3, source + 11, 5000);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_mempcpy(int count) {
    TIMES(count) {
        if (mempcpy(destination + 8, source, 10) != destination + 18)
            _exit(3);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_memset(int count) {
    TIMES(count) {
        memset(destination + 1, 0x1c3, 64);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_zeroing(int count) {
    TIMES(count) {
        memset(destination, 0x100, 70000);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_nothing(int count) {
    TIMES(count) {
        memcpy(destination, source, 0);
        AFTERWARDS;
    }
}

__attribute__((noinline)) void by_checked(int count) {
    checked_copy copy = (checked_copy)dlsym(RTLD_DEFAULT, "__memcpy_chk");
    checked_copy move = (checked_copy)dlsym(RTLD_DEFAULT, "__memmove_chk");
    checked_copy further = (checked_copy)dlsym(RTLD_DEFAULT, "__mempcpy_chk");
    checked_set set = (checked_set)dlsym(RTLD_DEFAULT, "__memset_chk");
    TIMES(count) {
        copy(destination, source, 20, 20);
        move(destination, source, 30, 1000);
        if (further(destination, source, 40, 40) != destination + 40)
            _exit(3);
        set(destination, 7, 50, 50);
        AFTERWARDS;
    }
}

static void all(void) {
    by_memcpy(1000);
    by_memmove(7);
    by_mempcpy(3);
    by_memset(5);
    by_zeroing(11);
    by_nothing(2);
    by_checked(13);
}

static void *in_thread(void *unused) {
    by_memcpy(100);
    return unused;
}

static void on_signal(int number) {
    (void)number;
    by_memcpy(1);
    _exit(9);
}

/* 20 forked children with 50 calls each, 4 threads with 100 each, 5 programs with 10 each. */
static void children(void) {
    pthread_t threads[4];
    for (int number = 0; number < 4; number++)
        pthread_create(&threads[number], NULL, in_thread, NULL);
    for (int number = 0; number < 25; number++) {
        pid_t child = fork();
        if (child == 0 && number < 20) {
            by_memcpy(50);
            _exit(0);
        }
        if (child == 0) {
            execl("/proc/self/exe", "known", "leaf", (char *)NULL);
            _exit(2);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            exit(4);
    }
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
}

/* Writes noise over the recording, starting at word `from`. */
static void scribble(size_t from) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long begin, end;
    uint64_t state = 0x9e3779b97f4a7c15u;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "memferry-recording") && sscanf(line, "%lx-%lx", &begin, &end) == 2) {
            for (volatile uint64_t *word = (uint64_t *)begin + from; word < (uint64_t *)end; word++) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state;
            }
            by_memcpy(5);
            exit(0);
        }
    exit(5);
}

static void confined(void) {
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    by_memmove(7);
    by_zeroing(11);
    syscall(SYS_exit, 42);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "all";
    memset(source, 1, sizeof source);
    if (!strcmp(what, "all"))
        all();
    else if (!strcmp(what, "leaf"))
        by_memcpy(10);
    else if (!strcmp(what, "children"))
        children();
    else if (!strcmp(what, "scribble"))
        scribble(1);
    else if (!strcmp(what, "overwrite"))
        scribble(0);
    else if (!strcmp(what, "confined"))
        confined();
    else if (!strcmp(what, "wait")) {
        signal(SIGTERM, on_signal);
        puts("ready");
        fflush(stdout);
        for (;;)
            pause();
    } else
        return 2;
    return 0;
}
