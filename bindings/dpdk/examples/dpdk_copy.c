/* Copies a megabyte by a DMA device of DPDK while this lcore computes. Any dmadev will do; with memferry's driver:
 *
 *     cc dpdk_copy.c -DALLOW_EXPERIMENTAL_API $(pkg-config --cflags --libs libdpdk) -o dpdk_copy
 *     ./dpdk_copy -d librte_dma_memferry.so --no-huge -m 64 --vdev dma_memferry
 *     ./dpdk_copy -d librte_dma_memferry.so --no-huge -m 64 --vdev dma_memferry,socket=/run/memferry.sock */
#include <stdio.h>
#include <string.h>

#include <rte_debug.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <rte_pause.h>

#define BYTES (1 << 20)

/* Ends the program with a message when a call fails. */
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            rte_exit(1, "%s failed\n", #condition);                                                                   \
    } while (0)

int main(int argc, char **argv) {
    struct rte_dma_conf device = {.nb_vchans = 1};
    struct rte_dma_vchan_conf channel = {.direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = 64};
    enum rte_dma_status_code status;
    char *source, *destination;
    unsigned long sum = 0;
    int16_t dev;

    CHECK(rte_eal_init(argc, argv) >= 0);
    CHECK((dev = rte_dma_next_dev(0)) >= 0);
    CHECK(rte_dma_configure(dev, &device) == 0);
    CHECK(rte_dma_vchan_setup(dev, 0, &channel) == 0);
    CHECK(rte_dma_start(dev) == 0);

    /* The device reaches memory that DPDK allocates: rte_malloc, mbufs, memzones. */
    CHECK((source = rte_malloc(NULL, BYTES, 64)) && (destination = rte_zmalloc(NULL, BYTES, 64)));
    strcpy(source, "moved without this lcore");
    CHECK(rte_dma_copy(dev, 0, rte_malloc_virt2iova(source), rte_malloc_virt2iova(destination), BYTES,
                       RTE_DMA_OP_FLAG_SUBMIT) >= 0);
    while (rte_dma_completed_status(dev, 0, 1, NULL, &status) == 0) {
        sum++; /* compute meanwhile */
        rte_pause();
    }
    CHECK(status == RTE_DMA_STATUS_SUCCESSFUL);
    printf("%s: %d bytes, %s\n", destination, BYTES, memcmp(source, destination, BYTES) == 0 ? "all equal" : "WRONG");

    CHECK(rte_dma_stop(dev) == 0);
    CHECK(rte_dma_close(dev) == 0);
    rte_free(source);
    rte_free(destination);
    return rte_eal_cleanup();
}
