/* What reads, writes and long messages cost, by the ways that docs/libfabric.md lists.
 *
 *     costs MEMFERRY SOCKET [REPEATS]
 *
 * Prints a line for each way and length: the way, bytes, the median of the repeats in microseconds, the lowest and the highest. Measure
 * with a release build of MEMFERRY and of its library. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "peer.h"

#define CAPS (FI_MSG | FI_RMA)
#define MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define MOST_BYTES (4 << 20)
#define MOST_REPEATS 10001

static const size_t lengths[] = {64, 4096, 65536, 1 << 20, MOST_BYTES};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))
static unsigned repeats = 101;
/* Whether the owner's memory is moved into frames, and whether this side registers its own. */
static bool is_moved, is_registered;
static const char *way;

struct offer {
    uint64_t address;
    uint64_t key;
};

static double now_us(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;

    return difference > 0 ? 1 : difference < 0 ? -1 : 0;
}

static void print_times(const char *operation, size_t length, double *times) {
    qsort(times, repeats, sizeof(times[0]), by_size);
    printf("%s, %s\t%zu\t%.2f\t%.2f\t%.2f\n", operation, way, length, times[repeats / 2], times[0], times[repeats - 1]);
    fflush(stdout);
}

/* Memory whose pages are there. */
static void *memory_with_pages(size_t length) { return memset(memory_of(length), 1, length); }

static void owner(struct peer *peer) {
    char *memory = memory_with_pages(MOST_BYTES);
    struct fi_cq_tagged_entry entry;
    struct offer offer;
    struct fid_mr *mr;

    if (!is_moved)
        setenv("FI_MEMFERRY_MOVE", "0", 1);
    open_peer(peer, CAPS, MODES);
    double start = now_us();
    CHECK(fi_mr_reg(peer->domain, memory, MOST_BYTES, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL) == 0);
    double took = now_us() - start;
    printf("registration, %s\t%d\t%.2f\t%.2f\t%.2f\n", way, MOST_BYTES, took, took, took);
    fflush(stdout);
    offer = (struct offer){(uintptr_t)memory, fi_mr_key(mr)};
    tell(peer, &offer, sizeof(offer));
    for (size_t i = 0; i < LENGTHS * (repeats + 1); i++) {
        CHECK(fi_recv(peer->ep, memory, MOST_BYTES, NULL, peer->other, NULL) == 0);
        CHECK(next(peer, &entry) == 0);
    }
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static void user(struct peer *peer) {
    static double times[MOST_REPEATS + 1];
    char *memory = memory_with_pages(MOST_BYTES);
    struct fi_cq_tagged_entry entry;
    struct fid_mr *mr = NULL;
    struct offer offer;

    open_peer(peer, CAPS, MODES);
    if (is_registered)
        CHECK(fi_mr_reg(peer->domain, memory, MOST_BYTES, FI_SEND | FI_READ | FI_WRITE, 0, 0, 0, &mr, NULL) == 0);
    hear(peer, &offer, sizeof(offer));
    static const char *const operations[] = {"read", "write", "message, acknowledged"};
    for (int operation = 0; operation < 3; operation++) {
        for (size_t i = 0; i < LENGTHS; i++) {
            struct iovec iov = {memory, lengths[i]};
            struct fi_msg message = {&iov, NULL, 1, peer->other, NULL, 0};

            /* The first one opens the region, or makes a grant. */
            for (unsigned repeat = 0; repeat <= repeats; repeat++) {
                double start = now_us();

                if (operation == 0)
                    UNTIL_ROOM(peer, fi_read(peer->ep, memory, lengths[i], NULL, peer->other, offer.address, offer.key, NULL));
                else if (operation == 1)
                    UNTIL_ROOM(peer, fi_write(peer->ep, memory, lengths[i], NULL, peer->other, offer.address, offer.key, NULL));
                else
                    UNTIL_ROOM(peer, fi_sendmsg(peer->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE));
                CHECK(next(peer, &entry) == 0);
                if (repeat > 0)
                    times[repeat - 1] = now_us() - start;
            }
            print_times(operations[operation], lengths[i], times);
        }
    }
    meet(peer);
    if (mr)
        CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static void measure(const char *name, bool moved, bool registered) {
    way = name;
    is_moved = moved;
    is_registered = registered;
    play(name, user, owner, 0);
}

int main(int count, char **arguments) {
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: %s MEMFERRY SOCKET [REPEATS]\n", arguments[0]);
        return 2;
    }
    if (count == 4)
        repeats = (unsigned)atoi(arguments[3]);
    CHECK(repeats > 0 && repeats <= MOST_REPEATS);
    start_service(arguments[1], arguments[2]);
    measure("both sides registered", true, true);
    measure("only the owner's memory registered", true, false);
    measure("nothing moved, through the ring", false, false);
    stop_service();
    printf("all scenes passed\n");
    return 0;
}
