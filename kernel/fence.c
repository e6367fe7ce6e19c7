// SPDX-License-Identifier: GPL-2.0
/*
 * Fences: small copies behind a batch that hangs. Channels that have fences work in order, so one that passes shows that the engine
 * and its driver are done with the batch.
 *
 *   a batch hangs ─► fence ─┬─ passes ─► channel->passed
 *                           ├─ ends with an error, or is refused ─► another one later: the driver may be about to stop the engine
 *                           └─ no word ─► another one later: a driver that resets its channel may forget it
 *
 * Each fence knows its batch, so one that passes late says nothing about a later batch.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "memferry.h"

#define FENCE_BYTES	64
/* Fences behind one batch, and the least time between them: together longer than a driver takes to reset its channel. */
#define FENCES		16
#define FENCE_GAP_MS	1000U

struct mf_fence {
	struct list_head node;
	struct mf_channel *channel;
	unsigned int batch;
};

static void fence_passed(void *parameter, const struct dmaengine_result *result)
{
	struct mf_fence *fence = parameter;
	struct mf_channel *channel = fence->channel;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	list_del(&fence->node);
	/* A fence that was aborted says nothing: the driver may be about to stop the engine. */
	if (fence->batch == channel->batch && (!result || result->result == DMA_TRANS_NOERROR))
		channel->passed = true;
	queue_work(mf_works, &channel->work);
	spin_unlock_irqrestore(&channel->lock, flags);
	kfree(fence);
}

static void forget(struct mf_fence *fence)
{
	unsigned long flags;

	spin_lock_irqsave(&fence->channel->lock, flags);
	list_del(&fence->node);
	spin_unlock_irqrestore(&fence->channel->lock, flags);
	kfree(fence);
}

/* Whether the fence is the first one of its batch, or one more, as it should be; then it counts. */
static bool enlist(struct mf_channel *channel, struct mf_fence *fence, bool first)
{
	unsigned long flags;
	bool sends;

	spin_lock_irqsave(&channel->lock, flags);
	sends = first == (channel->fenced_batch != channel->batch);
	if (first && sends) {
		channel->fenced_batch = channel->batch;
		channel->fences = 0;
	}
	sends = sends && channel->fences < FENCES;
	if (sends) {
		channel->fences++;
		fence->batch = channel->batch;
		list_add_tail(&fence->node, &channel->fences_sent);
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	return sends;
}

/* Sends a fence behind the batch, the first or one more. Returns whether. Only the channel's work item may call this. */
bool mf_fence_send(struct mf_channel *channel, bool first)
{
	unsigned int gap = max(READ_ONCE(mf_watchdog_ms), FENCE_GAP_MS);
	struct dma_async_tx_descriptor *descriptor;
	struct mf_fence *fence;

	if (!channel->fence)
		return false;
	fence = kmalloc(sizeof(*fence), GFP_KERNEL);
	if (!fence)
		return false;
	fence->channel = channel;
	if (!enlist(channel, fence, first)) {
		kfree(fence);
		return false;
	}
	channel->fence_due = jiffies + msecs_to_jiffies(gap);
	descriptor = dmaengine_prep_dma_memcpy(channel->chan, channel->fence_address + PAGE_SIZE / 2,
					       channel->fence_address, FENCE_BYTES, DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!descriptor) {
		forget(fence);
		return false;
	}
	descriptor->callback_result = fence_passed;
	descriptor->callback_param = fence;
	if (dma_submit_error(dmaengine_submit(descriptor))) {
		forget(fence);
		return false;
	}
	dma_async_issue_pending(channel->chan);
	return true;
}

/* Whether another fence may be sent behind the batch, at channel->fence_due. The caller holds the channel's lock. */
bool mf_fence_may_follow(const struct mf_channel *channel)
{
	return !channel->passed && channel->fenced_batch == channel->batch && channel->fences < FENCES;
}

/* From now on a fence would not be behind the batch, because the driver has taken that from its queue. */
void mf_fences_end(struct mf_channel *channel)
{
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	channel->fenced_batch = channel->batch;
	channel->fences = FENCES;
	spin_unlock_irqrestore(&channel->lock, flags);
}

/* Frees what the driver forgot. It calls back no more. */
void mf_fences_free(struct mf_channel *channel)
{
	struct mf_fence *fence, *next;

	list_for_each_entry_safe(fence, next, &channel->fences_sent, node)
		kfree(fence);
	INIT_LIST_HEAD(&channel->fences_sent);
}
