/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies between kernel and user memory by a DMA engine, for other modules (Papa 2014).
 */
#ifndef MEMFERRY_USERCOPY_H
#define MEMFERRY_USERCOPY_H

#include <linux/types.h>

/*
 * Like copy_to_user() and copy_from_user(), these return the number of bytes that could not be copied. While an engine
 * moves the bytes, the caller sleeps until the engine's interrupt. The CPU moves them if there is no channel, below the
 * threshold, in atomic context, and if the kernel memory is neither in the direct mapping nor from vmalloc. A kernel that
 * does not count preemption cannot detect a held spinlock; as with the originals, do not call these with one held.
 *
 * If an engine hangs and its driver cannot stop it, the caller keeps sleeping: its memory must not be reused while an
 * engine may access it.
 */
unsigned long memferry_copy_to_user(void __user *to, const void *from, unsigned long length);
unsigned long memferry_copy_from_user(void *to, const void __user *from, unsigned long length);

#endif
