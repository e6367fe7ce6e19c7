/* DPDK's memory as frames: which range of which frame an address of this process is.
 *
 *     EAL's memory segments, events ──► memory.c ──► lent in place (service in this process)
 *     rte_dev_dma_map ─────────────────►         └─► moved into memfds, registered (service behind a socket)
 *
 * A process has one session, which all its devices share. SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_DPDK_MEMORY_H
#define MEMFERRY_DPDK_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <memferry.h>
#include <rte_log.h>

/* Ranges on one side of a transfer, at most. */
#define MEMORY_RANGES 1024

/* A lookup that needs more than MEMORY_RANGES ranges. */
#define MEMORY_TOO_MANY (-1)

extern int memferry_dma_log;

#define SAY(level, ...)                                                                                               \
    rte_log(RTE_LOG_##level, memferry_dma_log, "memferry: " RTE_FMT(RTE_FMT_HEAD(__VA_ARGS__, ) "\n",                  \
                                                                    RTE_FMT_TAIL(__VA_ARGS__, )))

/* Opens the session at the first call, later ones count. A null socket means the service in this process. Gives 0 or a negative
 * errno, after a message. */
int memory_open(const char *socket);

/* Ends the session with the last device. No transfer may be outstanding. */
void memory_close(void);

/* The session. */
mf_client memory_client(void);

/* Whether the service is in this process. */
int memory_is_embedded(void);

/* Between these two calls no frame that memory_find gave is freed. */
void memory_enter(void);
void memory_leave(void);

/* Finds the frames of `length` bytes at `address`. Gives how many of `ranges` it filled, 0 if some byte is in no frame,
 * MEMORY_TOO_MANY if more than `most` would be needed. `hint` is the caller's own, 0 at first. */
int memory_find(uint64_t address, uint64_t length, mf_range *ranges, int most, unsigned *hint);

/* Adds memory of the program, or takes it away: rte_dev_dma_map and rte_dev_dma_unmap. */
int memory_map(void *address, size_t length);
int memory_unmap(void *address, size_t length);

#endif
