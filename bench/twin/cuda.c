/* Copies between host memory and memory of a GPU by calls of the CUDA driver alone: what a program without memferry would do.
 *
 *   a line "up BYTES COUNT WARM" or "down BYTES COUNT WARM" ─► COUNT times cuMemcpyHtoDAsync or cuMemcpyDtoHAsync,
 *       cuStreamSynchronize ─► a line with nanoseconds
 *
 * Usage: cuda LIBRARY MOST, a multiple of 2 MiB. A round prints "PINNED REGISTERED": the time of COUNT copies of BYTES bytes, at most MOST,
 * between the device and memory that the driver allocated pinned, and between it and a shared mapping that it registered. If WARM is
 * 1, each time is that after another copy, of 64 KiB. The two places take turns at being the first. It does nothing else with the
 * bytes, and nothing at the same time.
 *
 * It ends with a message if the driver refuses a call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { PORTABLE = 1, NON_BLOCKING = 1, WARMING = 64 << 10 };

typedef uint64_t device_address;

/* Of CUmemAllocationProp and CUmemAccessDesc, what is not zero: ordinary memory of a device, to read and write. */
struct location {
    int kind, device;
};
struct allocation {
    int kind, handles;
    struct location location;
    uint64_t rest[2];
};
struct access {
    struct location location;
    int rights;
};

static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

/* Calls a function of the driver by its name. */
#define CALL(name, types, ...)                                                                                                      \
    do {                                                                                                                            \
        int code = ((int (*) types)find(name))(__VA_ARGS__);                                                                        \
        if (code != 0) {                                                                                                            \
            fprintf(stderr, "%s failed with error %d\n", name, code);                                                               \
            exit(1);                                                                                                                \
        }                                                                                                                           \
    } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *shared(size_t bytes) {
    int memory = memfd_create("pages", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, (off_t)bytes) != 0) {
        perror("memfd");
        exit(1);
    }
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (mapped == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return mapped;
}

static device_address on_device(int device, size_t bytes) {
    struct location location = {.kind = 1, .device = device};
    struct allocation kind = {.kind = 1, .location = location};
    struct access access = {.location = location, .rights = 3};
    device_address address;
    uint64_t handle;
    CALL("cuMemCreate", (uint64_t *, size_t, const struct allocation *, uint64_t), &handle, bytes, &kind, 0);
    CALL("cuMemAddressReserve", (device_address *, size_t, size_t, device_address, uint64_t), &address, bytes, 0, 0, 0);
    CALL("cuMemMap", (device_address, size_t, size_t, uint64_t, uint64_t), address, bytes, 0, handle, 0);
    CALL("cuMemSetAccess", (device_address, size_t, const struct access *, size_t), address, bytes, &access, 1);
    return address;
}

/* Bytes that no device could compress or guess. */
static void scramble(uint64_t *words, size_t bytes) {
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t index = 0; index < bytes / sizeof *words; index++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[index] = state;
    }
}

int main(int count, char **arguments) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (count != 3) {
        fprintf(stderr, "usage: cuda LIBRARY MOST\n");
        return 2;
    }
    size_t most = strtoull(arguments[2], NULL, 10);
    library = dlopen(arguments[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int device;
    void *context, *stream, *pinned;
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL("cuCtxSetCurrent", (void *), context);
    CALL("cuStreamCreateWithPriority", (void **, unsigned, int), &stream, NON_BLOCKING, 0);
    CALL("cuMemHostAlloc", (void **, size_t, unsigned), &pinned, most, PORTABLE);
    device_address vram = on_device(device, most);
    void *registered = shared(most);
    scramble(pinned, most);
    scramble(registered, most);
    CALL("cuMemHostRegister_v2", (void *, size_t, unsigned), registered, most, PORTABLE);

    void *places[] = {pinned, registered};
    int (*up)(device_address, const void *, size_t, void *) = (int (*)(device_address, const void *, size_t, void *))find("cuMemcpyHtoDAsync_v2");
    int (*down)(void *, device_address, size_t, void *) = (int (*)(void *, device_address, size_t, void *))find("cuMemcpyDtoHAsync_v2");
    int (*synchronize)(void *) = (int (*)(void *))find("cuStreamSynchronize");
    char line[64];
    for (size_t first = 0; fgets(line, sizeof line, stdin) != NULL; first ^= 1) {
        char direction[8];
        size_t bytes;
        unsigned times, warm;
        if (sscanf(line, "%7s %zu %u %u", direction, &bytes, &times, &warm) != 4 || bytes > most) {
            fprintf(stderr, "not understood: %s", line);
            return 2;
        }
        double taken[2];
        for (size_t turn = 0; turn < 2; turn++) {
            size_t place = turn ^ first;
            int code = 0;
            double began = 0;
            for (unsigned time = warm ? 0 : 1; time <= times && code == 0; time++) {
                size_t length = time == 0 ? WARMING : bytes;
                if (time == 1)
                    began = now();
                code = direction[0] == 'u' ? up(vram, places[place], length, stream) : down(places[place], vram, length, stream);
                if (time == 0 && code == 0)
                    code = synchronize(stream);
            }
            if (code == 0)
                code = synchronize(stream);
            taken[place] = now() - began;
            if (code != 0) {
                fprintf(stderr, "a copy failed with error %d\n", code);
                return 1;
            }
        }
        printf("%.0f %.0f\n", taken[0], taken[1]);
        fflush(stdout);
    }
    return 0;
}
