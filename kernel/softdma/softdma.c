// SPDX-License-Identifier: GPL-2.0
/*
 * A DMA engine in software for tests: it hangs, fails and refuses on request, which real engines and their models do not.
 *
 *   prep ─► submit ─► issue ─► work item: one descriptor after the other ─► callback
 *                                └─ hang, fail, refuse: for that number of next descriptors; delay_us: before each one
 *                                   hang below 0: hanging descriptors continue
 *
 * It copies, fills and moves planes, and can be paused, resumed and stopped. It moves bytes through the kernel's mapping,
 * so it does not test cache handling. It does not support an IOMMU. Its driver can be unbound.
 */
#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/dmaengine.h>
#include <linux/highmem.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>

#define MAX_CHANNELS	8

static unsigned int channels = 4;
module_param(channels, uint, 0444);
static unsigned int alignment_order;
module_param(alignment_order, uint, 0444);
static bool synchronizes = true;
module_param(synchronizes, bool, 0444);
static unsigned int mask_bits = 64;
module_param(mask_bits, uint, 0444);
static unsigned int delay_us;
module_param(delay_us, uint, 0644);
static int hang;
static int set_hang(const char *from, const struct kernel_param *parameter);
static const struct kernel_param_ops hang_operations = { .set = set_hang, .get = param_get_int };
module_param_cb(hang, &hang_operations, &hang, 0644);
static int fail;
module_param(fail, int, 0644);
static int refuse;
module_param(refuse, int, 0644);
static unsigned int performed;
module_param(performed, uint, 0444);
static unsigned int planes;
module_param(planes, uint, 0444);
static unsigned int fills;
module_param(fills, uint, 0444);

struct soft_descriptor {
	struct dma_async_tx_descriptor tx;
	struct list_head node;
	dma_addr_t source, destination;
	size_t length, source_gap, destination_gap, rows;
	bool is_fill, hung;
	u8 value;
};

struct soft_channel {
	struct dma_chan chan;
	spinlock_t lock;
	struct list_head submitted, issued;
	struct work_struct work;
	bool paused;
};

static struct soft_channel soft[MAX_CHANNELS];
static struct dma_device engine;
static struct platform_device *platform;
/* Protects the requests (hang, fail, refuse) and the counters: channels run on several CPUs. */
static DEFINE_SPINLOCK(orders);

static struct soft_channel *soft_of(struct dma_chan *chan)
{
	return container_of(chan, struct soft_channel, chan);
}

/* Whether the request counter is above 0; decrements it. */
static bool ordered(int *count)
{
	unsigned long flags;
	bool is;

	spin_lock_irqsave(&orders, flags);
	is = *count > 0;
	*count -= is;
	spin_unlock_irqrestore(&orders, flags);
	return is;
}

static void *map(dma_addr_t address)
{
	phys_addr_t physical = dma_to_phys(&platform->dev, address);

	return kmap_local_page(pfn_to_page(PHYS_PFN(physical))) + offset_in_page(physical);
}

static void perform_row(const struct soft_descriptor *descriptor, dma_addr_t source, dma_addr_t destination)
{
	size_t left = descriptor->length;

	while (left) {
		size_t part = min3(left, PAGE_SIZE - offset_in_page(source), PAGE_SIZE - offset_in_page(destination));
		void *to = map(destination);

		if (descriptor->is_fill) {
			memset(to, descriptor->value, part);
		} else {
			void *from = map(source);

			memcpy(to, from, part);
			kunmap_local(from);
		}
		kunmap_local(to);
		source += part;
		destination += part;
		left -= part;
	}
}

static void count(const struct soft_descriptor *descriptor)
{
	unsigned long flags;

	spin_lock_irqsave(&orders, flags);
	performed++;
	planes += descriptor->rows > 1;
	fills += descriptor->is_fill;
	spin_unlock_irqrestore(&orders, flags);
}

static void perform(const struct soft_descriptor *descriptor)
{
	dma_addr_t source = descriptor->source, destination = descriptor->destination;
	size_t row;

	for (row = 0; row < descriptor->rows; row++) {
		perform_row(descriptor, source, destination);
		source += descriptor->length + descriptor->source_gap;
		destination += descriptor->length + descriptor->destination_gap;
	}
	count(descriptor);
}

static void finish(struct soft_channel *channel, struct soft_descriptor *descriptor, bool failed)
{
	struct dmaengine_result result = { .result = failed ? DMA_TRANS_ABORTED : DMA_TRANS_NOERROR };
	struct dma_async_tx_descriptor *tx = &descriptor->tx;

	channel->chan.completed_cookie = tx->cookie;
	if (tx->callback_result)
		tx->callback_result(tx->callback_param, &result);
	else if (tx->callback)
		tx->callback(tx->callback_param);
	kfree(descriptor);
}

/* The next descriptor, unless it hangs or the channel is paused. */
static struct soft_descriptor *take(struct soft_channel *channel)
{
	struct soft_descriptor *descriptor;

	spin_lock_irq(&channel->lock);
	descriptor = list_first_entry_or_null(&channel->issued, struct soft_descriptor, node);
	if (descriptor && descriptor->hung)
		descriptor->hung = READ_ONCE(hang) >= 0;
	else if (descriptor && !channel->paused)
		descriptor->hung = ordered(&hang);
	if (descriptor && (descriptor->hung || channel->paused))
		descriptor = NULL;
	if (descriptor)
		list_del(&descriptor->node);
	spin_unlock_irq(&channel->lock);
	return descriptor;
}

static void soft_work(struct work_struct *work)
{
	struct soft_channel *channel = container_of(work, struct soft_channel, work);
	struct soft_descriptor *descriptor;

	while ((descriptor = take(channel))) {
		bool failed = ordered(&fail);

		if (delay_us)
			usleep_range(delay_us, delay_us + 10);
		if (!failed)
			perform(descriptor);
		local_bh_disable();
		finish(channel, descriptor, failed);
		local_bh_enable();
		cond_resched();
	}
}

static int set_hang(const char *from, const struct kernel_param *parameter)
{
	int error = param_set_int(from, parameter);
	unsigned int i;

	/* Hanging channels check again. Channels that were not set up have no device. */
	for (i = 0; !error && i < MAX_CHANNELS && soft[i].chan.device; i++)
		queue_work(system_unbound_wq, &soft[i].work);
	return error;
}

static dma_cookie_t soft_submit(struct dma_async_tx_descriptor *tx)
{
	struct soft_descriptor *descriptor = container_of(tx, struct soft_descriptor, tx);
	struct soft_channel *channel = soft_of(tx->chan);
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	tx->cookie = channel->chan.cookie + 1;
	if (tx->cookie < DMA_MIN_COOKIE)
		tx->cookie = DMA_MIN_COOKIE;
	channel->chan.cookie = tx->cookie;
	list_add_tail(&descriptor->node, &channel->submitted);
	spin_unlock_irqrestore(&channel->lock, flags);
	return tx->cookie;
}

static struct soft_descriptor *soft_prepare(struct dma_chan *chan, dma_addr_t destination, size_t length)
{
	struct soft_descriptor *descriptor;

	if (ordered(&refuse) || ((destination | length) & ((1 << alignment_order) - 1)))
		return NULL;
	descriptor = kzalloc(sizeof(*descriptor), GFP_NOWAIT);
	if (!descriptor)
		return NULL;
	dma_async_tx_descriptor_init(&descriptor->tx, chan);
	descriptor->tx.tx_submit = soft_submit;
	descriptor->destination = destination;
	descriptor->length = length;
	descriptor->rows = 1;
	return descriptor;
}

static struct dma_async_tx_descriptor *soft_memcpy(struct dma_chan *chan, dma_addr_t destination, dma_addr_t source,
						   size_t length, unsigned long flags)
{
	struct soft_descriptor *descriptor = soft_prepare(chan, destination, length);

	if (!descriptor)
		return NULL;
	descriptor->source = source;
	return &descriptor->tx;
}

static struct dma_async_tx_descriptor *soft_memset(struct dma_chan *chan, dma_addr_t destination, int value, size_t length,
						   unsigned long flags)
{
	struct soft_descriptor *descriptor = soft_prepare(chan, destination, length);

	if (!descriptor)
		return NULL;
	descriptor->is_fill = true;
	descriptor->value = value;
	return &descriptor->tx;
}

static struct dma_async_tx_descriptor *soft_interleaved(struct dma_chan *chan, struct dma_interleaved_template *plane,
							unsigned long flags)
{
	struct soft_descriptor *descriptor;

	if (plane->frame_size != 1 || plane->dir != DMA_MEM_TO_MEM)
		return NULL;
	descriptor = soft_prepare(chan, plane->dst_start, plane->sgl[0].size);
	if (!descriptor)
		return NULL;
	descriptor->source = plane->src_start;
	descriptor->rows = plane->numf;
	descriptor->source_gap = dmaengine_get_src_icg(plane, &plane->sgl[0]);
	descriptor->destination_gap = dmaengine_get_dst_icg(plane, &plane->sgl[0]);
	return &descriptor->tx;
}

static void soft_issue(struct dma_chan *chan)
{
	struct soft_channel *channel = soft_of(chan);
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_tail_init(&channel->submitted, &channel->issued);
	spin_unlock_irqrestore(&channel->lock, flags);
	queue_work(system_unbound_wq, &channel->work);
}

static int soft_pause(struct dma_chan *chan)
{
	WRITE_ONCE(soft_of(chan)->paused, true);
	return 0;
}

static int soft_resume(struct dma_chan *chan)
{
	WRITE_ONCE(soft_of(chan)->paused, false);
	queue_work(system_unbound_wq, &soft_of(chan)->work);
	return 0;
}

static int soft_terminate(struct dma_chan *chan)
{
	struct soft_channel *channel = soft_of(chan);
	struct soft_descriptor *descriptor, *next;
	unsigned long flags;
	LIST_HEAD(all);

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_init(&channel->submitted, &all);
	list_splice_init(&channel->issued, &all);
	channel->paused = false;
	spin_unlock_irqrestore(&channel->lock, flags);
	list_for_each_entry_safe(descriptor, next, &all, node)
		kfree(descriptor);
	return 0;
}

static void soft_synchronize(struct dma_chan *chan)
{
	cancel_work_sync(&soft_of(chan)->work);
}

static void soft_free(struct dma_chan *chan)
{
	soft_terminate(chan);
	soft_synchronize(chan);
}

static enum dma_status soft_status(struct dma_chan *chan, dma_cookie_t cookie, struct dma_tx_state *state)
{
	return dma_async_is_complete(cookie, chan->completed_cookie, chan->cookie);
}

/* Clients may keep channels of a device that has lost its driver: all of it is static. */
static void soft_release(struct dma_device *device)
{
}

static void describe(void)
{
	dma_cap_set(DMA_MEMCPY, engine.cap_mask);
	dma_cap_set(DMA_MEMSET, engine.cap_mask);
	dma_cap_set(DMA_INTERLEAVE, engine.cap_mask);
	dma_cap_set(DMA_PRIVATE, engine.cap_mask);
	engine.copy_align = engine.fill_align = alignment_order;
	engine.directions = BIT(DMA_MEM_TO_MEM);
	engine.device_prep_dma_memcpy = soft_memcpy;
	engine.device_prep_dma_memset = soft_memset;
	engine.device_prep_interleaved_dma = soft_interleaved;
	engine.device_issue_pending = soft_issue;
	engine.device_tx_status = soft_status;
	engine.device_pause = soft_pause;
	engine.device_resume = soft_resume;
	engine.device_terminate_all = soft_terminate;
	if (synchronizes)
		engine.device_synchronize = soft_synchronize;
	engine.device_free_chan_resources = soft_free;
	engine.device_release = soft_release;
}

static int soft_probe(struct platform_device *device)
{
	unsigned int i;

	engine.dev = &device->dev;
	describe();
	INIT_LIST_HEAD(&engine.channels);
	for (i = 0; i < min_t(unsigned int, channels, MAX_CHANNELS); i++) {
		spin_lock_init(&soft[i].lock);
		INIT_LIST_HEAD(&soft[i].submitted);
		INIT_LIST_HEAD(&soft[i].issued);
		INIT_WORK(&soft[i].work, soft_work);
		soft[i].chan.device = &engine;
		soft[i].chan.cookie = soft[i].chan.completed_cookie = DMA_MIN_COOKIE;
		list_add_tail(&soft[i].chan.device_node, &engine.channels);
	}
	return dmaenginem_async_device_register(&engine);
}

static struct platform_driver driver = { .probe = soft_probe, .driver.name = "softdma" };

static int __init soft_init(void)
{
	struct platform_device_info info = { .name = "softdma", .id = -1 };
	int error = mask_bits - 1 < 64 ? platform_driver_register(&driver) : -EINVAL;

	if (error)
		return error;
	info.dma_mask = DMA_BIT_MASK(mask_bits);
	platform = platform_device_register_full(&info);
	if (!IS_ERR(platform))
		return 0;
	platform_driver_unregister(&driver);
	return PTR_ERR(platform);
}

static void __exit soft_exit(void)
{
	platform_device_unregister(platform);
	platform_driver_unregister(&driver);
}

module_init(soft_init);
module_exit(soft_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A DMA engine in software, with faults on request");
