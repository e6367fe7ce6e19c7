/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the parts of the module know of each other.
 *
 *   client.c ─ ioctl ─► submit.c ─ checks ─► mf_transfer ─► policy.c chooses a channel, or the CPU
 *                          │ region.c: pinned pages, mapped for that channel's device
 *                          ▼
 *   channel.c: one transfer at a time, batch by batch ─ walk.c cuts pieces ─► dmaengine
 *                          │ unaligned ends, and what no channel takes: cpu.c
 *                          ▼
 *   the transfer's ended(): client.c queues a record, usercopy.c wakes who waits
 *
 * A channel is worked by its own work item only, so that its state needs no lock but for what callbacks, timers and
 * submitters tell it. Some drivers sleep where they prepare a descriptor; the work item may.
 */
#ifndef MEMFERRY_H
#define MEMFERRY_H

#include <linux/completion.h>
#include <linux/dma-direction.h>
#include <linux/dmaengine.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "compat.h"
#include "include/uapi/memferry.h"

#undef pr_fmt
#define pr_fmt(format) "memferry: " format

#define MF_MAX_CHANNELS	64
/* Descriptors, and about how many bytes, an engine holds at a time: a cancel is honoured between batches. */
#define MF_BATCH_PIECES	16
#define MF_BATCH_BYTES	(1UL << 20)
/* Pieces that are looked at, the CPU's among them, before a channel looks up. */
#define MF_LOOKED_PIECES	4096
/* One engine descriptor moves no more. */
#define MF_PIECE_BYTES	(256UL << 10)

/* ---- region.c: memory that transfers may touch ---- */

/* Bytes of a region that are one row of addresses for a device; end is the offset of the first byte after them. */
struct mf_run {
	u64 end;
	dma_addr_t address;
};

/* A region as one device sees it. */
struct mf_map {
	struct list_head node;
	struct device *device;
	struct sg_table table;
	enum dma_data_direction direction;
	unsigned int count;
	struct mf_run *runs;
	unsigned long bounced;		/* pages that the device does not reach */
};

struct mf_region {
	struct kref references;
	u32 rights;
	bool dying;			/* unregistered; under its client's lock */
	u64 length;
	unsigned int first;		/* where the region begins in its first page */
	unsigned long page_count;
	struct page **pages;
	struct mm_struct *mm;		/* whose pages are pinned; NULL: the kernel's, which are not */
	const struct cred *payer;	/* whose user pays for them; NULL: nobody has to */
	struct mutex lock;		/* of maps */
	struct list_head maps;
	atomic_t users;			/* transfers that have not ended */
	bool quarantined;		/* an engine may be at it for good */
	wait_queue_head_t unused;
	struct completion *freed;	/* of who waits until the pages are let go of */
	struct work_struct free;
};

struct mf_region *mf_region_of_user(unsigned long address, u64 length, u32 rights);
struct mf_region *mf_region_of_pages(struct page **pages, unsigned long count, unsigned int first, u64 length,
				     u32 rights);
void mf_region_put(struct mf_region *region);
void mf_region_put_now(struct mf_region *region);
struct mf_map *mf_region_map(struct mf_region *region, struct device *device);
unsigned int mf_region_runs(struct mf_region *region);
const struct mf_run *mf_map_find(const struct mf_map *map, u64 offset, u64 *begin);

/* ---- transfers ---- */

struct mf_segment {
	struct mf_region *source;	/* NULL: the pattern */
	struct mf_region *destination;
	struct mf_map *source_map;	/* for the channel's device; NULL without a channel */
	struct mf_map *destination_map;
	u64 source_offset;
	u64 destination_offset;
	u64 length;
};

/* What one client has in the queue of a channel, under the channel's lock. */
struct mf_line {
	struct list_head node;		/* among the lines that are served by turns; in no list when empty */
	struct list_head transfers;
};

/* How far into a transfer. */
struct mf_cursor {
	unsigned int segment;
	u32 row;
	u64 offset;
	u64 done;			/* bytes before it, in all */
};

struct mf_transfer {
	struct list_head node;		/* in a line of a channel; then among the ended ones of its client */
	struct rb_node by_deadline;	/* among all that wait in the channel, for as long as it is in a line */
	struct list_head of_client;
	struct mf_client *client;	/* NULL: the kernel's own */
	struct mf_channel *channel;	/* NULL: all by the CPU */
	void (*ended)(struct mf_transfer *transfer);
	struct completion *waiter;
	u64 tag;
	u32 operation;
	u32 flags;
	unsigned long deadline;		/* jiffies; from its submission on */
	u32 rows;
	u64 source_pitch;
	u64 destination_pitch;
	u8 pattern[4];			/* repeated to four bytes */
	u32 pattern_bytes;
	u64 total;
	struct mf_cursor cursor;	/* what was handed to the engine */
	u64 landed;			/* bytes of whole batches that the engine is done with */
	u64 by_dma;
	u64 by_cpu;
	u64 cpu_from;			/* from this byte on the engine would not take it */
	bool cancelled;
	bool urgent;			/* its client is gone: do not wait for the engine, nor for the CPU */
	bool quarantined;
	bool cpu_parts;
	bool is_kernels;		/* memory of the kernel takes part: an engine at it is waited for, however long */
	int status;
	struct work_struct work;	/* the CPU's share */
	unsigned int count;
	struct mf_segment segments[];
};

/* ---- walk.c: from a transfer to pieces that an engine or the CPU moves at once ---- */

struct mf_piece {
	const struct mf_segment *segment;
	u64 source_offset;
	u64 destination_offset;
	size_t length;			/* of one row */
	u32 rows;
	bool by_cpu;
	dma_addr_t source;
	dma_addr_t destination;
};

bool mf_is_memset(const struct mf_transfer *transfer);
bool mf_is_downward(const struct mf_transfer *transfer, const struct mf_segment *segment);
bool mf_walk(const struct mf_transfer *transfer, struct mf_cursor *cursor, struct mf_piece *piece);

/* ---- cpu.c ---- */

void mf_cpu_work(struct work_struct *work);
void mf_cpu_perform(struct mf_transfer *transfer);

/* ---- channel.c: the engines ---- */

enum mf_channel_state {
	MF_IDLE,
	MF_FLYING,			/* the engine holds descriptors */
	MF_LANDED,			/* between batches */
	MF_FAULTED,
};

struct mf_flight {
	struct mf_channel *channel;
	struct mf_piece piece;
};

struct mf_channel {
	unsigned int number;
	struct dma_chan *chan;
	struct device *device;
	unsigned int alignment;		/* of addresses and lengths, for the engine; a power of two */
	unsigned int line;		/* of destinations, so that no cache line is shared with the CPU; a power of two */
	bool can_stop;			/* a terminated transfer has really ended */
	spinlock_t lock;		/* of what follows, up to work */
	struct list_head lines;		/* those that have transfers, the next one's first */
	struct mf_line kernels;		/* of transfers without a client */
	struct rb_root_cached waiting;	/* what is in lines, the earliest deadline first */
	unsigned int load;		/* queued and current */
	struct mf_transfer *current_transfer;
	enum mf_channel_state state;
	bool stuck;			/* the current transfer is the kernel's, and hangs: nothing is queued behind it */
	unsigned int flying;
	int error;
	bool gated;			/* by the policy: no further batch */
	unsigned long gated_since;
	struct work_struct work;	/* everything below belongs to it */
	struct timer_list timer;
	bool served;			/* the current transfer has had a batch in its turn */
	bool paused;			/* the engine was halted in the batch */
	unsigned long paused_since;	/* jiffies */
	unsigned long watchdog;		/* when the batch is taken to hang, jiffies */
	struct mf_flight flights[MF_BATCH_PIECES];
	unsigned int flights_count;
	struct dma_interleaved_template *plane;
	struct page *pattern;
	unsigned int pattern_order;
	dma_addr_t pattern_address;
	/* Told by debugfs. */
	u64 transfers;
	u64 bytes;
	u64 timeouts;
	u64 errors;
	u64 gates;
};

extern struct mf_channel *mf_channels[MF_MAX_CHANNELS];
extern unsigned int mf_channel_count;
/* For channels, and for what the CPU copies. */
extern struct workqueue_struct *mf_works;
extern struct workqueue_struct *mf_copies;

int mf_channels_take(unsigned int limit, const char *driver);
void mf_channels_release(void);
void mf_line_init(struct mf_line *line);
bool mf_channel_submit(struct mf_channel *channel, struct mf_transfer *transfer);
void mf_channel_cancel(struct mf_channel *channel, struct mf_transfer *transfer);
void mf_channel_gate(struct mf_channel *channel, bool closed);
unsigned int mf_channel_can(const struct mf_channel *channel);
void mf_transfer_end(struct mf_transfer *transfer);

/* ---- submit.c ---- */

struct mf_client;
int mf_submit_one(struct mf_client *client, const struct memferry_transfer *request);
struct mf_transfer *mf_transfer_new(unsigned int count);
void mf_transfer_free(struct mf_transfer *transfer);
int mf_transfer_place(struct mf_transfer *transfer, u32 class);
void mf_transfer_start(struct mf_transfer *transfer);

/* ---- client.c: /dev/memferry ---- */

struct mf_client {
	struct mm_struct *mm;		/* of who opened it */
	pid_t pid;
	char name[TASK_COMM_LEN];
	u32 class;
	struct list_head of_all;
	struct mutex control;		/* one register, unregister or submit at a time */
	struct xarray regions;
	u32 next_region;
	struct mutex reading;
	spinlock_t lock;		/* of what follows */
	struct list_head running;
	struct list_head ended;
	unsigned int outstanding;	/* running, and ended but not read */
	unsigned int running_count;
	struct eventfd_ctx *eventfd;
	u64 transfers;
	u64 by_dma;
	u64 by_cpu;
	u64 pinned_pages;
	wait_queue_head_t wait;
	struct mf_line lines[];		/* of each channel */
};

extern struct list_head mf_clients;
extern struct mutex mf_clients_lock;

int mf_device_register(void);
void mf_device_unregister(void);
struct mf_region *mf_client_region(struct mf_client *client, u32 handle);
void mf_client_ended(struct mf_transfer *transfer);

/* ---- policy.c ---- */

extern const struct attribute_group *mf_policy_groups[];
extern unsigned long mf_threshold;
extern unsigned int mf_patience_ms;
extern unsigned int mf_watchdog_ms;

struct mf_channel *mf_policy_choose(u32 class);
u32 mf_policy_current(void);
void mf_policy_start(void);
void mf_policy_stop(void);

/* ---- stats.c: debugfs ---- */

void mf_stats_start(void);
void mf_stats_stop(void);

#endif
