/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 OR MIT) */
/*
 * Interface between a program and the memferry module: /dev/memferry.
 *
 *   open ─ MEMFERRY_REGISTER memory ─► region
 *        ─ MEMFERRY_SUBMIT transfers between regions ─► each ends with one record
 *        ─ poll, read records (or MEMFERRY_EVENTFD) ─ MEMFERRY_UNREGISTER ─ close
 *
 * A descriptor belongs to the process that opened it. Calls of other processes, also of a forked child, fail with EPERM.
 * All fields named reserved, and all flag bits not defined here, must be 0, else the call fails with EINVAL.
 */
#ifndef _UAPI_MEMFERRY_H
#define _UAPI_MEMFERRY_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Since 2, the CPU does not replace an engine in MEMFERRY_DMA_ONLY transfers, and pinned memory is charged to the user. */
#define MEMFERRY_VERSION	2

/* Limits on the segments of one MEMFERRY_LIST and on the transfers of one MEMFERRY_SUBMIT. */
#define MEMFERRY_MAX_SEGMENTS	2048
#define MEMFERRY_MAX_BATCH	256
/* Limit on the submitted transfers of one descriptor whose records were not read; at the limit EAGAIN. */
#define MEMFERRY_MAX_OUTSTANDING	1024
/* Limit on the bytes of one region and of one transfer. */
#define MEMFERRY_MAX_BYTES	(1ULL << 40)
/* Largest time limit of a transfer, in milliseconds. */
#define MEMFERRY_MAX_PATIENCE_MS	60000

/* The channels that the module took, and its settings. */
struct memferry_query {
	__u32 version;
	__u32 channels;		/* number of DMA engine channels; 0: the CPU moves all transfers */
	__u32 faulted_channels;	/* of these, out of use: their engine could not be stopped, or their device is gone */
	__u32 abilities;	/* MEMFERRY_CAN_* of any channel */
	__u32 alignment;	/* largest alignment that a channel requires, bytes; the CPU moves unaligned parts */
	__u32 policy;		/* MEMFERRY_SHARED, ... */
	__u64 threshold;	/* the CPU moves transfers shorter than this, bytes */
};

#define MEMFERRY_CAN_FILL	1	/* an engine can fill memory with one byte value */
#define MEMFERRY_CAN_PLANE	2	/* an engine supports pitches */
#define MEMFERRY_CAN_PAUSE	4	/* an engine can be halted during a transfer */

enum memferry_policy {
	MEMFERRY_SHARED,	/* each transfer takes the least loaded channel */
	MEMFERRY_EXCLUSIVE,	/* channel N serves CPU N only; a CPU without a channel copies by itself */
	MEMFERRY_PRIORITY,	/* some channels serve the high class; the others halt for a slice of every period */
};

#define MEMFERRY_READ	1	/* a transfer may read it */
#define MEMFERRY_WRITE	2	/* a transfer may write it */

/*
 * Registers memory of the caller: anonymous, or a shared mapping of a memfd, tmpfs or hugetlbfs file. It is pinned until
 * it is unregistered or the last copy of the descriptor is closed, also a forked child's. It counts against RLIMIT_MEMLOCK,
 * for all processes of the user together (VmPin of the process shows it), unless the caller has CAP_IPC_LOCK.
 * EFAULT: not mapped, or memory of a device. EACCES: the mapping does not allow the rights. EOPNOTSUPP: a mapping of
 * another kind of file. ENOMEM: over the limit. EOVERFLOW: the range wraps around.
 */
struct memferry_register {
	__u64 address;
	__u64 length;
	__u32 rights;		/* MEMFERRY_READ, MEMFERRY_WRITE */
	__u32 flags;
	__u32 region;		/* out */
	__u32 runs;		/* out: physically contiguous pieces; each takes at least one engine descriptor */
};

/* A place in a region. */
struct memferry_place {
	__u32 region;
	__u32 reserved;
	__u64 offset;
};

struct memferry_segment {
	struct memferry_place source;
	struct memferry_place destination;
	__u64 length;
};

enum memferry_operation {
	MEMFERRY_COPY,		/* copies length bytes; if both ranges overlap in one region, a memmove */
	MEMFERRY_FILL,		/* repeats the lowest pattern_bytes (1, 2 or 4) bytes of pattern over length bytes */
	MEMFERRY_LIST,		/* copies the segments at segments; in order if the CPU moves them */
	MEMFERRY_PLANE,		/* copies rows of length bytes that begin a pitch apart; destination rows do not overlap */
};

#define MEMFERRY_CPU_ONLY	1	/* do not use an engine */
/*
 * Use an engine or fail: ENODEV without a channel; EINVAL if the two sides overlap or have different alignments; ENOMEM if
 * the device can address too little of the memory. The CPU still moves parts that the engine cannot, and the record counts
 * them: unaligned ends, rows and segments shorter than the engine's alignment or a cache line, and parts of an unaligned
 * region whose bounce buffers have another alignment.
 */
#define MEMFERRY_DMA_ONLY	2

struct memferry_transfer {
	__u64 tag;		/* returned in the record */
	__u32 operation;
	__u32 flags;
	struct memferry_place source;
	struct memferry_place destination;
	__u64 length;
	__u32 patience_ms;	/* time limit from the submission, then -ETIMEDOUT; 0: the module parameter patience_ms */
	__u32 pattern;
	__u32 pattern_bytes;
	__u32 rows;
	__u64 source_pitch;
	__u64 destination_pitch;
	__u64 segments;		/* address of struct memferry_segment[segment_count] */
	__u32 segment_count;
	__u32 reserved;
};

/*
 * The first refused transfer ends the batch. accepted is the number of transfers before it; the call succeeds if that is
 * not 0. Reasons: ENOENT for an unknown or stale region, ERANGE outside of it, EACCES without the right, EINVAL.
 */
struct memferry_submit {
	__u64 transfers;	/* address of struct memferry_transfer[count] */
	__u32 count;
	__u32 accepted;		/* out */
};

#define MEMFERRY_BY_CPU	1
#define MEMFERRY_BY_DMA	2

/* The completion of a transfer. read() returns whole records only. Nothing accesses the memory any more. */
struct memferry_record {
	__u64 tag;
	__s32 status;		/* 0, -ECANCELED, -ETIMEDOUT, -EIO (the engine failed, or was removed), or one of those below */
	__u32 moved_by;		/* MEMFERRY_BY_* */
	__u64 bytes_done;	/* from the beginning, in the transfer's order; after a failure more may be written */
	__u64 bytes_by_dma;
	__s32 channel;		/* -1: none */
	__u32 reserved;
};
/*
 * -ETIMEDOUT: also of a transfer that still waits for its turn. If the engine cannot be stopped, the record follows when
 * its batch has ended. If a policy halts the channel, the record may be later by that time.
 *
 * -ENODEV: only with MEMFERRY_DMA_ONLY: the engine refused the rest, or it is gone, or hangs in another transfer and is out of
 * use.
 *
 * -ENOTRECOVERABLE: the engine did not end a batch within watchdog_ms, and its driver does not guarantee that it was
 * stopped. It may still access the memory: the regions stay pinned, and the channel is not used, until the engine goes on, which is
 * looked for at least 16 seconds, or the driver of a PCI device is unbound from it. Without a driver other devices may go on to
 * access memory: what they hang in when they lose it stays pinned for ever.
 *
 * Some drivers report no errors (zynqmp-dma, pl330). Status 0 then means only that the engine reported completion.
 */

#define MEMFERRY_NORMAL	0
#define MEMFERRY_HIGH	1	/* needs CAP_SYS_NICE */

#define MEMFERRY_QUERY		_IOR(0xb7, 0, struct memferry_query)
#define MEMFERRY_REGISTER	_IOWR(0xb7, 1, struct memferry_register)
/*
 * Cancels the transfers that use the region, waits for them, and unpins its pages. The argument is the region. If a signal
 * kills the caller meanwhile, the pages are unpinned later, as they are if an engine hangs in the region (-ENOTRECOVERABLE).
 */
#define MEMFERRY_UNREGISTER	_IO(0xb7, 2)
#define MEMFERRY_SUBMIT		_IOWR(0xb7, 3, struct memferry_submit)
/* Requests that all transfers with the tag at the given address end early. Returns their number. */
#define MEMFERRY_CANCEL		_IOW(0xb7, 4, __u64)
/* The argument is an eventfd to signal for each record, or -1 for none. */
#define MEMFERRY_EVENTFD	_IO(0xb7, 5)
/* The argument is MEMFERRY_NORMAL or MEMFERRY_HIGH. */
#define MEMFERRY_CLASS		_IO(0xb7, 6)

#endif
