// SPDX-License-Identifier: GPL-2.0
/*
 * The devices that have the channels: how they are taken, and how they leave.
 *
 * A device leaves when its driver is unbound from it. Linux tells before the driver's removal, and again when all is over.
 *
 *   before: nothing is begun any more ─► PCI?  no: wait for each engine ─► silent? yes: given back   no: kept for ever
 *   after:                               PCI: no longer a bus master, so silent: given back
 *
 * Afterwards Linux has dropped what it needs to unmap memory on some machines, and drivers of other buses leave their engines
 * running (zynqmp-dma). Channels are taken and given back with the lock of their device, under which it is bound and unbound.
 *
 * A channel can leave alone, too: idxd has one for each work queue, and frees it when the queue is disabled. dmaengine gives each
 * channel a device of its own in its class, and Linux tells when that goes. The driver still works then: as "before" without PCI,
 * also when the whole device leaves.
 */
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "memferry.h"

struct mf_channel *mf_channels[MF_MAX_CHANNELS];
unsigned int mf_channel_count;

/* Held while channels are taken, leave, or are given back. Taken with the lock of a device, or of dmaengine's class, held. */
static DEFINE_MUTEX(channels_lock);

/*
 * Properties that drivers do not report.
 *
 * bcm2835-dma: QEMU's model never ends a transfer whose length is not a multiple of four.
 * xilinx-zynqmp-dma: its terminate_all masks the interrupts and frees the descriptors, and does not stop the engine
 * (drivers/dma/xilinx/zynqmp_dma.c).
 * idxd: frees the channel of a work queue with the queue (drivers/dma/idxd/dma.c).
 */
static const struct {
	const char *driver;
	unsigned int alignment;
	bool can_stop;
	bool leaves_alone;
} quirks[] = {
	{ "bcm2835-dma", 4, true, false },
	{ "xilinx-zynqmp-dma", 1, false, false },
	{ "idxd", 1, true, true },
};

/* ---- losing channels ---- */

/* Gives back what a channel holds of its device. Afterwards the driver may free the channel. */
static void give_back(struct mf_channel *channel, bool releases)
{
	mf_timer_stop(&channel->timer);
	flush_work(&channel->work);
	mf_timer_stop(&channel->timer);
	if (releases)
		dma_release_channel(channel->chan);
	/* Late callbacks queue it. */
	flush_work(&channel->work);
	dma_unmap_page(channel->device, channel->pattern_address, PAGE_SIZE << channel->pattern_order, DMA_TO_DEVICE);
	if (channel->fence)
		dma_free_coherent(channel->device, PAGE_SIZE, channel->fence, channel->fence_address);
	mf_fences_free(channel);
}

/* Whether a device without driver accesses no memory, and its memory can still be unmapped. */
static bool is_silent_unbound(const struct device *owner)
{
	/* Linux drops the map of ranges, and some architectures drop their operations, before it tells. */
	return dev_is_pci(owner) && !owner->dma_range_map && !IS_ENABLED(CONFIG_ARCH_HAS_TEARDOWN_DMA_OPS);
}

/* Whether this is one of the device's channels that have not left with it before. */
static bool is_held(const struct mf_channel *channel, const struct device *owner)
{
	return channel->owner == owner && !channel->gone && !channel->lost;
}

/* Ends the transfers of a channel whose driver still works. Returns whether its engine accesses no memory any more. */
static bool part(struct mf_channel *channel)
{
	bool silent = mf_channel_falls_silent(channel);

	if (silent)
		mf_channel_depart(channel);
	else
		mf_channel_lose(channel);
	return silent;
}

/* Lets go of a device that is about to lose its driver, which still works. Channels may have left alone before. */
static void part_all(const struct device *owner)
{
	bool silent[MF_MAX_CHANNELS] = {}, all_silent = true;
	unsigned int i;

	for (i = 0; i < mf_channel_count; i++) {
		if (is_held(mf_channels[i], owner))
			silent[i] = part(mf_channels[i]);
		if (mf_channels[i]->owner == owner)
			all_silent &= !mf_channels[i]->lost;
	}
	for (i = 0; i < mf_channel_count; i++) {
		if (mf_channels[i]->owner == owner)
			mf_regions_unmap(mf_channels[i]->device, all_silent);
		if (silent[i])
			give_back(mf_channels[i], true);
	}
}

/* Lets go of a PCI device that has lost its driver. It is not removed from its IOMMU before this returns. */
static void forsake(struct device *owner)
{
	bool held[MF_MAX_CHANNELS];
	unsigned int i;

	/* Not every driver does it. */
	pci_clear_master(to_pci_dev(owner));
	for (i = 0; i < mf_channel_count; i++) {
		held[i] = is_held(mf_channels[i], owner);
		if (held[i])
			mf_channel_depart(mf_channels[i]);
	}
	for (i = 0; i < mf_channel_count; i++) {
		if (!held[i])
			continue;
		mf_regions_unmap(mf_channels[i]->device, true);
		/* A driver that cannot tell when its last client leaves has freed its channels with the device. */
		give_back(mf_channels[i], mf_channels[i]->outlives);
	}
}

/* From here on, the channel's work item does not call the driver. */
static void begin_to_leave(struct mf_channel *channel)
{
	WRITE_ONCE(channel->leaving, true);
	flush_work(&channel->work);
}

/* Whichever notifier of a device is called first handles all of its channels. */
static int device_event(struct notifier_block *notifier, unsigned long event, void *data)
{
	struct mf_channel *channel = container_of(notifier, struct mf_channel, unbound);
	struct device *owner = channel->owner;
	unsigned int i;

	if (owner != data)
		return NOTIFY_DONE;
	mutex_lock(&channels_lock);
	if (event == BUS_NOTIFY_UNBIND_DRIVER) {
		bool silenced = is_silent_unbound(owner) && !channel->leaves_alone;

		for (i = 0; i < mf_channel_count; i++) {
			if (!is_held(mf_channels[i], owner) || mf_channels[i]->leaving)
				continue;
			mf_channels[i]->silenced = silenced;
			begin_to_leave(mf_channels[i]);
		}
		if (!silenced)
			part_all(owner);
	} else if (event == BUS_NOTIFY_UNBOUND_DRIVER && channel->silenced && is_held(channel, owner)) {
		forsake(owner);
	}
	mutex_unlock(&channels_lock);
	return NOTIFY_OK;
}

/* A device of dmaengine's class goes. If it is a channel that its device does not take along, its driver may free it after this. */
static void channel_removed(MF_REMOVAL)
{
	unsigned int i;

	mutex_lock(&channels_lock);
	for (i = 0; i < mf_channel_count; i++) {
		struct mf_channel *channel = mf_channels[i];

		if (channel->self != self || !is_held(channel, channel->owner) || channel->leaving)
			continue;
		begin_to_leave(channel);
		/* The device stays, and with it what is mapped for it. */
		if (part(channel))
			give_back(channel, true);
	}
	mutex_unlock(&channels_lock);
}

/* Without a class until the first channel is found. */
static struct class_interface removals = { .remove_dev = channel_removed };
static bool hears_removals;

/* ---- taking channels ---- */

static int take_pattern(struct mf_channel *channel)
{
	/* 16 pages allow longer pieces; one page is enough if memory is short. */
	for (channel->pattern_order = 4;; channel->pattern_order = 0) {
		channel->pattern = alloc_pages(GFP_KERNEL | GFP_DMA32 | __GFP_NOWARN, channel->pattern_order);
		if (channel->pattern || !channel->pattern_order)
			break;
	}
	if (!channel->pattern)
		return -ENOMEM;
	channel->pattern_address = dma_map_page(channel->device, channel->pattern, 0,
						PAGE_SIZE << channel->pattern_order, DMA_TO_DEVICE);
	if (dma_mapping_error(channel->device, channel->pattern_address)) {
		__free_pages(channel->pattern, channel->pattern_order);
		return -EIO;
	}
	return 0;
}

static void take_plane(struct mf_channel *channel)
{
	struct dma_interleaved_template *plane;

	if (!dma_has_cap(DMA_INTERLEAVE, channel->chan->device->cap_mask))
		return;
	plane = kzalloc(struct_size(plane, sgl, 1), GFP_KERNEL);
	if (!plane)
		return;
	plane->dir = DMA_MEM_TO_MEM;
	plane->src_inc = plane->dst_inc = true;
	plane->src_sgl = plane->dst_sgl = true;
	plane->frame_size = 1;
	channel->plane = plane;
}

static unsigned int abilities_of(const struct mf_channel *channel)
{
	struct dma_device *engine = channel->chan->device;

	return (dma_has_cap(DMA_MEMSET, engine->cap_mask) ? MEMFERRY_CAN_FILL : 0) |
	       (channel->plane ? MEMFERRY_CAN_PLANE : 0) |
	       (engine->device_pause && engine->device_resume ? MEMFERRY_CAN_PAUSE : 0);
}

static struct mf_channel *take(struct dma_chan *chan)
{
	struct mf_channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	unsigned int i, order;

	if (!channel)
		return NULL;
	channel->chan = chan;
	channel->device = dmaengine_get_dma_device(chan);
	channel->owner = chan->device->dev;
	channel->outlives = chan->device->device_release;
	strscpy(channel->name, dma_chan_name(chan), sizeof(channel->name));
	strscpy(channel->driver, dev_driver_string(channel->owner), sizeof(channel->driver));
	order = max(chan->device->copy_align, chan->device->fill_align);
	channel->alignment = 1U << order;
	/* Assume that termination stops the engine if the driver can also wait for its callbacks. */
	channel->can_stop = chan->device->device_terminate_all && chan->device->device_synchronize;
	for (i = 0; i < ARRAY_SIZE(quirks); i++) {
		if (strcmp(dev_driver_string(chan->device->dev), quirks[i].driver))
			continue;
		channel->alignment = max(channel->alignment, quirks[i].alignment);
		channel->can_stop &= quirks[i].can_stop;
		channel->leaves_alone = quirks[i].leaves_alone;
	}
	channel->line = dev_is_dma_coherent(channel->device) ? 1 : dma_get_cache_alignment();
	mf_channel_init(channel);
	if (take_pattern(channel)) {
		kfree(channel);
		return NULL;
	}
	/*
	 * Without it, a batch that hangs faults the channel. On a channel that completes out of order, such as idxd's, a fence that
	 * passes would say nothing about what was sent before it.
	 */
	if (!dma_has_cap(DMA_COMPLETION_NO_ORDER, chan->device->cap_mask))
		channel->fence = dma_alloc_coherent(channel->device, PAGE_SIZE, &channel->fence_address, GFP_KERNEL);
	take_plane(channel);
	channel->abilities = abilities_of(channel);
	channel->self = &chan->dev->device;
	/* They outlive the device, to be recognized. */
	get_device(channel->self);
	get_device(channel->owner);
	get_device(channel->device);
	channel->unbound.notifier_call = device_event;
	return channel;
}

static bool is_of_driver(const struct dma_chan *chan, const char *driver)
{
	return !*driver || !strcmp(dev_driver_string(chan->device->dev), driver);
}

/* What is searched: a channel of this driver; and the device that has it. */
struct search {
	const char *driver;
	struct device *owner;
};

/*
 * Whether a listed channel is registered. A driver that adds and removes them one by one lists them a little longer, and a device that
 * is gone while others have its channels lists all. Of a device that has others, one that is just being removed is not told apart.
 */
static bool is_there(const struct dma_chan *chan)
{
	return chan->device->chancnt && chan->dev && chan->dev->chan == chan;
}

/* Notes the device of a free channel. dmaengine knows only devices that are there. */
static bool is_noted(struct dma_chan *chan, void *parameter)
{
	struct search *search = parameter;

	if (!search->owner && is_of_driver(chan, search->driver) && is_there(chan)) {
		search->owner = get_device(chan->device->dev);
		removals.class = chan->dev->device.class;
	}
	return false;
}

static bool is_of_found(struct dma_chan *chan, void *parameter)
{
	const struct search *search = parameter;

	return chan->device->dev == search->owner && is_of_driver(chan, search->driver) && is_there(chan);
}

/* Takes one more channel of the device that was found. Returns 0, or -ENODEV if it has left or gives none. */
static int take_of(const dma_cap_mask_t *mask, struct search *search)
{
	struct mf_channel *channel = NULL;
	struct dma_chan *chan;

	/* With these locks, neither device nor channel can leave before it is watched. */
	device_lock(search->owner);
	mutex_lock(&channels_lock);
	chan = __dma_request_channel(mask, is_of_found, search, NULL);
	if (chan)
		channel = take(chan);
	if (channel) {
		channel->number = mf_channel_count;
		mf_channels[mf_channel_count++] = channel;
		pr_info("channel %u: %s of %s, %u byte alignment, %u byte lines\n", channel->number, channel->name,
			channel->driver, channel->alignment, channel->line);
	} else if (chan) {
		dma_release_channel(chan);
	}
	mutex_unlock(&channels_lock);
	/* Notifiers take the channels' lock. */
	if (channel && channel->owner->bus)
		bus_register_notifier(channel->owner->bus, &channel->unbound);
	device_unlock(search->owner);
	if (!chan)
		return -ENODEV;
	return channel ? 0 : -ENOMEM;
}

/* Registers removals, for the class of the channel that was found. */
static int hear_removals(void)
{
	int error = hears_removals ? 0 : class_interface_register(&removals);

	hears_removals |= !error;
	return error;
}

/* Takes up to limit free channels that copy memory, until the module is unloaded. An empty name matches any driver. */
int mf_channels_take(unsigned int limit, const char *driver)
{
	unsigned int left = 0;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	while (mf_channel_count < min_t(unsigned int, limit, MF_MAX_CHANNELS)) {
		struct search search = { .driver = driver };
		int error;

		dma_request_channel(mask, is_noted, &search);
		if (!search.owner)
			break;
		error = hear_removals() ?: take_of(&mask, &search);
		put_device(search.owner);
		if (error == -ENOMEM)
			return error;
		/* One that has left is not found again; one that gives none would be. */
		if (error && ++left == MF_MAX_CHANNELS)
			break;
	}
	return 0;
}

/* Stops and gives back a channel, unless its device has left. While its driver is being unbound, this waits. */
static void retire(struct mf_channel *channel)
{
	device_lock(channel->owner);
	mutex_lock(&channels_lock);
	if (is_held(channel, channel->owner)) {
		dmaengine_terminate_sync(channel->chan);
		/* Late callbacks use the channel. */
		flush_workqueue(mf_works);
		give_back(channel, true);
		channel->gone = true;
	}
	mutex_unlock(&channels_lock);
	device_unlock(channel->owner);
}

/* Releases all channels. The caller ensures that nothing is queued. */
void mf_channels_release(void)
{
	unsigned int i;

	/* Regions being freed still use the devices. */
	flush_workqueue(mf_copies);
	flush_workqueue(mf_works);
	for (i = 0; i < mf_channel_count; i++)
		retire(mf_channels[i]);
	/* Not before, because a device may leave until its channels are given back; nor with its lock, which notifiers have. */
	for (i = 0; i < mf_channel_count; i++)
		if (mf_channels[i]->owner->bus)
			bus_unregister_notifier(mf_channels[i]->owner->bus, &mf_channels[i]->unbound);
	/* This calls channel_removed() for every device of the class, too. */
	if (hears_removals)
		class_interface_unregister(&removals);
	while (mf_channel_count) {
		struct mf_channel *channel = mf_channels[--mf_channel_count];

		__free_pages(channel->pattern, channel->pattern_order);
		put_device(channel->device);
		put_device(channel->owner);
		put_device(channel->self);
		kfree(channel->plane);
		kfree(channel);
		mf_channels[mf_channel_count] = NULL;
	}
}
