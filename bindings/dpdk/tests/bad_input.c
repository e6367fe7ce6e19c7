/* What the driver answers to wrong arguments, wrong requests, memory that is no frame, and a service that dies.
 *
 *     bad_input EAL-ARGUMENTS... -- MEMFERRY SOCKET
 *
 * EAL needs two lcores. MEMFERRY is the command, whose service this program starts at SOCKET. The driver is given to EAL by -d.
 * Prints a line for each scene, and ends with 1 at the first mistake. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_memory.h>

#define NAME "dma_memferry0"
#define OTHER "dma_memferry1"
#define DESCRIPTORS 64
#define BYTES 4096
#define LARGE_BYTES (4 << 20)
#define PATIENCE_SECONDS 20
/* As the driver has it: different patterns of eight bytes at a time. */
#define PATTERNS 16

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #condition);                                           \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static char *source, *destination, *third, *large;
static const char *service_path;
static pid_t service;
static int16_t dev;

static void scene(const char *name) { printf("ok: %s\n", name); }

static rte_iova_t at(const void *memory) { return (uintptr_t)memory; }

/* Ends the program when something takes too long. */
static void patience(time_t since) { CHECK(time(NULL) - since < PATIENCE_SECONDS); }

static void start_service(const char *command) {
    time_t since = time(NULL);

    unlink(service_path);
    service = fork();
    CHECK(service >= 0);
    if (service == 0) {
        /* Also when this program ends at a mistake. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(126);
        execl(command, command, "serve", "--socket", service_path, (char *)NULL);
        _exit(127);
    }
    while (access(service_path, F_OK) != 0) {
        CHECK(waitpid(service, NULL, WNOHANG) == 0);
        patience(since);
        usleep(1000);
    }
}

static int probe(const char *name, const char *arguments) { return rte_vdev_init(name, arguments); }

/* Probes a service; its socket exists a moment before it listens. */
static void probe_service(const char *name, const char *arguments) {
    time_t since = time(NULL);

    while (probe(name, arguments) != 0)
        patience(since);
}

static int configure(uint16_t channels) {
    struct rte_dma_conf conf = {.nb_vchans = channels};

    return rte_dma_configure(dev, &conf);
}

static int set_up(uint16_t channel, uint16_t descriptors) {
    struct rte_dma_vchan_conf conf = {.direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = descriptors};

    return rte_dma_vchan_setup(dev, channel, &conf);
}

static void start(void) {
    CHECK(configure(2) == 0);
    CHECK(set_up(0, DESCRIPTORS) == 0);
    CHECK(rte_dma_start(dev) == 0);
}

/* Waits for so many operations of channel 0 and gives their statuses. */
static void collect(unsigned count, enum rte_dma_status_code *statuses) {
    time_t since = time(NULL);
    unsigned done = 0;

    while (done < count) {
        done += rte_dma_completed_status(dev, 0, count - done, NULL, statuses + done);
        patience(since);
    }
    CHECK(rte_dma_completed_status(dev, 0, 1, NULL, statuses) == 0 || count == 0);
}

static enum rte_dma_status_code only_status(void) {
    enum rte_dma_status_code status[2];

    collect(1, status);
    return status[0];
}

/* A socket whose other side closes at once is no service. */
static void *refuse(void *argument) {
    int listening = *(int *)argument, accepted;

    while ((accepted = accept(listening, NULL, NULL)) >= 0)
        close(accepted);
    return NULL;
}

static void wrong_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char arguments[256];
    pthread_t thread;
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s.wrong", path);
    unlink(address.sun_path);
    CHECK(listening >= 0 && bind(listening, (struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK(listen(listening, 4) == 0 && pthread_create(&thread, NULL, refuse, &listening) == 0);
    snprintf(arguments, sizeof(arguments), "socket=%s", address.sun_path);
    CHECK(probe(NAME, arguments) < 0);
    shutdown(listening, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listening);
    unlink(address.sun_path);
}

static void arguments(const char *path) {
    char text[256];

    CHECK(probe(NAME, "speed=11") == -EINVAL);
    CHECK(probe(NAME, "socket=") == -EINVAL);
    CHECK(probe(NAME, "socket") == -EINVAL);
    CHECK(probe(NAME, "socket=/a,socket=/b") == -EINVAL);
    scene("unknown, empty and repeated arguments are refused");
    snprintf(text, sizeof(text), "socket=%s.absent", path);
    CHECK(probe(NAME, text) == -ENOENT);
    CHECK(probe(NAME, "socket=/dev/null") < 0);
    wrong_socket(path);
    scene("a socket without a service is refused");
    CHECK(rte_dma_get_dev_id_by_name(NAME) < 0);
}

static int wait_for_end(void *is_over) {
    while (!__atomic_load_n((int *)is_over, __ATOMIC_ACQUIRE))
        usleep(1000);
    return 0;
}

/* DPDK's memory is not moved under an lcore that works. */
static void busy(const char *path) {
    unsigned lcore = rte_get_next_lcore(-1, 1, 0);
    int is_over = 0;
    char text[256];

    CHECK(lcore < RTE_MAX_LCORE); /* --lcores 0@0,1@0 */
    CHECK(rte_eal_remote_launch(wait_for_end, &is_over, lcore) == 0);
    snprintf(text, sizeof(text), "socket=%s", path);
    CHECK(probe(NAME, text) == -EBUSY);
    CHECK(probe(NAME, NULL) == 0);
    CHECK(rte_vdev_uninit(NAME) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    rte_eal_mp_wait_lcore();
    scene("memory is not moved while an lcore works");
}

static void limits(void) {
    struct rte_dma_info info;

    CHECK(rte_dma_info_get(dev, &info) == 0);
    CHECK(configure(info.max_vchans + 1) == -EINVAL);
    CHECK(configure(info.max_vchans) == 0);
    CHECK(set_up(info.max_vchans, DESCRIPTORS) == -EINVAL);
    CHECK(set_up(0, info.max_desc + 1) == -EINVAL);
    CHECK(set_up(0, info.min_desc - 1) == -EINVAL);
    CHECK(set_up(0, info.max_desc) == 0);
    CHECK(set_up(0, info.min_desc) == 0);
    /* Not a power of two. */
    CHECK(set_up(0, 3) == 0);
    CHECK(rte_dma_start(dev) == 0);
    CHECK(rte_dma_copy(dev, 1, at(source), at(destination), 8, 0) == -EINVAL);
    CHECK(rte_dma_submit(dev, 1) == -EINVAL);
    CHECK(rte_dma_burst_capacity(dev, 1) == 0);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 8, 0) == 0);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 8, 0) == 1);
    CHECK(rte_dma_burst_capacity(dev, 0) == 1);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 8, 0) == 2);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 8, 0) == -ENOSPC);
    CHECK(rte_dma_burst_capacity(dev, 0) == 0);
    CHECK(rte_dma_stop(dev) == 0);
    scene("channels and descriptors beyond the limits are refused");
}

static void not_registered(void) {
    enum rte_dma_status_code status[8];
    char *foreign = malloc(BYTES);

    CHECK(foreign);
    start();
    memset(source, 1, BYTES);
    memset(destination, 0, BYTES);
    CHECK(rte_dma_copy(dev, 0, at(foreign), at(destination), 64, 0) == 0);
    CHECK(rte_dma_completed_status(dev, 0, 8, NULL, status) == 0); /* it was not submitted */
    CHECK(rte_dma_copy(dev, 0, at(source), at(foreign), 64, 0) == 1);
    CHECK(rte_dma_copy(dev, 0, at(source), 0, 64, 0) == 2);
    CHECK(rte_dma_fill(dev, 0, 7, at(foreign), 64, 0) == 3);
    CHECK(rte_dma_copy(dev, 0, at(source), UINT64_MAX - 8, 64, 0) == 4);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), UINT32_MAX, 0) == 5);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 0, 0) == 6);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), 64, RTE_DMA_OP_FLAG_SUBMIT) == 7);
    collect(8, status);
    CHECK(status[0] == RTE_DMA_STATUS_INVALID_SRC_ADDR);
    for (int index = 1; index < 5; index++)
        CHECK(status[index] == RTE_DMA_STATUS_INVALID_DST_ADDR);
    CHECK(status[5] == RTE_DMA_STATUS_INVALID_SRC_ADDR);
    CHECK(status[6] == RTE_DMA_STATUS_INVALID_LENGTH);
    CHECK(status[7] == RTE_DMA_STATUS_SUCCESSFUL && memcmp(source, destination, 64) == 0 && destination[64] == 0);
    CHECK(rte_dma_stop(dev) == 0);
    free(foreign);
    scene("memory that is no frame fails its operation alone");
}

static void lists(void) {
    struct rte_dma_sge from[3] = {{at(source), 100}, {at(source + 200), 0}, {at(source + 1000), 28}};
    struct rte_dma_sge to[2] = {{at(destination), 28}, {at(destination + 500), 100}};
    struct rte_dma_info info;

    start();
    CHECK(rte_dma_info_get(dev, &info) == 0);
    for (int index = 0; index < BYTES; index++)
        source[index] = index * 7;
    memset(destination, 0, BYTES);
    CHECK(rte_dma_copy_sg(dev, 0, from, to, 3, 2, RTE_DMA_OP_FLAG_SUBMIT) == 0);
    CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL);
    CHECK(memcmp(destination, source, 28) == 0 && memcmp(destination + 500, source + 28, 72) == 0);
    CHECK(memcmp(destination + 572, source + 1000, 28) == 0 && destination[600] == 0);
    to[1].length = 99;
    CHECK(rte_dma_copy_sg(dev, 0, from, to, 3, 2, RTE_DMA_OP_FLAG_SUBMIT) == 1);
    CHECK(only_status() == RTE_DMA_STATUS_INVALID_LENGTH);
    to[1].addr = 8;
    CHECK(rte_dma_copy_sg(dev, 0, from, to, 3, 2, RTE_DMA_OP_FLAG_SUBMIT) == 2);
    CHECK(only_status() == RTE_DMA_STATUS_INVALID_DST_ADDR);
    CHECK(rte_dma_copy_sg(dev, 0, from, to, 0, 2, 0) == -EINVAL);
    CHECK(rte_dma_copy_sg(dev, 0, from, to, 3, info.max_sges + 1, 0) == -EINVAL);
    CHECK(rte_dma_stop(dev) == 0);
    scene("lists are copied, and refused if they do not fit together");
}

static void fills(void) {
    enum rte_dma_status_code status[PATTERNS];
    static const uint64_t values[] = {0, 0x4141414141414141, 0x1234123412341234, 0x8765432187654321, 0x0102030405060708};
    static const uint32_t lengths[] = {1, 2, 3, 4, 6, 8, 50, 89, BYTES - 8};
    uint64_t expected[BYTES / sizeof(uint64_t)];
    int index = 0;

    start();
    for (unsigned value = 0; value < RTE_DIM(values); value++) {
        for (unsigned length = 0; length < RTE_DIM(lengths); length++) {
            for (unsigned word = 0; word < RTE_DIM(expected); word++)
                expected[word] = values[value];
            memset(destination, 0x5a, BYTES);
            CHECK(rte_dma_fill(dev, 0, values[value], at(destination + 3), lengths[length], RTE_DMA_OP_FLAG_SUBMIT) ==
                  index++);
            CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL);
            CHECK(memcmp(destination + 3, expected, lengths[length]) == 0);
            CHECK(destination[2] == 0x5a && destination[3 + lengths[length]] == 0x5a);
        }
    }
    for (uint64_t value = 1; value <= PATTERNS; value++)
        CHECK(rte_dma_fill(dev, 0, value, at(destination), 16, 0) == index++);
    CHECK(rte_dma_fill(dev, 0, PATTERNS + 1, at(destination), 16, 0) == -ENOSPC);
    CHECK(rte_dma_submit(dev, 0) == 0);
    collect(PATTERNS, status);
    CHECK(rte_dma_fill(dev, 0, PATTERNS + 1, at(destination), 16, RTE_DMA_OP_FLAG_SUBMIT) == index);
    CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL && destination[0] == PATTERNS + 1 && destination[8] == PATTERNS + 1);
    CHECK(rte_dma_stop(dev) == 0);
    scene("fills of every width and length are right");
}

/* What rte_dma_dump prints has this line. */
static void dump(const char *line) {
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof(text) - 1, "w");

    CHECK(file && rte_dma_dump(dev, file) == 0 && fclose(file) == 0);
    CHECK(strstr(text, line));
}

static void order(void) {
    enum rte_dma_status_code status[3];
    struct rte_dma_stats stats;
    uint16_t last;
    bool has_error;

    start();
    CHECK(rte_dma_stats_reset(dev, RTE_DMA_ALL_VCHAN) == 0);
    for (int round = 0; round < 10; round++) {
        memset(source, round, BYTES);
        memset(large, round, LARGE_BYTES);
        /* Without fences the short ones would end before the long one, which the engine moves in parts. */
        CHECK(rte_dma_copy(dev, 0, at(large), at(large + LARGE_BYTES), LARGE_BYTES, 0) >= 0);
        CHECK(rte_dma_copy(dev, 0, at(large + 2 * LARGE_BYTES - BYTES), at(third), BYTES, RTE_DMA_OP_FLAG_FENCE) >= 0);
        CHECK(rte_dma_fill(dev, 0, 0, at(large + LARGE_BYTES), LARGE_BYTES,
                           RTE_DMA_OP_FLAG_FENCE | RTE_DMA_OP_FLAG_LLC) >= 0);
        CHECK(rte_dma_completed(dev, 0, 3, &last, &has_error) == 0 && !has_error);
        CHECK(last == (uint16_t)(3 * round - 1));
        CHECK(rte_dma_submit(dev, 0) == 0);
        collect(3, status);
        CHECK(memcmp(source, third, BYTES) == 0 && large[LARGE_BYTES] == 0 && large[2 * LARGE_BYTES - 1] == 0);
    }
    CHECK(rte_dma_stats_get(dev, RTE_DMA_ALL_VCHAN, &stats) == 0);
    CHECK(stats.submitted == 30 && stats.completed == 30 && stats.errors == 0);
    dump("channel 0: 64 descriptors, 0 used, 0 transfers under way\n");
    /* Enqueued and not submitted, then stopped: nothing of it is left. */
    memset(destination, 0, BYTES);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), BYTES, 0) == 30);
    CHECK(rte_dma_stop(dev) == 0);
    CHECK(destination[0] == 0);
    CHECK(rte_dma_start(dev) == 0);
    CHECK(rte_dma_burst_capacity(dev, 0) == DESCRIPTORS);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), BYTES, RTE_DMA_OP_FLAG_SUBMIT) == 0);
    CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL);
    CHECK(rte_dma_stop(dev) == 0);
    scene("fences hold, operations wait for their submission, and a restart begins anew");
}

/* The program's own memory, mapped in two halves: operations go over their border, until both are unmapped. */
static void two_frames(struct rte_device *device, char *memory, size_t length) {
    char *half = memory + length / 2;

    CHECK(rte_dev_dma_map(device, memory, at(memory), length / 2) == 0);
    CHECK(rte_dev_dma_map(device, memory, at(memory), length / 2) < 0);
    CHECK(rte_dev_dma_map(device, half, at(half), length / 2) == 0);
    start();
    CHECK(rte_dma_fill(dev, 0, 0x3333333333333333, at(memory), length, RTE_DMA_OP_FLAG_SUBMIT) == 0);
    CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL && memory[0] == 0x33 && memory[length - 1] == 0x33);
    for (int index = 0; index < BYTES; index++)
        source[index] = index * 11;
    CHECK(rte_dma_copy(dev, 0, at(source), at(half - 100), BYTES, RTE_DMA_OP_FLAG_SUBMIT) == 1);
    CHECK(only_status() == RTE_DMA_STATUS_SUCCESSFUL && memcmp(source, half - 100, BYTES) == 0);
    CHECK(rte_dev_dma_unmap(device, half, at(half), length / 2) == 0);
    CHECK(rte_dma_copy(dev, 0, at(source), at(half - 100), BYTES, RTE_DMA_OP_FLAG_SUBMIT) == 2);
    CHECK(only_status() == RTE_DMA_STATUS_INVALID_DST_ADDR && half[-101] == 0x33);
    CHECK(rte_dev_dma_unmap(device, memory, at(memory), length / 2) == 0);
}

static void external_memory(bool is_embedded) {
    struct rte_device *device = NULL;
    struct rte_dev_iterator iterator;
    size_t length = 1 << 21;
    int found = 0;
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    CHECK(rte_extmem_register(memory, length, NULL, 0, getpagesize()) == 0);
    RTE_DEV_FOREACH(device, "bus=vdev", &iterator) {
        if (strcmp(rte_dev_name(device), NAME) != 0)
            continue;
        found++;
        if (!is_embedded) {
            CHECK(rte_dev_dma_map(device, memory, at(memory), length) < 0);
            continue;
        }
        two_frames(device, memory, length);
        CHECK(rte_dma_fill(dev, 0, 0, at(memory), length, RTE_DMA_OP_FLAG_SUBMIT) == 3);
        CHECK(only_status() == RTE_DMA_STATUS_INVALID_DST_ADDR && memory[length - 1] == 0x33);
        CHECK(rte_dma_stop(dev) == 0);
        CHECK(rte_dev_dma_unmap(device, memory, at(memory), length) < 0);
    }
    CHECK(found == 1);
    CHECK(rte_extmem_unregister(memory, length) == 0);
    munmap(memory, length);
    scene(is_embedded ? "the program's own memory is mapped and unmapped" : "the program's own memory is refused");
}

static void on_signal(int number) { (void)number; }

/* From now on a signal comes at this interval, as from a profiler; none if it is 0. */
static void signals_every(suseconds_t microseconds) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};

    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Memory that DPDK takes and gives back while the device is there, also while signals come. Without huge pages there is no such memory. */
static void growing_memory(void) {
    size_t length = 96 << 20; /* more than EAL has at the start, with -m 64 */
    char *more;

    if (!rte_eal_has_hugepages())
        return;
    start();
    signals_every(2000);
    for (int round = 0; round < 3; round++) {
        more = rte_malloc(NULL, length, 0);
        CHECK(more);
        memset(source, round + 1, BYTES);
        CHECK(rte_dma_fill(dev, 0, 0, at(more), length, 0) >= 0);
        CHECK(rte_dma_copy(dev, 0, at(source), at(more + length - BYTES), BYTES, RTE_DMA_OP_FLAG_FENCE) >= 0);
        CHECK(rte_dma_submit(dev, 0) == 0);
        enum rte_dma_status_code status[2];
        collect(2, status);
        CHECK(status[0] == RTE_DMA_STATUS_SUCCESSFUL && status[1] == RTE_DMA_STATUS_SUCCESSFUL);
        CHECK(more[0] == 0 && memcmp(source, more + length - BYTES, BYTES) == 0);
        rte_free(more);
        CHECK(rte_dma_copy(dev, 0, at(source), at(more + length / 2), BYTES, RTE_DMA_OP_FLAG_SUBMIT) >= 0);
        CHECK(only_status() == RTE_DMA_STATUS_INVALID_DST_ADDR);
    }
    signals_every(0);
    CHECK(rte_dma_stop(dev) == 0);
    scene("memory comes and goes while the device is there");
}

/* The service stops while it has operations, and dies. */
static void lost_service(void) {
    enum rte_dma_status_code status[DESCRIPTORS];
    enum rte_dma_vchan_status state;
    struct rte_dma_stats stats;
    unsigned errors = 0;

    start();
    CHECK(rte_dma_stats_reset(dev, 0) == 0);
    CHECK(kill(service, SIGSTOP) == 0);
    for (int index = 0; index < DESCRIPTORS; index++) {
        if (index == DESCRIPTORS - 2)
            CHECK(rte_dma_submit(dev, 0) == 0);
        CHECK(rte_dma_copy(dev, 0, at(source), at(destination), BYTES, 0) == index);
    }
    CHECK(kill(service, SIGKILL) == 0);
    CHECK(waitpid(service, NULL, 0) == service);
    collect(DESCRIPTORS - 2, status);
    /* Two were enqueued before the loss, and are submitted after it. */
    CHECK(rte_dma_submit(dev, 0) == 0);
    collect(2, status + DESCRIPTORS - 2);
    for (int index = 0; index < DESCRIPTORS; index++)
        errors += status[index] != RTE_DMA_STATUS_SUCCESSFUL;
    CHECK(errors >= 2);
    CHECK(rte_dma_stats_get(dev, 0, &stats) == 0);
    CHECK(stats.submitted == DESCRIPTORS && stats.completed == DESCRIPTORS && stats.errors == errors);
    CHECK(rte_dma_vchan_status(dev, 0, &state) == 0 && state == RTE_DMA_VCHAN_HALTED_ERROR);
    CHECK(rte_dma_burst_capacity(dev, 0) == 0);
    CHECK(rte_dma_copy(dev, 0, at(source), at(destination), BYTES, RTE_DMA_OP_FLAG_SUBMIT) == -EIO);
    CHECK(rte_dma_completed_status(dev, 0, 1, NULL, status) == 0);
    CHECK(rte_dma_stop(dev) == 0);
    CHECK(rte_dma_start(dev) == -EIO);
    scene("a lost service ends each operation once, and nothing more is accepted");
}

static void requests(bool is_embedded) {
    CHECK((dev = rte_dma_get_dev_id_by_name(NAME)) >= 0);
    limits();
    not_registered();
    lists();
    fills();
    order();
    external_memory(is_embedded);
    growing_memory();
}

int main(int argc, char **argv) {
    char text[256];
    int used = rte_eal_init(argc, argv);

    setlinebuf(stdout);
    CHECK(used >= 0 && argc - used == 3);
    service_path = argv[used + 2];
    snprintf(text, sizeof(text), "socket=%s", service_path);
    source = rte_malloc(NULL, BYTES, 64);
    destination = rte_malloc(NULL, BYTES, 64);
    third = rte_malloc(NULL, BYTES, 64);
    large = rte_malloc(NULL, 2 * LARGE_BYTES, 64);
    CHECK(source && destination && third && large);
    arguments(service_path);

    CHECK(probe(NAME, NULL) == 0);
    CHECK(probe(OTHER, text) == -EINVAL);
    requests(true);
    CHECK(rte_vdev_uninit(NAME) == 0);

    start_service(argv[used + 1]);
    memset(source, 0x77, BYTES);
    busy(service_path);
    probe_service(NAME, text);
    CHECK(source[0] == 0x77 && source[BYTES - 1] == 0x77);
    scene("memory keeps its content when it becomes a frame");
    CHECK(probe(OTHER, NULL) == -EINVAL);
    CHECK(probe(OTHER, "socket=/other") == -EINVAL);
    CHECK(probe(OTHER, text) == 0);
    CHECK(rte_vdev_uninit(OTHER) == 0);
    scene("devices of a process share one service");
    requests(false);
    lost_service();
    CHECK(rte_vdev_uninit(NAME) == 0);
    unlink(service_path);
    rte_eal_cleanup();
    printf("all scenes passed\n");
    return 0;
}
