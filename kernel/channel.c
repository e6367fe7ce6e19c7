// SPDX-License-Identifier: GPL-2.0
/*
 * DMA channels of dmaengine. Each channel has one line of transfers for each client, and moves transfers batch by batch.
 *
 *   submit ─► line ─ its turn ─► work item: current ─► pieces ─ caches written back ─► prep, submit, issue
 *              ▲                     ▲                                                      │ callbacks count down
 *              └─ others wait ───────┼── landed ◄───────────────────────────────────────────┘
 *                          ├── timer: deadline of the current transfer ─► dmaengine_terminate_sync ─► -ETIMEDOUT
 *                          │          deadline of a waiting one ─► removed from its line ─► -ETIMEDOUT
 *                          └── gate: the policy halts or continues the channel
 *
 * A transfer ends when the engine no longer accesses its memory. If an engine hangs and its driver does not guarantee that
 * termination stops it, a fence is sent: a small copy behind the batch (fence.c). When the fence passes, the driver had dropped the
 * batch without a word, and the transfer fails. If it does not pass, the channel is faulted, and the regions of the transfer stay
 * pinned until it does, or until the driver lets go of a PCI device (not idxd: device.c).
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "memferry.h"

/* ---- one batch ---- */

static void sync_piece(const struct mf_channel *channel, const struct mf_transfer *transfer, const struct mf_piece *piece,
		       bool for_device)
{
	dma_addr_t source = piece->source, destination = piece->destination;
	const struct mf_segment *segment = piece->segment;
	u32 row;

	for (row = 0; row < piece->rows; row++) {
		if (!for_device) {
			dma_sync_single_for_cpu(channel->device, destination, piece->length,
						segment->destination_map->direction);
		} else {
			if (segment->source)
				dma_sync_single_for_device(channel->device, source, piece->length,
							   segment->source_map->direction);
			dma_sync_single_for_device(channel->device, destination, piece->length,
						   segment->destination_map->direction);
		}
		source += transfer->source_pitch;
		destination += transfer->destination_pitch;
	}
}

static struct dma_async_tx_descriptor *prepare(struct mf_channel *channel, const struct mf_transfer *transfer,
					       const struct mf_piece *piece)
{
	unsigned long flags = DMA_PREP_INTERRUPT | DMA_CTRL_ACK;

	if (piece->rows > 1) {
		struct dma_interleaved_template *plane = channel->plane;

		plane->src_start = piece->source;
		plane->dst_start = piece->destination;
		plane->numf = piece->rows;
		plane->sgl[0].size = piece->length;
		plane->sgl[0].src_icg = transfer->source_pitch - piece->length;
		plane->sgl[0].dst_icg = transfer->destination_pitch - piece->length;
		return dmaengine_prep_interleaved_dma(channel->chan, plane, flags);
	}
	if (mf_is_memset(transfer))
		return dmaengine_prep_dma_memset(channel->chan, piece->destination, transfer->pattern[0], piece->length,
						 flags);
	return dmaengine_prep_dma_memcpy(channel->chan, piece->destination, piece->source, piece->length, flags);
}

static void landed(void *parameter, const struct dmaengine_result *result)
{
	struct mf_flight *flight = parameter;
	struct mf_channel *channel = flight->channel;
	unsigned long flags;
	bool last;

	spin_lock_irqsave(&channel->lock, flags);
	if (flight->batch != channel->batch) {
		spin_unlock_irqrestore(&channel->lock, flags);
		return;
	}
	if (result && result->result != DMA_TRANS_NOERROR)
		channel->error = -EIO;
	last = channel->flying && !--channel->flying && channel->state == MF_FLYING;
	if (last)
		queue_work(mf_works, &channel->work);
	spin_unlock_irqrestore(&channel->lock, flags);
}

static bool hand_over(struct mf_channel *channel, const struct mf_transfer *transfer, const struct mf_piece *piece)
{
	struct mf_flight *flight = &channel->flights[channel->flights_count];
	struct dma_async_tx_descriptor *descriptor;
	unsigned long flags;

	sync_piece(channel, transfer, piece, true);
	descriptor = prepare(channel, transfer, piece);
	if (!descriptor)
		return false;
	flight->channel = channel;
	flight->batch = channel->batch;
	flight->piece = *piece;
	descriptor->callback_result = landed;
	descriptor->callback_param = flight;
	spin_lock_irqsave(&channel->lock, flags);
	channel->flying++;
	spin_unlock_irqrestore(&channel->lock, flags);
	if (dma_submit_error(dmaengine_submit(descriptor))) {
		spin_lock_irqsave(&channel->lock, flags);
		channel->flying--;
		spin_unlock_irqrestore(&channel->lock, flags);
		return false;
	}
	channel->flights_count++;
	return true;
}

/* Hands the engine a batch. Returns whether nothing is left for the engine. */
static bool issue(struct mf_channel *channel, struct mf_transfer *transfer)
{
	unsigned long flags;
	unsigned int looked;
	bool over = false;
	u64 bytes = 0;

	channel->served = true;
	/* The CPU's pieces count too, so that the loop ends soon enough to check for cancels and other clients. */
	for (looked = 0; looked < MF_LOOKED_PIECES; looked++) {
		struct mf_cursor next = transfer->cursor;
		struct mf_piece piece;

		if (channel->flights_count == MF_BATCH_PIECES || bytes >= MF_BATCH_BYTES)
			break;
		over = !mf_walk(transfer, &next, &piece);
		if (over)
			break;
		if (piece.by_cpu) {
			transfer->cpu_parts = true;
		} else if (hand_over(channel, transfer, &piece)) {
			bytes += piece.rows * piece.length;
		} else {
			/* Out of descriptors for now, or, if the batch is empty, refused: then the CPU moves the rest. */
			over = !channel->flights_count;
			if (over)
				transfer->cpu_from = transfer->cursor.done;
			break;
		}
		transfer->cursor = next;
		cond_resched();
	}
	if (!channel->flights_count)
		return over;
	channel->watchdog = jiffies + msecs_to_jiffies(READ_ONCE(mf_watchdog_ms));
	/* Callbacks before this point did not queue the work item, so the caller checks again. */
	spin_lock_irqsave(&channel->lock, flags);
	channel->state = MF_FLYING;
	spin_unlock_irqrestore(&channel->lock, flags);
	dma_async_issue_pending(channel->chan);
	return false;
}

/* Ends a batch: makes its bytes visible to the CPU, and counts them if done. */
static void settle(struct mf_channel *channel, struct mf_transfer *transfer, bool done)
{
	unsigned long flags;
	unsigned int i;

	for (i = 0; i < channel->flights_count; i++) {
		const struct mf_piece *piece = &channel->flights[i].piece;

		sync_piece(channel, transfer, piece, false);
		if (done)
			transfer->by_dma += piece->rows * piece->length;
	}
	channel->flights_count = 0;
	spin_lock_irqsave(&channel->lock, flags);
	channel->batch++;
	spin_unlock_irqrestore(&channel->lock, flags);
	if (done)
		transfer->landed = transfer->cursor.done;
}

/* ---- transfers one after the other, clients by turns ---- */

void mf_line_init(struct mf_line *line)
{
	INIT_LIST_HEAD(&line->node);
	INIT_LIST_HEAD(&line->transfers);
}

static struct mf_line *line_of(struct mf_channel *channel, const struct mf_transfer *transfer)
{
	return transfer->client ? &transfer->client->lines[channel->number] : &channel->kernels;
}

static bool is_earlier(struct rb_node *one, const struct rb_node *other)
{
	return time_before(rb_entry(one, struct mf_transfer, by_deadline)->deadline,
			   rb_entry(other, struct mf_transfer, by_deadline)->deadline);
}

/* Adds a transfer to its line, at the head if is_next, else at the tail. A line that was empty goes behind all others. */
static void enqueue(struct mf_channel *channel, struct mf_transfer *transfer, bool is_next)
{
	struct mf_line *line = line_of(channel, transfer);

	if (is_next)
		list_add(&transfer->node, &line->transfers);
	else
		list_add_tail(&transfer->node, &line->transfers);
	if (list_empty(&line->node))
		list_add_tail(&line->node, &channel->lines);
	rb_add_cached(&transfer->by_deadline, &channel->waiting, is_earlier);
}

static void dequeue(struct mf_channel *channel, struct mf_transfer *transfer)
{
	struct mf_line *line = line_of(channel, transfer);

	list_del_init(&transfer->node);
	if (list_empty(&line->transfers))
		list_del_init(&line->node);
	rb_erase_cached(&transfer->by_deadline, &channel->waiting);
}

/* The waiting transfer with the earliest deadline; NULL if none waits. */
static struct mf_transfer *most_urgent(const struct mf_channel *channel)
{
	return rb_entry_safe(rb_first_cached(&channel->waiting), struct mf_transfer, by_deadline);
}

/* Removes the transfer whose turn it is, and moves its line behind the others. NULL if none waits. */
static struct mf_transfer *take_next(struct mf_channel *channel)
{
	struct mf_line *line = list_first_entry_or_null(&channel->lines, struct mf_line, node);
	struct mf_transfer *transfer;

	if (!line)
		return NULL;
	list_move_tail(&line->node, &channel->lines);
	transfer = list_first_entry(&line->transfers, struct mf_transfer, node);
	dequeue(channel, transfer);
	return transfer;
}

/* Assigns the rest of the transfer to the CPU, or fails it with MEMFERRY_DMA_ONLY. */
static void leave_to_cpu(struct mf_transfer *transfer)
{
	transfer->cpu_from = min(transfer->cpu_from, transfer->landed);
	if (transfer->flags & MEMFERRY_DMA_ONLY)
		transfer->status = -ENODEV;
}

/* Writes the pattern to its pages, with the phase that it has at the start of the fill's first page. */
static void spread_pattern(struct mf_channel *channel, const struct mf_transfer *transfer)
{
	const struct mf_segment *segment = transfer->segments;
	unsigned int phase = (segment->destination->first + segment->destination_offset) % 4, i;
	size_t length = PAGE_SIZE << channel->pattern_order;
	u8 turned[4];
	u32 word;

	if (transfer->operation != MEMFERRY_FILL || mf_is_memset(transfer))
		return;
	for (i = 0; i < 4; i++)
		turned[i] = transfer->pattern[(i - phase) % 4];
	memcpy(&word, turned, sizeof(word));
	memset32(page_address(channel->pattern), word, length / sizeof(word));
	dma_sync_single_for_device(channel->device, channel->pattern_address, length, DMA_TO_DEVICE);
}

static struct mf_transfer *begin(struct mf_channel *channel)
{
	struct mf_transfer *transfer = NULL;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	if (channel->state != MF_FAULTED && !channel->gated && !channel->leaving)
		transfer = take_next(channel);
	if (transfer) {
		channel->current_transfer = transfer;
		channel->served = false;
		channel->state = MF_LANDED;
		channel->flying = 0;
		channel->error = 0;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	if (!transfer)
		return NULL;
	spread_pattern(channel, transfer);
	return transfer;
}

/* If other clients wait, puts the current transfer back into its line until the client's next turn. Returns whether. */
static bool give_way(struct mf_channel *channel, struct mf_transfer *transfer)
{
	struct list_head *own = &line_of(channel, transfer)->node;
	unsigned long flags;
	bool others;

	spin_lock_irqsave(&channel->lock, flags);
	others = channel->served && !list_empty(&channel->lines) &&
		 (channel->lines.next != own || !list_is_singular(&channel->lines));
	if (others) {
		enqueue(channel, transfer, true);
		list_move_tail(own, &channel->lines);
		channel->current_transfer = NULL;
		channel->state = MF_IDLE;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	return others;
}

static void finish(struct mf_channel *channel, struct mf_transfer *transfer, int status)
{
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	channel->current_transfer = NULL;
	channel->stuck = false;
	if (channel->state != MF_FAULTED)
		channel->state = MF_IDLE;
	channel->load--;
	channel->transfers++;
	channel->bytes += transfer->by_dma;
	if (status == -ETIMEDOUT)
		channel->timeouts++;
	else if (status == -EIO)
		channel->errors++;
	spin_unlock_irqrestore(&channel->lock, flags);
	transfer->status = status;
	/* The CPU moves its pieces between the engine's, and what the engine refused. */
	if (!transfer->quarantined && (transfer->cpu_parts || transfer->cpu_from != U64_MAX)) {
		queue_work(mf_copies, &transfer->work);
		return;
	}
	mf_transfer_end(transfer);
}

/* Empties all lines of a channel that is out of use: the CPU moves the waiting transfers. */
static void abandon_queue(struct mf_channel *channel)
{
	struct mf_transfer *transfer;
	unsigned long flags;

	do {
		/* One at a time: either this or a cancel removes a transfer from its line, and that one ends it. */
		spin_lock_irqsave(&channel->lock, flags);
		transfer = take_next(channel);
		if (transfer) {
			channel->load--;
			leave_to_cpu(transfer);
			queue_work(mf_copies, &transfer->work);
		}
		spin_unlock_irqrestore(&channel->lock, flags);
	} while (transfer);
}

/* Ends waiting transfers whose deadline has passed, so that another client's transfer cannot delay their time-out. */
static void end_late(struct mf_channel *channel)
{
	struct mf_transfer *transfer;
	unsigned long flags;

	do {
		spin_lock_irqsave(&channel->lock, flags);
		transfer = most_urgent(channel);
		if (transfer && !time_after(jiffies, transfer->deadline))
			transfer = NULL;
		if (transfer) {
			dequeue(channel, transfer);
			channel->load--;
			channel->timeouts++;
			/* Not in mf_copies, behind copies: the work item only finds that the transfer is late. */
			queue_work(mf_works, &transfer->work);
		}
		spin_unlock_irqrestore(&channel->lock, flags);
	} while (transfer);
}

/* The engine hangs in kernel memory, which cannot be taken from its owner: no other transfer waits here meanwhile. */
static void get_stuck(struct mf_channel *channel)
{
	unsigned long flags;
	bool was_stuck;

	spin_lock_irqsave(&channel->lock, flags);
	was_stuck = channel->stuck;
	channel->stuck = true;
	spin_unlock_irqrestore(&channel->lock, flags);
	if (was_stuck)
		return;
	pr_err("%s: a transfer in kernel memory hangs and cannot be stopped; the channel is not used until it ends\n",
	       channel->name);
	abandon_queue(channel);
}

/* Keeps references on the regions of a transfer for the time in which a faulted engine may access them. */
static void keep_regions(struct mf_channel *channel, struct mf_transfer *transfer)
{
	unsigned int i, side;

	transfer->quarantined = true;
	channel->kept = kvmalloc_array(2 * transfer->count, sizeof(*channel->kept), GFP_KERNEL);
	for (i = 0; i < transfer->count; i++) {
		struct mf_region *regions[] = { transfer->segments[i].source, transfer->segments[i].destination };

		for (side = 0; side < ARRAY_SIZE(regions); side++) {
			if (!regions[side])
				continue;
			atomic_inc(&regions[side]->quarantines);
			/* Without memory for the list, these regions stay pinned for ever. */
			if (channel->kept)
				channel->kept[channel->kept_count++] = regions[side];
		}
	}
}

/* Drops these references: the engine does not access the regions any more. */
static void release_kept(struct mf_channel *channel)
{
	while (channel->kept_count) {
		struct mf_region *region = channel->kept[--channel->kept_count];

		atomic_dec(&region->quarantines);
		mf_region_put(region);
	}
	kvfree(channel->kept);
	channel->kept = NULL;
}

/* Faults the channel, whose engine may still access the memory of the transfer, if there is one. */
static void give_up(struct mf_channel *channel, struct mf_transfer *transfer)
{
	unsigned long flags;

	__module_get(THIS_MODULE);
	spin_lock_irqsave(&channel->lock, flags);
	channel->state = MF_FAULTED;
	channel->timeouts += !!transfer;
	spin_unlock_irqrestore(&channel->lock, flags);
	if (transfer) {
		keep_regions(channel, transfer);
		/* The CPU's pieces between the engine's are missing. */
		if (transfer->cpu_parts)
			transfer->landed = 0;
		finish(channel, transfer, -ENOTRECOVERABLE);
	}
	abandon_queue(channel);
}

/* Stops the engine in the current transfer. Returns whether the transfer has ended. */
static bool stop(struct mf_channel *channel, struct mf_transfer *transfer, int status)
{
	int error = dmaengine_terminate_sync(channel->chan);

	channel->paused = false;
	if (channel->chan->device->device_terminate_all)
		mf_fences_end(channel);
	if (channel->can_stop && !error) {
		settle(channel, transfer, false);
		finish(channel, transfer, status);
		return true;
	}
	if (channel->can_stop) {
		/* The driver cannot stop it after all: from now on only the watchdog limits a batch. */
		pr_warn("%s: could not be stopped: error %d\n", channel->name, error);
		channel->can_stop = false;
		return false;
	}
	pr_err("%s: a transfer hangs and cannot be stopped; its memory stays pinned, and the channel is not used\n",
	       channel->name);
	give_up(channel, transfer);
	mod_timer(&channel->timer, channel->fence_due + 1);
	return true;
}

/* A snapshot of the current transfer's state. */
struct view {
	bool flies;
	bool late;
	bool gated;
	int error;
};

static struct view look(struct mf_channel *channel, const struct mf_transfer *transfer)
{
	unsigned long flags;
	struct view view;

	spin_lock_irqsave(&channel->lock, flags);
	if (channel->state == MF_FLYING && channel->flying && channel->passed) {
		/* The driver dropped descriptors of this batch without calling back. */
		channel->flying = 0;
		channel->error = -EIO;
		channel->batch++;
	}
	channel->passed = false;
	view.flies = channel->state == MF_FLYING && channel->flying;
	view.gated = channel->gated;
	view.late = !view.gated && time_after(jiffies, transfer->deadline);
	view.error = channel->error;
	if (!view.flies)
		channel->state = MF_LANDED;
	spin_unlock_irqrestore(&channel->lock, flags);
	return view;
}

/* Pauses or resumes the engine in a batch. Not done in the policy's timer, because some drivers sleep here. */
static void follow_gate(struct mf_channel *channel, bool gated)
{
	const struct dma_device *engine = channel->chan->device;

	if (gated == channel->paused || !engine->device_pause || !engine->device_resume)
		return;
	if (gated) {
		channel->paused = !dmaengine_pause(channel->chan);
		channel->paused_since = jiffies;
	} else {
		channel->paused = dmaengine_resume(channel->chan);
		/* The watchdog does not count the pause. */
		if (!channel->paused)
			channel->watchdog += jiffies - channel->paused_since;
	}
}

/* Sets the timer of the channel's work item to next, or to an earlier deadline of a waiting transfer. */
static void look_up_at(struct mf_channel *channel, unsigned long next)
{
	const struct mf_transfer *transfer;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	transfer = most_urgent(channel);
	if (transfer && time_before(transfer->deadline, next))
		next = transfer->deadline;
	spin_unlock_irqrestore(&channel->lock, flags);
	mod_timer(&channel->timer, next + 1);
}

/*
 * Handles a transfer that the engine is moving. Returns whether it was stopped. An engine that can be stopped is stopped at
 * the transfer's deadline. Otherwise only the watchdog ends the wait, even after the program's death, because the memory and
 * the channel would be lost; it sends a fence first, and gives it the same time. Kernel memory cannot be withheld from its
 * owner, so the wait for it has no limit.
 */
static bool wait_on(struct mf_channel *channel, struct mf_transfer *transfer, const struct view *view)
{
	bool is_wanted = !view->late && !READ_ONCE(transfer->urgent);
	unsigned long next = is_wanted ? transfer->deadline : channel->watchdog;
	bool hangs;

	follow_gate(channel, view->gated);
	/* A paused engine makes no progress. One that cannot be paused keeps running behind a closed gate. */
	hangs = time_after(jiffies, channel->watchdog) && !(view->gated && channel->paused);
	if (!channel->can_stop && hangs && mf_fence_send(channel, true)) {
		pr_warn("%s: a transfer hangs; whether the driver dropped it is shown by a copy behind it\n", channel->name);
		channel->watchdog = jiffies + msecs_to_jiffies(READ_ONCE(mf_watchdog_ms));
		hangs = false;
	}
	if (!channel->can_stop && transfer->is_kernels) {
		if (hangs) {
			get_stuck(channel);
			if (time_after(jiffies, channel->fence_due))
				mf_fence_send(channel, false);
		}
	} else if (channel->can_stop ? !is_wanted : hangs) {
		if (stop(channel, transfer, view->late ? -ETIMEDOUT : -ECANCELED))
			return true;
	}
	if (!channel->can_stop)
		next = channel->watchdog;
	look_up_at(channel, time_after(next, jiffies) ? next : jiffies + HZ);
	return false;
}

/* Advances the current transfer. Returns whether the channel is free for another one. */
static bool advance(struct mf_channel *channel, struct mf_transfer *transfer)
{
	for (;;) {
		struct view view = look(channel, transfer);
		bool cancelled = READ_ONCE(transfer->cancelled);

		if (view.flies)
			return wait_on(channel, transfer, &view);
		follow_gate(channel, false);
		settle(channel, transfer, !view.error);
		if (view.error) {
			finish(channel, transfer, view.error);
			return true;
		}
		/* A transfer that is complete succeeds, even after a cancel or its deadline. */
		if (transfer->landed < transfer->total && (cancelled || view.late)) {
			finish(channel, transfer, cancelled ? -ECANCELED : -ETIMEDOUT);
			return true;
		}
		if (view.gated || READ_ONCE(channel->leaving))
			return false;
		if (give_way(channel, transfer))
			return true;
		if (issue(channel, transfer))
			break;
	}
	/* Nothing is left for the engine, or it refused the rest. */
	transfer->landed = transfer->cursor.done;
	if (transfer->cpu_from != U64_MAX)
		leave_to_cpu(transfer);
	finish(channel, transfer, transfer->status);
	return true;
}

/* Ends what a channel has whose device leaves: the engine accesses nothing any more, and reports nothing. */
static void leave(struct mf_channel *channel)
{
	struct mf_transfer *transfer = channel->current_transfer;
	unsigned long flags;
	struct view view;

	if (transfer) {
		view = look(channel, transfer);
		settle(channel, transfer, !view.flies && !view.error);
		/* The CPU moves the rest, unless the engine had a part of it, whose bytes are in doubt. */
		if (view.flies || view.error)
			transfer->status = -EIO;
		else if (transfer->landed < transfer->total)
			leave_to_cpu(transfer);
	}
	spin_lock_irqsave(&channel->lock, flags);
	channel->state = MF_FAULTED;
	channel->flying = 0;
	spin_unlock_irqrestore(&channel->lock, flags);
	if (transfer)
		finish(channel, transfer, transfer->status);
	abandon_queue(channel);
}

/* Puts a faulted channel back into use if a fence passed after all, or tries the next one. */
static void recover(struct mf_channel *channel)
{
	bool recovers, waits;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	recovers = channel->state == MF_FAULTED && channel->passed;
	waits = channel->state == MF_FAULTED && mf_fence_may_follow(channel);
	if (recovers) {
		channel->state = MF_IDLE;
		channel->passed = false;
		channel->flying = 0;
		channel->flights_count = 0;
		channel->batch++;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	if (waits) {
		if (time_after(jiffies, channel->fence_due))
			mf_fence_send(channel, false);
		mod_timer(&channel->timer, channel->fence_due + 1);
	}
	if (!recovers)
		return;
	pr_info("%s: the engine went on and is used again\n", channel->name);
	release_kept(channel);
	module_put(THIS_MODULE);
}

static void channel_work(struct work_struct *work)
{
	struct mf_channel *channel = container_of(work, struct mf_channel, work);

	if (READ_ONCE(channel->gone)) {
		leave(channel);
		return;
	}
	/* All that ends meanwhile is looked at by who lets go of the device. */
	if (READ_ONCE(channel->leaving))
		return;
	recover(channel);
	end_late(channel);
	do {
		struct mf_transfer *transfer = channel->current_transfer;

		if (!transfer)
			transfer = begin(channel);
		if (!transfer || !advance(channel, transfer))
			return;
		cond_resched();
	} while (READ_ONCE(channel->state) != MF_FAULTED);
}

static void channel_late(struct timer_list *timer)
{
	queue_work(mf_works, &container_of(timer, struct mf_channel, timer)->work);
}

/* ---- functions for the other parts of the module ---- */

/* Prepares the parts of a new channel that this file uses. */
void mf_channel_init(struct mf_channel *channel)
{
	spin_lock_init(&channel->lock);
	INIT_LIST_HEAD(&channel->lines);
	INIT_LIST_HEAD(&channel->fences_sent);
	channel->waiting = RB_ROOT_CACHED;
	mf_line_init(&channel->kernels);
	INIT_WORK(&channel->work, channel_work);
	timer_setup(&channel->timer, channel_late, 0);
	channel->fenced_batch = ~0U;
}

/* Queues a transfer. False if the channel is faulted or stuck, or if the transfer was cancelled meanwhile. */
bool mf_channel_submit(struct mf_channel *channel, struct mf_transfer *transfer)
{
	bool taken, cancelled;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	/* A cancel sets the mark first and then searches the line, so either this or the cancel finds the other. */
	cancelled = READ_ONCE(transfer->cancelled);
	taken = channel->state != MF_FAULTED && !channel->stuck && !cancelled;
	if (taken) {
		enqueue(channel, transfer, false);
		channel->load++;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	if (taken)
		queue_work(mf_works, &channel->work);
	else if (!cancelled)
		leave_to_cpu(transfer);
	return taken;
}

/*
 * Ends a transfer that was marked as cancelled: at once while it waits, else between batches. The caller ensures that the
 * transfer is not freed meanwhile.
 */
void mf_channel_cancel(struct mf_channel *channel, struct mf_transfer *transfer)
{
	unsigned long flags;
	bool waited;

	spin_lock_irqsave(&channel->lock, flags);
	waited = !list_empty(&transfer->node) && channel->current_transfer != transfer;
	if (waited) {
		dequeue(channel, transfer);
		channel->load--;
	}
	spin_unlock_irqrestore(&channel->lock, flags);
	if (waited) {
		/*
		 * The CPU's work item ends it, because this may be called with locks held. That moves at most the CPU's
		 * pieces between the engine's pieces of earlier turns.
		 */
		queue_work(mf_works, &transfer->work);
	} else {
		queue_work(mf_works, &channel->work);
	}
}

/* Closes or opens the gate, in any context. Closed: no further batch begins, and the engine is paused if possible. */
void mf_channel_gate(struct mf_channel *channel, bool closed)
{
	struct mf_transfer *current_transfer;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	if (channel->gated != closed) {
		channel->gated = closed;
		current_transfer = channel->current_transfer;
		if (closed) {
			channel->gates++;
			channel->gated_since = jiffies;
		} else if (current_transfer) {
			/* The time behind the closed gate does not count. */
			current_transfer->deadline += jiffies - channel->gated_since;
		}
		queue_work(mf_works, &channel->work);
	}
	spin_unlock_irqrestore(&channel->lock, flags);
}

/* The engine's operations beyond copying: MEMFERRY_CAN_*. */
unsigned int mf_channel_can(const struct mf_channel *channel)
{
	return channel->abilities;
}

/* ---- losing channels: for device.c, once the work item does nothing any more ---- */

/* Ends the transfers of a channel whose engine accesses no memory any more. */
void mf_channel_depart(struct mf_channel *channel)
{
	unsigned long flags;
	bool was_faulted;

	pr_warn("%s: it is gone; the CPU moves its transfers\n", channel->name);
	spin_lock_irqsave(&channel->lock, flags);
	channel->gone = true;
	was_faulted = channel->state == MF_FAULTED;
	spin_unlock_irqrestore(&channel->lock, flags);
	queue_work(mf_works, &channel->work);
	flush_work(&channel->work);
	if (was_faulted) {
		release_kept(channel);
		module_put(THIS_MODULE);
	}
}

/* Waits until the engine of a channel that begins nothing more accesses no memory, as long as a batch may take. Returns whether. */
bool mf_channel_falls_silent(struct mf_channel *channel)
{
	unsigned long until = jiffies + msecs_to_jiffies(READ_ONCE(mf_watchdog_ms));
	struct mf_transfer *transfer = channel->current_transfer;

	if (channel->state == MF_FAULTED && !channel->passed)
		return false;
	if (channel->can_stop && !dmaengine_terminate_sync(channel->chan))
		return true;
	follow_gate(channel, false);
	while (transfer && look(channel, transfer).flies) {
		if (time_after(jiffies, until))
			return false;
		usleep_range(1000, 2000);
	}
	return list_empty(&channel->fences_sent);
}

/* The engine of a channel may go on without its driver: what it may access stays, and copies of the kernel in it do not end. */
void mf_channel_lose(struct mf_channel *channel)
{
	struct mf_transfer *transfer = channel->current_transfer;

	channel->lost = true;
	pr_err("%s: its device leaves and may still access memory, which stays pinned\n", channel->name);
	if (transfer && transfer->is_kernels)
		get_stuck(channel);
	else if (channel->state != MF_FAULTED)
		give_up(channel, transfer);
}
