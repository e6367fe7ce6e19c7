// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: memory that stays in place while transfers may access it.
 *
 *   mf_region_of_user ─ charge ─ pin, mapping by mapping ─► region ─ mf_region_map ─► its runs, for one device
 *   mf_region_put ─ last reference ─► unmap ─ unpin ─ uncharge     (in a work item, so that any context may put)
 *
 * Pinned pages are charged to the user, as io_uring does: a child that inherited the descriptor keeps them pinned after the
 * death of the process that pinned them. They count against RLIMIT_MEMLOCK of all processes of the user.
 *
 * A region is mapped once for each device, for the first transfer on one of the device's channels. channel.c synchronizes
 * caches around each piece.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/swiotlb.h>

#include "memferry.h"

/* Limit on the bounce buffer pages of all regions: the machine has few, and device drivers need them. */
#define BOUNCED_PAGES	((8UL << 20) >> PAGE_SHIFT)

static atomic_long_t bounced_pages;

/* Held for writing while a device leaves: then nothing is mapped for it, or unmapped. */
static DECLARE_RWSEM(mapping);
static DEFINE_SPINLOCK(maps_lock);
static LIST_HEAD(maps);

/* ---- accounting ---- */

/* Charges the region's pages to the caller. -ENOMEM if that exceeds the limit. */
static int charge(struct mf_region *region)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct user_struct *user = current_user();
	long locked;

	if (!capable(CAP_IPC_LOCK)) {
		locked = atomic_long_read(&user->locked_vm);
		do {
			if (region->page_count > limit || locked > limit - region->page_count)
				return -ENOMEM;
		} while (!atomic_long_try_cmpxchg(&user->locked_vm, &locked, locked + region->page_count));
		/* Holds the credentials instead of the user: not every 6.1 exports free_uid() to modules. */
		region->payer = get_current_cred();
	}
	region->mm = current->mm;
	mmgrab(region->mm);
	atomic64_add(region->page_count, &region->mm->pinned_vm);
	return 0;
}

static void uncharge(struct mf_region *region)
{
	atomic64_sub(region->page_count, &region->mm->pinned_vm);
	mmdrop(region->mm);
	if (region->payer) {
		atomic_long_sub(region->page_count, &region->payer->user->locked_vm);
		put_cred(region->payer);
	}
}

/* ---- pinning ---- */

static bool is_shareable_file(const struct file *file)
{
	unsigned long magic = file->f_inode->i_sb->s_magic;

	return magic == TMPFS_MAGIC || magic == HUGETLBFS_MAGIC;
}

/* Finds the flags for pinning pages of this mapping, or the reason why they cannot be pinned. */
static int pin_flags(const struct vm_area_struct *vma, u32 rights, unsigned int *flags)
{
	bool is_private = (vma->vm_flags & (VM_SHARED | VM_MAYWRITE)) == VM_MAYWRITE;

	if (vma->vm_flags & (VM_IO | VM_PFNMAP))
		return -EFAULT;
	if (vma->vm_file && (vma->vm_flags & VM_SHARED) && !is_shareable_file(vma->vm_file))
		return -EOPNOTSUPP;
	if ((rights & MEMFERRY_READ) && !(vma->vm_flags & VM_READ))
		return -EACCES;
	if ((rights & MEMFERRY_WRITE) && !(vma->vm_flags & VM_WRITE))
		return -EACCES;
	*flags = rights & MEMFERRY_WRITE ? FOLL_LONGTERM | FOLL_WRITE : mf_read_pin_flags(is_private);
	return 0;
}

/* Pins up to 512 of the pages that are left in the mapping at address. Returns their number, or an error. */
static long pin_some(struct mm_struct *mm, unsigned long address, unsigned long left, u32 rights, struct page **pages)
{
	struct vm_area_struct *vma;
	unsigned int flags;
	long pinned;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = find_vma(mm, address);
	if (!vma || address < vma->vm_start) {
		pinned = -EFAULT;
	} else {
		pinned = pin_flags(vma, rights, &flags);
		if (!pinned) {
			left = min3(left, (vma->vm_end - address) >> PAGE_SHIFT, 512UL);
			pinned = mf_pin_pages(address, left, flags, pages);
		}
	}
	mmap_read_unlock(mm);
	return pinned ? pinned : -EFAULT;
}

static int pin_all(struct mf_region *region, unsigned long address)
{
	unsigned long done = 0;
	long pinned = 0;

	address &= PAGE_MASK;
	while (done < region->page_count && pinned >= 0) {
		pinned = pin_some(region->mm, address + (done << PAGE_SHIFT), region->page_count - done,
				  region->rights, region->pages + done);
		if (pinned > 0)
			done += pinned;
		if (fatal_signal_pending(current))
			pinned = -EINTR;
		cond_resched();
	}
	if (pinned < 0)
		unpin_user_pages(region->pages, done);
	return min(pinned, 0L);
}

static struct mf_region *region_new(unsigned long count, unsigned int first, u64 length, u32 rights)
{
	struct mf_region *region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);

	if (!region)
		return NULL;
	kref_init(&region->references);
	region->rights = rights;
	region->length = length;
	region->first = first;
	region->page_count = count;
	mutex_init(&region->lock);
	INIT_LIST_HEAD(&region->maps);
	atomic_set(&region->users, 0);
	init_waitqueue_head(&region->unused);
	return region;
}

static int list_pages(struct mf_region *region)
{
	region->pages = kvmalloc_array(region->page_count, sizeof(*region->pages), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	return region->pages ? 0 : -ENOMEM;
}

static void region_delete(struct mf_region *region)
{
	kvfree(region->pages);
	kfree(region);
}

/* Makes a region of memory of the calling process. length is not 0. */
struct mf_region *mf_region_of_user(unsigned long address, u64 length, u32 rights)
{
	unsigned long first = offset_in_page(address), count;
	struct mf_region *region;
	int error;

	if (length > MEMFERRY_MAX_BYTES || length > ULONG_MAX - address || address + length > ULONG_MAX - PAGE_SIZE)
		return ERR_PTR(-EOVERFLOW);
	address = untagged_addr(address);
	count = (first + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	/* Linux warns about an allocation above this size, and the page list is one. */
	if (count > INT_MAX / sizeof(struct page *))
		return ERR_PTR(-ENOMEM);
	region = region_new(count, first, length, rights);
	if (!region)
		return ERR_PTR(-ENOMEM);
	/* Charge first, so that a caller over its limit does not allocate the page list. */
	error = charge(region);
	if (error)
		goto delete;
	error = list_pages(region);
	if (!error)
		error = pin_all(region, address);
	if (!error)
		return region;
	uncharge(region);
delete:
	region_delete(region);
	return ERR_PTR(error);
}

/* Makes a region of pages that the caller keeps in place until its mf_region_put_now() returned. */
struct mf_region *mf_region_of_pages(struct page **pages, unsigned long count, unsigned int first, u64 length,
				     u32 rights)
{
	struct mf_region *region = region_new(count, first, length, rights);

	if (!region)
		return NULL;
	if (list_pages(region)) {
		region_delete(region);
		return NULL;
	}
	memcpy(region->pages, pages, count * sizeof(*pages));
	return region;
}

/* ---- mapping for devices ---- */

static void map_delete(struct mf_map *map)
{
	down_read(&mapping);
	if (map->device)
		dma_unmap_sgtable(map->device, &map->table, map->direction, DMA_ATTR_SKIP_CPU_SYNC);
	spin_lock(&maps_lock);
	list_del(&map->of_all);
	spin_unlock(&maps_lock);
	up_read(&mapping);
	atomic_long_sub(map->bounced, &bounced_pages);
	sg_free_table(&map->table);
	kvfree(map->runs);
	kfree(map);
}

static void region_free(struct mf_region *region)
{
	struct completion *freed = region->freed;
	struct mf_map *map, *next;

	list_for_each_entry_safe(map, next, &region->maps, node)
		map_delete(map);
	if (region->mm) {
		unpin_user_pages_dirty_lock(region->pages, region->page_count, region->rights & MEMFERRY_WRITE);
		uncharge(region);
	}
	region_delete(region);
	if (freed)
		complete(freed);
}

static void region_free_work(struct work_struct *work)
{
	region_free(container_of(work, struct mf_region, free));
}

static void region_free_later(struct kref *references)
{
	struct mf_region *region = container_of(references, struct mf_region, references);

	INIT_WORK(&region->free, region_free_work);
	queue_work(mf_works, &region->free);
}

static void region_free_now(struct kref *references)
{
	region_free(container_of(references, struct mf_region, references));
}

/* Drops a reference, in any context. */
void mf_region_put(struct mf_region *region)
{
	kref_put(&region->references, region_free_later);
}

/* Drops a reference in a context that may sleep. If it was the last one, the pages are released on return. */
void mf_region_put_now(struct mf_region *region)
{
	kref_put(&region->references, region_free_now);
}

/*
 * Lists the runs of a mapped table, or only counts them. For a device that is not cache-coherent, each run is also
 * contiguous in physical memory, because the calls that write caches back take one address and a length.
 */
static unsigned int list_runs(struct mf_map *map, bool coherent, struct mf_run *runs)
{
	struct scatterlist *mapped, *physical = map->table.sgl;
	unsigned int physical_left = physical->length, count = 0;
	u64 end = 0;
	int i;

	for_each_sgtable_dma_sg(&map->table, mapped, i) {
		unsigned int left = sg_dma_len(mapped);
		dma_addr_t address = sg_dma_address(mapped);

		while (left) {
			unsigned int part = coherent ? left : min(left, physical_left);

			end += part;
			if (runs)
				runs[count] = (struct mf_run){ .end = end, .address = address };
			count++;
			left -= part;
			address += part;
			if (coherent)
				continue;
			physical_left -= part;
			if (!physical_left) {
				physical = sg_next(physical);
				physical_left = physical ? physical->length : 0;
			}
		}
	}
	return count;
}

/* Reserves bounce buffers for pages that the device cannot address, until the mapping is deleted. */
static int reserve_bounced(struct mf_map *map, const struct mf_region *region)
{
	bool all = is_swiotlb_force_bounce(map->device);
	unsigned long i;

	if (!all && !dma_addressing_limited(map->device))
		return 0;
	for (i = 0; i < region->page_count; i++) {
		dma_addr_t address = phys_to_dma(map->device, page_to_phys(region->pages[i]));

		map->bounced += all || !dma_capable(map->device, address, PAGE_SIZE, true);
		if (map->bounced > BOUNCED_PAGES)
			break;
		cond_resched();
	}
	if (atomic_long_add_return(map->bounced, &bounced_pages) <= BOUNCED_PAGES)
		return 0;
	atomic_long_sub(map->bounced, &bounced_pages);
	return -ENOMEM;
}

/*
 * Unmaps all regions from a device that is leaving. What their transfers know of them stays, and is not used. Mappings that the
 * device may still use stay for ever.
 */
void mf_regions_unmap(const struct device *device, bool silent)
{
	struct mf_map *map;

	down_write(&mapping);
	list_for_each_entry(map, &maps, of_all) {
		if (map->device != device)
			continue;
		if (silent)
			dma_unmap_sgtable(map->device, &map->table, map->direction, DMA_ATTR_SKIP_CPU_SYNC);
		else
			/* Their bounce buffers are lost too, and go on counting. */
			map->bounced = 0;
		map->device = NULL;
	}
	up_write(&mapping);
}

/* Maps the table for the channel's device, unless that is leaving. */
static int map_table(struct mf_map *map, const struct mf_channel *channel)
{
	int error = -ENODEV;

	down_read(&mapping);
	if (!READ_ONCE(channel->leaving))
		error = dma_map_sgtable(map->device, &map->table, map->direction, DMA_ATTR_SKIP_CPU_SYNC);
	if (!error) {
		spin_lock(&maps_lock);
		list_add(&map->of_all, &maps);
		spin_unlock(&maps_lock);
	}
	up_read(&mapping);
	return error;
}

static struct mf_map *map_new(struct mf_region *region, const struct mf_channel *channel)
{
	struct device *device = channel->device;
	size_t longest = min_t(size_t, dma_max_mapping_size(device), dma_get_max_seg_size(device));
	struct mf_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	int error;

	if (!map)
		return ERR_PTR(-ENOMEM);
	map->device = device;
	error = reserve_bounced(map, region);
	if (error)
		goto delete;
	longest = clamp_t(size_t, rounddown(longest, PAGE_SIZE), PAGE_SIZE, UINT_MAX & PAGE_MASK);
	error = sg_alloc_table_from_pages_segment(&map->table, region->pages, region->page_count, region->first,
						  region->length, longest, GFP_KERNEL_ACCOUNT);
	if (error)
		goto give_back;
	/*
	 * Never DMA_FROM_DEVICE: an engine that fails or is stopped leaves bytes unchanged. 32-bit Arm would then have
	 * discarded cached stores to them, even the zeros of a new page, and stale bounce buffers would be copied back.
	 */
	map->direction = region->rights == MEMFERRY_READ ? DMA_TO_DEVICE : DMA_BIDIRECTIONAL;
	error = map_table(map, channel);
	if (error)
		goto free;
	map->count = list_runs(map, dev_is_dma_coherent(device), NULL);
	map->runs = kvmalloc_array(map->count, sizeof(*map->runs), GFP_KERNEL_ACCOUNT);
	if (!map->runs) {
		map_delete(map);
		return ERR_PTR(-ENOMEM);
	}
	list_runs(map, dev_is_dma_coherent(device), map->runs);
	return map;
free:
	sg_free_table(&map->table);
give_back:
	atomic_long_sub(map->bounced, &bounced_pages);
delete:
	kfree(map);
	return ERR_PTR(error);
}

/* The region's mapping for the device, made at the first call. It lives as long as the region. */
struct mf_map *mf_region_map(struct mf_region *region, const struct mf_channel *channel)
{
	struct mf_map *map;

	mutex_lock(&region->lock);
	list_for_each_entry(map, &region->maps, node)
		if (map->device == channel->device)
			goto found;
	map = map_new(region, channel);
	if (!IS_ERR(map))
		list_add(&map->node, &region->maps);
found:
	mutex_unlock(&region->lock);
	return map;
}

/* The number of physically contiguous pieces. */
unsigned int mf_region_runs(struct mf_region *region)
{
	unsigned int runs = 1;
	unsigned long i;

	for (i = 1; i < region->page_count; i++) {
		if (page_to_pfn(region->pages[i]) != page_to_pfn(region->pages[i - 1]) + 1)
			runs++;
		cond_resched();
	}
	return runs;
}

/* The run that contains the byte at offset, and the offset of the run's first byte. offset lies in the region. */
const struct mf_run *mf_map_find(const struct mf_map *map, u64 offset, u64 *begin)
{
	unsigned int low = 0, high = map->count - 1;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (map->runs[middle].end > offset)
			high = middle;
		else
			low = middle + 1;
	}
	*begin = low ? map->runs[low - 1].end : 0;
	return &map->runs[low];
}
