/* Copies by turns, for measure.py: each line of standard input is a turn, answered by a line.
 *
 *     DEVICE BYTES MILLISECONDS     ->     Gbit/s that the DMA device copied; with "memcpy" as the device, this lcore
 *
 * A turn copies pieces of one buffer of random bytes into another, in bursts of 32 with at most 1024 outstanding, and compares every
 * piece that was copied at its end. Its first tenth does not count: engines and caches wake up meanwhile. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_debug.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <rte_pause.h>
#include <rte_random.h>

#define AREA (16u << 20)
#define BURST 32
#define RING 1024

/* Ends the program with a message when a call fails. */
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            rte_exit(1, "%s failed\n", #condition);                                                                   \
    } while (0)

/* The two buffers, where DPDK's devices reach them, where the next piece is, and how much of them was passed to a copy. */
struct pieces {
    char *source, *destination;
    rte_iova_t from, to;
    uint32_t bytes, next, reached;
};

static uint32_t advance(struct pieces *pieces) {
    uint32_t at = pieces->next;

    pieces->next = at + 2 * pieces->bytes > AREA ? 0 : at + pieces->bytes;
    if (pieces->reached < at + pieces->bytes)
        pieces->reached = at + pieces->bytes;
    return at;
}

static void enqueue(int16_t dev, struct pieces *pieces) {
    uint32_t at = advance(pieces);

    CHECK(rte_dma_copy(dev, 0, pieces->from + at, pieces->to + at, pieces->bytes, 0) >= 0);
}

/* Gives the number of copies that have ended, waiting for `least` of them. */
static uint32_t completed(int16_t dev, uint32_t least) {
    uint32_t ended = 0;
    uint16_t index;
    bool failed = false;

    do {
        uint16_t some = rte_dma_completed(dev, 0, BURST, &index, &failed);
        CHECK(!failed);
        ended += some;
        if (!some)
            rte_pause();
    } while (ended < least);
    return ended;
}

/* Keeps the device supplied until the cycle counter is at `end`. Gives the number of copies that ended meanwhile. */
static uint64_t by_device(int16_t dev, struct pieces *pieces, uint32_t *outstanding, uint64_t end) {
    uint64_t ended = 0;
    uint32_t some;

    while (rte_get_timer_cycles() < end) {
        while (*outstanding + BURST < RING) {
            for (int piece = 0; piece < BURST; piece++)
                enqueue(dev, pieces);
            CHECK(rte_dma_submit(dev, 0) == 0);
            *outstanding += BURST;
        }
        some = completed(dev, 0);
        ended += some;
        *outstanding -= some;
    }
    return ended;
}

static uint64_t by_lcore(struct pieces *pieces, uint64_t end) {
    uint64_t ended = 0;

    while (rte_get_timer_cycles() < end)
        for (int piece = 0; piece < BURST; piece++, ended++) {
            uint32_t at = advance(pieces);
            memcpy(pieces->destination + at, pieces->source + at, pieces->bytes);
        }
    return ended;
}

/* Copies by the device, or by this lcore without one. */
static uint64_t by_either(int16_t dev, struct pieces *pieces, uint32_t *outstanding, uint64_t end) {
    return dev < 0 ? by_lcore(pieces, end) : by_device(dev, pieces, outstanding, end);
}

/* One turn. Gives its Gbit/s. */
static double turn(int16_t dev, struct pieces *pieces, uint64_t milliseconds) {
    uint64_t cycles = rte_get_timer_hz() * milliseconds / 1000, start, ended;
    uint32_t outstanding = 0;
    double seconds;

    memset(pieces->destination, 0, AREA);
    pieces->next = pieces->reached = 0;
    if (dev >= 0)
        CHECK(rte_dma_start(dev) == 0);
    by_either(dev, pieces, &outstanding, rte_get_timer_cycles() + cycles / 10);
    start = rte_get_timer_cycles();
    ended = by_either(dev, pieces, &outstanding, start + cycles);
    seconds = (double)(rte_get_timer_cycles() - start) / (double)rte_get_timer_hz();
    if (outstanding)
        completed(dev, outstanding);
    if (dev >= 0)
        CHECK(rte_dma_stop(dev) == 0);
    CHECK(ended > 0);
    CHECK(memcmp(pieces->destination, pieces->source, pieces->reached) == 0);
    return (double)ended * pieces->bytes * 8 / seconds / 1e9;
}

static void set_up(int16_t dev) {
    struct rte_dma_conf device = {.nb_vchans = 1};
    struct rte_dma_vchan_conf channel = {.direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = RING};

    CHECK(rte_dma_configure(dev, &device) == 0);
    CHECK(rte_dma_vchan_setup(dev, 0, &channel) == 0);
}

int main(int argc, char **argv) {
    struct pieces pieces = {0};
    uint64_t milliseconds;
    char name[64];
    int16_t dev;

    CHECK(rte_eal_init(argc, argv) >= 0);
    CHECK((pieces.source = rte_malloc(NULL, AREA, 4096)) && (pieces.destination = rte_malloc(NULL, AREA, 4096)));
    pieces.from = rte_malloc_virt2iova(pieces.source);
    pieces.to = rte_malloc_virt2iova(pieces.destination);
    for (size_t at = 0; at < AREA; at += 8)
        *(uint64_t *)(pieces.source + at) = rte_rand();
    RTE_DMA_FOREACH_DEV(dev)
        set_up(dev);
    while (scanf("%63s %" SCNu32 " %" SCNu64, name, &pieces.bytes, &milliseconds) == 3) {
        bool is_lcore = strcmp(name, "memcpy") == 0;
        CHECK(pieces.bytes > 0 && pieces.bytes <= AREA && milliseconds > 0 && milliseconds <= 60000);
        dev = is_lcore ? -1 : (int16_t)rte_dma_get_dev_id_by_name(name);
        CHECK(is_lcore || dev >= 0);
        printf("%.3f\n", turn(dev, &pieces, milliseconds));
        fflush(stdout);
    }
    RTE_DMA_FOREACH_DEV(dev)
        CHECK(rte_dma_close(dev) == 0);
    return rte_eal_cleanup();
}
