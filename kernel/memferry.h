/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Types and functions shared by the parts of the module.
 *
 *   client.c ─ ioctl ─► submit.c ─ checks ─► mf_transfer ─► policy.c chooses a channel, or the CPU
 *                          │ region.c: pinned pages, mapped for that channel's device
 *                          ▼
 *   channel.c: one transfer at a time, batch by batch ─ walk.c cuts pieces ─► dmaengine
 *                          │ unaligned ends, and pieces that no engine takes: cpu.c
 *                          ▼
 *   the transfer's ended(): client.c queues a record, usercopy.c wakes the caller
 *
 * Only a channel's work item runs its engine, so the channel's state needs a lock only where callbacks, timers and
 * submitters access it too. It is a work item because some drivers sleep while they prepare a descriptor.
 */
#ifndef MEMFERRY_H
#define MEMFERRY_H

#include <linux/completion.h>
#include <linux/dma-direction.h>
#include <linux/dmaengine.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
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
/* Descriptors and approximate bytes of one batch. Cancels take effect between batches. */
#define MF_BATCH_PIECES	16
#define MF_BATCH_BYTES	(1UL << 20)
/* Pieces walked, the CPU's among them, before a channel checks for cancels and deadlines. */
#define MF_LOOKED_PIECES	4096
/* Limit on the bytes of one engine descriptor. */
#define MF_PIECE_BYTES	(256UL << 10)

struct mf_channel;

/* ---- region.c: memory that transfers may access ---- */

/* Bytes of a region that are contiguous for a device; end is the offset of the first byte after them. */
struct mf_run {
	u64 end;
	dma_addr_t address;
};

/* A region as one device sees it. */
struct mf_map {
	struct list_head node;
	struct list_head of_all;
	struct device *device;		/* NULL: it is gone, and nothing is mapped any more */
	struct sg_table table;
	enum dma_data_direction direction;
	unsigned int count;
	struct mf_run *runs;
	unsigned long bounced;		/* pages that the device cannot address */
};

struct mf_region {
	struct kref references;
	u32 rights;
	bool dying;			/* unregistered; under its client's lock */
	u64 length;
	unsigned int first;		/* offset of the region in its first page */
	unsigned long page_count;
	struct page **pages;
	struct mm_struct *mm;		/* owner of the pinned pages; NULL: kernel pages, which are not pinned */
	const struct cred *payer;	/* its user's locked_vm is charged; NULL: not charged (CAP_IPC_LOCK) */
	struct mutex lock;		/* protects maps */
	struct list_head maps;
	atomic_t users;			/* transfers that have not ended */
	atomic_t quarantines;		/* engines that could not be stopped and may still access it */
	wait_queue_head_t unused;
	struct completion *freed;	/* completed when the pages are unpinned; may be NULL */
	struct work_struct free;
};

struct mf_region *mf_region_of_user(unsigned long address, u64 length, u32 rights);
struct mf_region *mf_region_of_pages(struct page **pages, unsigned long count, unsigned int first, u64 length,
				     u32 rights);
void mf_region_put(struct mf_region *region);
void mf_region_put_now(struct mf_region *region);
struct mf_map *mf_region_map(struct mf_region *region, const struct mf_channel *channel);
void mf_regions_unmap(const struct device *device, bool silent);
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

/* The queued transfers of one client in one channel. Protected by the channel's lock. */
struct mf_line {
	struct list_head node;		/* in the channel's list of lines, served by turns; unlinked while empty */
	struct list_head transfers;
};

/* A position in a transfer. */
struct mf_cursor {
	unsigned int segment;
	u32 row;
	u64 offset;
	u64 done;			/* bytes of the transfer before this position */
};

struct mf_transfer {
	struct list_head node;		/* in a line of a channel; later in its client's list of ended transfers */
	struct rb_node by_deadline;	/* in the channel's tree of waiting transfers while it is in a line */
	struct list_head of_client;
	struct mf_client *client;	/* NULL: a copy for the kernel (usercopy.c) */
	struct mf_channel *channel;	/* NULL: the CPU moves all of it */
	void (*ended)(struct mf_transfer *transfer);
	struct completion *waiter;
	u64 tag;
	u32 operation;
	u32 flags;
	unsigned long deadline;		/* in jiffies */
	u32 rows;
	u64 source_pitch;
	u64 destination_pitch;
	u8 pattern[4];			/* repeated to four bytes */
	u32 pattern_bytes;
	u64 total;
	struct mf_cursor cursor;	/* end of what was handed to the engine */
	u64 landed;			/* bytes of completed batches */
	u64 by_dma;
	u64 by_cpu;
	u64 cpu_from;			/* the engine refused the bytes from here on */
	bool cancelled;
	bool urgent;			/* its client is closing: wait neither for the engine nor for the CPU */
	bool quarantined;		/* its regions keep a reference until the engine is known to have stopped */
	bool cpu_parts;
	bool is_kernels;		/* uses kernel memory: wait for the engine without a time limit */
	int status;
	struct work_struct work;	/* moves the CPU's share */
	unsigned int count;
	struct mf_segment segments[];
};

/* ---- walk.c: cuts a transfer into pieces that an engine or the CPU moves in one step ---- */

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

/* ---- fence.c: what shows that an engine is done with a batch ---- */

bool mf_fence_send(struct mf_channel *channel, bool first);
bool mf_fence_may_follow(const struct mf_channel *channel);
void mf_fences_end(struct mf_channel *channel);
void mf_fences_free(struct mf_channel *channel);

/* ---- channel.c: the engines ---- */

enum mf_channel_state {
	MF_IDLE,
	MF_FLYING,			/* the engine holds descriptors */
	MF_LANDED,			/* between batches */
	MF_FAULTED,			/* out of use: its engine hangs, or its device is gone */
};

struct mf_flight {
	struct mf_channel *channel;
	unsigned int batch;
	struct mf_piece piece;
};

struct mf_channel {
	unsigned int number;
	char name[24];
	char driver[32];
	struct dma_chan *chan;		/* not to be used once the device is leaving */
	struct device *device;		/* that accesses memory for it */
	struct device *owner;		/* that the driver is bound to */
	struct device *self;		/* the channel's own, in the class of dmaengine */
	struct notifier_block unbound;
	bool outlives;			/* the driver keeps it until it is released, even without a device */
	bool leaves_alone;		/* the driver frees it whether it was released or not */
	unsigned int abilities;		/* MEMFERRY_CAN_* */
	unsigned int alignment;		/* required of addresses and lengths, in bytes; a power of two */
	unsigned int line;		/* destination alignment that shares no cache line with the CPU; a power of two */
	bool can_stop;			/* dmaengine_terminate_sync() really ends a transfer */
	spinlock_t lock;		/* protects the fields below, up to work */
	struct list_head lines;		/* lines that have transfers; the first is served next */
	struct mf_line kernels;		/* transfers without a client */
	struct rb_root_cached waiting;	/* transfers in lines, earliest deadline first */
	unsigned int load;		/* number of queued and current transfers */
	struct mf_transfer *current_transfer;
	enum mf_channel_state state;
	bool stuck;			/* the current transfer uses kernel memory and hangs: queue nothing behind it */
	bool leaving;			/* the driver is letting go of the device: do not call it any more */
	bool silenced;			/* and when it has, the device accesses nothing */
	bool lost;			/* it left with an engine that may go on: the channel is kept for ever */
	bool gone;			/* the channel accesses nothing, was given back, and is faulted for good */
	unsigned int batch;		/* number of the present batch; callbacks of earlier ones are ignored */
	unsigned int flying;		/* descriptors that the engine holds */
	struct list_head fences_sent;	/* fences that the engine holds, or that its driver forgot */
	bool passed;			/* one has passed, so that the engine is done with the batch */
	unsigned int fenced_batch;
	unsigned int fences;		/* tried behind that batch */
	int error;
	bool gated;			/* the policy allows no further batch */
	unsigned long gated_since;
	struct work_struct work;	/* only the work item accesses the fields below */
	struct timer_list timer;
	bool served;			/* the current transfer has had a batch in its turn */
	bool paused;			/* the engine was halted in the batch */
	unsigned long paused_since;	/* in jiffies */
	unsigned long watchdog;		/* time, in jiffies, from which the batch counts as hanging */
	struct mf_region **kept;	/* what a faulted engine may still access */
	unsigned int kept_count;
	unsigned long fence_due;	/* time, in jiffies, before which no further fence is tried */
	u8 *fence;			/* bytes that a fence copies within */
	dma_addr_t fence_address;
	struct mf_flight flights[MF_BATCH_PIECES];
	unsigned int flights_count;
	struct dma_interleaved_template *plane;
	struct page *pattern;
	unsigned int pattern_order;
	dma_addr_t pattern_address;
	/* Counters shown by debugfs. */
	u64 transfers;
	u64 bytes;
	u64 timeouts;
	u64 errors;
	u64 gates;
};

void mf_channel_init(struct mf_channel *channel);
void mf_channel_depart(struct mf_channel *channel);
bool mf_channel_falls_silent(struct mf_channel *channel);
void mf_channel_lose(struct mf_channel *channel);
/* Work queues of the channels and of copies by the CPU. */
extern struct workqueue_struct *mf_works;
extern struct workqueue_struct *mf_copies;

void mf_line_init(struct mf_line *line);
bool mf_channel_submit(struct mf_channel *channel, struct mf_transfer *transfer);
void mf_channel_cancel(struct mf_channel *channel, struct mf_transfer *transfer);
void mf_channel_gate(struct mf_channel *channel, bool closed);
unsigned int mf_channel_can(const struct mf_channel *channel);
void mf_transfer_end(struct mf_transfer *transfer);

/* ---- device.c: what has the channels ---- */

extern struct mf_channel *mf_channels[MF_MAX_CHANNELS];
extern unsigned int mf_channel_count;

int mf_channels_take(unsigned int limit, const char *driver);
void mf_channels_release(void);

/* ---- submit.c ---- */

struct mf_client;
int mf_submit_one(struct mf_client *client, const struct memferry_transfer *request);
struct mf_transfer *mf_transfer_new(unsigned int count);
void mf_transfer_free(struct mf_transfer *transfer);
int mf_transfer_place(struct mf_transfer *transfer, u32 class);
void mf_transfer_start(struct mf_transfer *transfer);

/* ---- client.c: /dev/memferry ---- */

struct mf_client {
	struct mm_struct *mm;		/* of the process that opened the device */
	pid_t pid;
	char name[TASK_COMM_LEN];
	u32 class;
	struct list_head of_all;
	struct mutex control;		/* serializes register, unregister and submit */
	struct xarray regions;
	u32 next_region;
	struct mutex reading;
	spinlock_t lock;		/* protects the fields below */
	struct list_head running;
	struct list_head ended;
	unsigned int outstanding;	/* transfers that run, or whose record was not read */
	unsigned int running_count;
	struct eventfd_ctx *eventfd;
	u64 transfers;
	u64 by_dma;
	u64 by_cpu;
	u64 pinned_pages;
	wait_queue_head_t wait;
	struct mf_line lines[];		/* one for each channel */
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
