/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 OR MIT) */
/*
 * What a program and the memferry module say to each other over /dev/memferry.
 *
 *   open ─ MEMFERRY_REGISTER memory ─► region
 *        ─ MEMFERRY_SUBMIT transfers between regions ─► each ends with one record
 *        ─ poll, read records (or MEMFERRY_EVENTFD) ─ MEMFERRY_UNREGISTER ─ close
 *
 * A descriptor belongs to the process that opened it: calls of others, a forked child's too, end with EPERM. All fields
 * called reserved, and all bits of flags that are not named here, have to be 0, else EINVAL.
 */
#ifndef _UAPI_MEMFERRY_H
#define _UAPI_MEMFERRY_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* 2: who insists on an engine is not served by the CPU instead; pinned memory counts for the user. */
#define MEMFERRY_VERSION	2

/* Segments of one MEMFERRY_LIST, and transfers of one MEMFERRY_SUBMIT, at most. */
#define MEMFERRY_MAX_SEGMENTS	2048
#define MEMFERRY_MAX_BATCH	256
/* Transfers of one descriptor that were submitted and whose records were not read, at most; then EAGAIN. */
#define MEMFERRY_MAX_OUTSTANDING	1024
/* Bytes of one region, and of one transfer, at most. */
#define MEMFERRY_MAX_BYTES	(1ULL << 40)
/* Milliseconds that a transfer may be given at most. */
#define MEMFERRY_MAX_PATIENCE_MS	60000

/* What was found when the module was loaded. */
struct memferry_query {
	__u32 version;
	__u32 channels;		/* of DMA engines; 0: all is moved by the CPU */
	__u32 faulted_channels;	/* of them, could not be stopped and are not used any more */
	__u32 abilities;	/* MEMFERRY_CAN_*, of any channel */
	__u32 alignment;	/* the coarsest any channel asks for, bytes; what does not fit is moved by the CPU */
	__u32 policy;		/* MEMFERRY_SHARED, ... */
	__u64 threshold;	/* shorter transfers are moved by the CPU, bytes */
};

#define MEMFERRY_CAN_FILL	1	/* an engine that writes one byte all over */
#define MEMFERRY_CAN_PLANE	2	/* an engine that takes pitches */
#define MEMFERRY_CAN_PAUSE	4	/* an engine that can be halted in a transfer */

enum memferry_policy {
	MEMFERRY_SHARED,	/* every channel is everybody's */
	MEMFERRY_EXCLUSIVE,	/* each CPU has one channel; those without one copy */
	MEMFERRY_PRIORITY,	/* some channels are for the high class; the others halt for a slice of every period */
};

#define MEMFERRY_READ	1	/* a transfer may read it */
#define MEMFERRY_WRITE	2	/* a transfer may write it */

/*
 * Memory of the caller: anonymous, or shared of a memfd, tmpfs or hugetlbfs file. It is pinned until it is unregistered or
 * the last copy of the descriptor is closed, a forked child's too, and counts against RLIMIT_MEMLOCK of all processes of the
 * user together (VmPin of the process shows it), unless CAP_IPC_LOCK lifts that.
 * EFAULT: not mapped, or a device's; EACCES: not mapped so that the rights can be given; EOPNOTSUPP: another file's;
 * ENOMEM: over the limit; EOVERFLOW: the range wraps around.
 */
struct memferry_register {
	__u64 address;
	__u64 length;
	__u32 rights;
	__u32 flags;
	__u32 region;		/* answered */
	__u32 runs;		/* answered: pieces that lie in one row, for who wonders why a transfer takes many */
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
	MEMFERRY_COPY,		/* length bytes; overlap within one region is a memmove */
	MEMFERRY_FILL,		/* the first pattern_bytes (1, 2 or 4) of pattern, over length bytes */
	MEMFERRY_LIST,		/* the segments at segments, one after the other where the CPU moves them */
	MEMFERRY_PLANE,		/* 1 row or more of length bytes, their starts a pitch apart; the destination's do not overlap */
};

#define MEMFERRY_CPU_ONLY	1	/* no engine, please */
/*
 * ENODEV without a channel, EINVAL where both sides are aligned differently for it or overlap, ENOMEM where the device
 * reaches too little of the memory. The CPU still moves what the engine cannot, and the record says how much: unaligned ends,
 * rows and segments that are shorter than its alignment or a cache line, and, of a region that begins unaligned, what lies otherwise
 * in the bounce buffers of a device that does not reach it.
 */
#define MEMFERRY_DMA_ONLY	2

struct memferry_transfer {
	__u64 tag;		/* comes back in the record */
	__u32 operation;
	__u32 flags;
	struct memferry_place source;
	struct memferry_place destination;
	__u64 length;
	__u32 patience_ms;	/* from now to its end, else -ETIMEDOUT; 0: the module's parameter patience_ms */
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
 * The first transfer that is refused ends the batch: accepted says how many came before it, and the call succeeds if
 * there was any. Refused: ENOENT for an unknown or stale region, ERANGE outside of it, EACCES without the right, EINVAL.
 */
struct memferry_submit {
	__u64 transfers;	/* address of struct memferry_transfer[count] */
	__u32 count;
	__u32 accepted;		/* answered */
};

#define MEMFERRY_BY_CPU	1
#define MEMFERRY_BY_DMA	2

/* The end of a transfer, given by read(): whole records only. Nothing touches the memory any more. */
struct memferry_record {
	__u64 tag;
	__s32 status;		/* 0, -ECANCELED, -ETIMEDOUT, -EIO (the engine failed), and those below */
	__u32 moved_by;		/* MEMFERRY_BY_* */
	__u64 bytes_done;	/* from the beginning, in the transfer's order; after a failure more may have been written */
	__u64 bytes_by_dma;
	__s32 channel;		/* -1: none */
	__u32 reserved;
};
/*
 * -ETIMEDOUT: also of what still waits for its turn. An engine that cannot be stopped is waited for; what a policy halts may
 * end later by as long.
 *
 * -ENODEV: only with MEMFERRY_DMA_ONLY; the engine would not take what is left, or hangs at another's and is not used any more.
 *
 * -ENOTRECOVERABLE: the engine did not end a batch in the module's own time (watchdog_ms), and its driver cannot tell that it
 * was stopped. It may still touch the memory: the regions stay pinned for good, and the channel is not used again.
 *
 * Some drivers report no errors (zynqmp-dma, pl330): status 0 says then that the engine said it was done.
 */

#define MEMFERRY_NORMAL	0
#define MEMFERRY_HIGH	1	/* needs CAP_SYS_NICE */

#define MEMFERRY_QUERY		_IOR(0xb7, 0, struct memferry_query)
#define MEMFERRY_REGISTER	_IOWR(0xb7, 1, struct memferry_register)
/*
 * Cancels what uses the region, and returns when nothing does and its pages were let go of. The argument is the region. When a
 * signal kills the caller meanwhile, or an engine hangs at it (-ENOTRECOVERABLE), they are not yet, or never.
 */
#define MEMFERRY_UNREGISTER	_IO(0xb7, 2)
#define MEMFERRY_SUBMIT		_IOWR(0xb7, 3, struct memferry_submit)
/* Asks all transfers with the tag at the address given to end early; returns how many there were. */
#define MEMFERRY_CANCEL		_IOW(0xb7, 4, __u64)
/* An eventfd that is signalled for each record, or -1 for none. */
#define MEMFERRY_EVENTFD	_IO(0xb7, 5)
/* MEMFERRY_NORMAL or MEMFERRY_HIGH. */
#define MEMFERRY_CLASS		_IO(0xb7, 6)

#endif
