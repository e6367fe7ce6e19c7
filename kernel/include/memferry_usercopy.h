/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies between kernel and user memory by a DMA engine, for other modules (Papa 2014).
 */
#ifndef MEMFERRY_USERCOPY_H
#define MEMFERRY_USERCOPY_H

#include <linux/types.h>

/*
 * As copy_to_user() and copy_from_user(), and with what they return: the bytes that could not be copied. Where an engine
 * moves the bytes the caller sleeps until its interrupt. The CPU moves them where there is no channel, below the
 * threshold, in atomic context, and where kernel memory is neither in the direct mapping nor of vmalloc. A kernel that does
 * not count preemption cannot tell who holds a spinlock; as with the originals, nobody may call these then.
 *
 * Where an engine does not end and its driver cannot be told to stop it, the caller sleeps on: his memory is not given back
 * while an engine may touch it.
 */
unsigned long memferry_copy_to_user(void __user *to, const void *from, unsigned long length);
unsigned long memferry_copy_from_user(void *to, const void __user *from, unsigned long length);

#endif
