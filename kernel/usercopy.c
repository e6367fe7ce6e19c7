// SPDX-License-Identifier: GPL-2.0
/*
 * copy_to_user() and copy_from_user() by a DMA engine (Papa 2014, "copy_to_user() via DMA engine").
 *
 *   caller ─ pin the user's pages, list the kernel's ─► transfer ─► policy ─► channel ─ interrupt ─► caller wakes, unpins
 *      └─ no channel, too short, atomic, a page that cannot be pinned ─► the original by the CPU, which reports faults
 */
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/sched/rt.h>
#include <linux/slab.h>
#include <linux/thread_info.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "include/memferry_usercopy.h"
#include "memferry.h"

/* Pages pinned at a time. */
#define CHUNK_PAGES	256

struct chunk {
	struct page *user[CHUNK_PAGES];
	struct page *kernel[CHUNK_PAGES];
};

static void wake_waiter(struct mf_transfer *transfer)
{
	complete(transfer->waiter);
}

static bool list_kernel_pages(const void *from, unsigned long length, struct page **pages)
{
	unsigned long address = (unsigned long)from & PAGE_MASK, end = (unsigned long)from + length;
	unsigned int i;

	for (i = 0; address < end; address += PAGE_SIZE, i++) {
		const void *page = (const void *)address;

		if (is_vmalloc_addr(page))
			pages[i] = vmalloc_to_page(page);
		else
			pages[i] = virt_addr_valid(page) ? virt_to_page(page) : NULL;
		if (!pages[i])
			return false;
	}
	return true;
}

/* Submits the copy, sleeps until it has ended, and returns its status. Drops the caller's references to the regions. */
static int move(struct mf_region *source, struct mf_region *destination, u64 length)
{
	DECLARE_COMPLETION_ONSTACK(over);
	struct mf_transfer *transfer = mf_transfer_new(1);
	int status = -ENOMEM;

	if (!transfer)
		goto put;
	transfer->operation = MEMFERRY_COPY;
	transfer->flags = MEMFERRY_DMA_ONLY;
	transfer->deadline = jiffies + msecs_to_jiffies(READ_ONCE(mf_patience_ms));
	transfer->is_kernels = true;
	transfer->total = length;
	transfer->ended = wake_waiter;
	transfer->waiter = &over;
	transfer->segments[0] = (struct mf_segment){ .source = source, .destination = destination, .length = length };
	status = mf_transfer_place(transfer, rt_task(current) ? MEMFERRY_HIGH : MEMFERRY_NORMAL);
	if (status)
		goto free;
	kref_get(&source->references);
	kref_get(&destination->references);
	atomic_inc(&source->users);
	atomic_inc(&destination->users);
	mf_transfer_start(transfer);
	wait_for_completion(&over);
	status = transfer->status;
free:
	mf_transfer_free(transfer);
put:
	mf_region_put_now(source);
	mf_region_put_now(destination);
	return status;
}

/* Moves up to one chunk. Returns the bytes moved; 0 if the CPU must copy. */
static unsigned long move_chunk(struct chunk *chunk, unsigned long user, void *kernel, unsigned long length, bool to_user)
{
	unsigned int user_first = offset_in_page(user), kernel_first = offset_in_page(kernel);
	struct mf_region *at_user, *at_kernel;
	unsigned long pages;
	long pinned;
	int status;

	length = min(length, (CHUNK_PAGES - 1) * PAGE_SIZE - user_first);
	pages = DIV_ROUND_UP(user_first + length, PAGE_SIZE);
	pinned = pin_user_pages_fast(user - user_first, pages, to_user ? FOLL_WRITE : 0, chunk->user);
	if (pinned <= 0)
		return 0;
	length = min(length, pinned * PAGE_SIZE - user_first);
	status = -ENOMEM;
	if (!list_kernel_pages(kernel, length, chunk->kernel))
		goto unpin;
	at_user = mf_region_of_pages(chunk->user, pinned, user_first, length, to_user ? MEMFERRY_WRITE : MEMFERRY_READ);
	at_kernel = mf_region_of_pages(chunk->kernel, DIV_ROUND_UP(kernel_first + length, PAGE_SIZE), kernel_first, length,
				       to_user ? MEMFERRY_READ : MEMFERRY_WRITE);
	if (at_user && at_kernel) {
		status = to_user ? move(at_kernel, at_user, length) : move(at_user, at_kernel, length);
	} else {
		if (at_user)
			mf_region_put_now(at_user);
		if (at_kernel)
			mf_region_put_now(at_kernel);
	}
unpin:
	unpin_user_pages_dirty_lock(chunk->user, pinned, to_user);
	return status ? 0 : length;
}

static bool is_for_dma(unsigned long length)
{
	return length >= READ_ONCE(mf_threshold) && mf_channel_count && current->mm && !in_atomic() && !irqs_disabled() &&
	       !pagefault_disabled();
}

/* Returns the number of bytes left, which the CPU must copy. */
static unsigned long copy_by_dma(unsigned long user, void *kernel, unsigned long length, bool to_user)
{
	struct chunk *chunk = kvmalloc(sizeof(*chunk), GFP_KERNEL);
	unsigned long left = length;

	while (chunk && left >= READ_ONCE(mf_threshold)) {
		unsigned long moved = move_chunk(chunk, user + (length - left), kernel + (length - left), left, to_user);

		if (!moved)
			break;
		left -= moved;
	}
	kvfree(chunk);
	return left;
}

unsigned long memferry_copy_to_user(void __user *to, const void *from, unsigned long length)
{
	unsigned long left = length;

	check_object_size(from, length, true);
	if (is_for_dma(length) && access_ok(to, length))
		left = copy_by_dma((unsigned long)to, (void *)from, length, true);
	return copy_to_user(to + (length - left), from + (length - left), left);
}
EXPORT_SYMBOL_GPL(memferry_copy_to_user);

unsigned long memferry_copy_from_user(void *to, const void __user *from, unsigned long length)
{
	unsigned long left = length;

	check_object_size(to, length, false);
	if (is_for_dma(length) && access_ok(from, length))
		left = copy_by_dma((unsigned long)from, to, length, false);
	return copy_from_user(to + (length - left), from + (length - left), left);
}
EXPORT_SYMBOL_GPL(memferry_copy_from_user);
