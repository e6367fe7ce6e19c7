/* Asynchronous copies of plain memory: random programs against memmove, threads, mistakes, a fork meanwhile. */
#include <memferry.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AREA = 400000, PLACES = 3, TURNS = 80 };

static int failures;
static mf_client client;
static mf_copier copier;

static void expect(const char *call, mf_error got, mf_error wanted, int line) {
    const char *message = mf_last_message();
    if (got == wanted && (wanted == MF_ERROR_NONE || strlen(message) > 0))
        return;
    fprintf(stderr, "line %d: %s gave %d (%s: %s), not %d\n", line, call, (int)got, mf_error_text(got), message,
            (int)wanted);
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

#define EXPECT(wanted, call) expect(#call, (call), (wanted), __LINE__)
#define OK(call) EXPECT(MF_ERROR_NONE, call)

static size_t below(uint64_t *state, size_t end) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (size_t)(*state >> 11) % end;
}

static void differ(const char *what, uint64_t seed, int turn) {
    fprintf(stderr, "%s, seed %llu, turn %d\n", what, (unsigned long long)seed, turn);
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

/* Copies, csyncs, writes and frees of a few places, compared with the same program using memmove. */
static void *program(void *argument) {
    uint64_t seed = *(uint64_t *)argument, state = seed;
    char *real[PLACES], *oracle[PLACES];
    for (int i = 0; i < PLACES; i++) {
        real[i] = malloc(AREA);
        oracle[i] = malloc(AREA);
        for (size_t j = 0; j < AREA; j++)
            real[i][j] = oracle[i][j] = (char)below(&state, 256);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        size_t longest[4] = {AREA, 150000, 9000, 50};
        size_t length = below(&state, longest[below(&state, 4)] + 1);
        size_t to = below(&state, AREA - length + 1), from = below(&state, AREA - length + 1);
        int one = (int)below(&state, PLACES), other = (int)below(&state, PLACES);
        switch (below(&state, 8)) {
        default:
            OK(mf_amemcpy(copier, real[one] + to, real[other] + from, length));
            memmove(oracle[one] + to, oracle[other] + from, length);
            break;
        case 0:
        case 1:
            OK(mf_csync(copier, real[one] + to, length));
            if (memcmp(real[one] + to, oracle[one] + to, length) != 0)
                differ("wrong bytes", seed, turn);
            break;
        case 2:
            OK(mf_csync_to_write(copier, real[one] + to, length));
            memset(real[one] + to, turn, length);
            memset(oracle[one] + to, turn, length);
            break;
        case 3: /* the place is freed and allocated again */
            OK(mf_cforget(copier, real[one], AREA));
            free(real[one]);
            real[one] = malloc(AREA);
            memset(real[one], turn, AREA);
            memset(oracle[one], turn, AREA);
        }
    }
    for (int i = 0; i < PLACES; i++) {
        OK(mf_csync_to_write(copier, real[i], AREA));
        if (memcmp(real[i], oracle[i], AREA) != 0)
            differ("wrong bytes at the end", seed, i);
        free(real[i]);
        free(oracle[i]);
    }
    return NULL;
}

static void threads(void) {
    uint64_t seeds[3] = {21, 22, 23};
    pthread_t running[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&running[i], NULL, program, &seeds[i]);
    for (int i = 0; i < 20; i++)
        OK(mf_csync_all(copier));
    for (int i = 0; i < 3; i++)
        pthread_join(running[i], NULL);
}

static void wrong(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *fixed = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char room[64] = "";
    mf_copier gone = copier, none = {0}, second;
    EXPECT(MF_ERROR_NULL_POINTER, mf_copier_open(client, NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_amemcpy(copier, NULL, room, 1));
    EXPECT(MF_ERROR_NULL_POINTER, mf_amemcpy(copier, room, NULL, 1));
    EXPECT(MF_ERROR_NULL_POINTER, mf_csync(copier, NULL, 1));
    EXPECT(MF_ERROR_NULL_POINTER, mf_cforget(copier, NULL, 1));
    EXPECT(MF_ERROR_ARGUMENT, mf_amemcpy(copier, room, fixed, SIZE_MAX));
    EXPECT(MF_ERROR_ARGUMENT, mf_csync(copier, room, SIZE_MAX));
    EXPECT(MF_ERROR_ARGUMENT, mf_csync_to_write(copier, (void *)UINTPTR_MAX, 2));
    EXPECT(MF_ERROR_READ_ONLY, mf_amemcpy(copier, fixed, room, 8));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_amemcpy(copier, room, (void *)8, 8));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_amemcpy(copier, (void *)8, room, 8));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_amemcpy(none, room, fixed, 8));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_csync_all(none));
    OK(mf_amemcpy(copier, NULL, NULL, 0));
    OK(mf_amemcpy(copier, room, room, 64));
    OK(mf_csync(copier, NULL, 0));
    OK(mf_cforget(copier, fixed, 0));
    OK(mf_amemcpy(copier, room, fixed, 64)); /* a source may be read-only */
    OK(mf_csync(copier, room, 64));
    OK(mf_copier_open(client, &second));
    OK(mf_copier_close(second));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_copier_close(second));
    gone.id = second.id;
    EXPECT(MF_ERROR_BAD_HANDLE, mf_csync(gone, room, 1));
    munmap(fixed, page);
}

/* The child has no copier, and its parent's copies continue. */
static void forked(void) {
    size_t length = 12 << 20;
    char *from = malloc(length), *to = calloc(length, 1);
    int status = -1;
    for (size_t i = 0; i < length; i++)
        from[i] = (char)(i * 7 + (i >> 11));
    OK(mf_amemcpy(copier, to, from, length));
    pid_t child = fork();
    if (child == 0) {
        mf_client own;
        mf_copier mine;
        char small[2][32] = {"of the child", ""};
        failures = 0;
        EXPECT(MF_ERROR_FORKED, mf_amemcpy(copier, small[1], small[0], 32));
        EXPECT(MF_ERROR_FORKED, mf_csync(copier, to, 1));
        EXPECT(MF_ERROR_FORKED, mf_csync_to_write(copier, from, 1));
        EXPECT(MF_ERROR_FORKED, mf_cforget(copier, to, length));
        EXPECT(MF_ERROR_FORKED, mf_csync_all(copier));
        EXPECT(MF_ERROR_FORKED, mf_copier_close(copier));
        OK(mf_embed(&own));
        OK(mf_copier_open(own, &mine));
        EXPECT(MF_ERROR_FORKED, mf_csync(copier, to, 1));
        OK(mf_amemcpy(mine, to, from, length));
        OK(mf_amemcpy(mine, small[1], small[0], 32));
        OK(mf_csync_all(mine));
        failures += memcmp(to, from, length) != 0 || memcmp(small[0], small[1], 32) != 0;
        _exit(failures);
    }
    OK(mf_csync(copier, to, length));
    if (memcmp(to, from, length) != 0)
        differ("the parent's bytes are wrong", 0, 0);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        failures++, fprintf(stderr, "the child ended with %x\n", status);
    free(from);
    free(to);
}

/* Closing waits for what is pending. */
static void closed(void) {
    size_t length = 8 << 20;
    char *from = malloc(length), *to = malloc(length);
    memset(from, 5, length);
    OK(mf_amemcpy(copier, to, from, length));
    OK(mf_copier_close(copier));
    if (memcmp(to, from, length) != 0)
        differ("bytes are missing", 0, 0);
    free(from);
    free(to);
    OK(mf_disconnect(client));
}

int main(int argc, char **argv) {
    if (argc > 1) { /* a service's path: it cannot use plain memory of this process */
        OK(mf_connect(argv[1], &client));
        EXPECT(MF_ERROR_NOT_EMBEDDED, mf_copier_open(client, &copier));
        printf("%d failures\n", failures);
        return failures != 0;
    }
    OK(mf_embed(&client));
    OK(mf_copier_open(client, &copier));
    wrong();
    threads();
    forked();
    closed();
    printf("%d failures\n", failures);
    return failures != 0;
}
