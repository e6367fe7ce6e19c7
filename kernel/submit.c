// SPDX-License-Identifier: GPL-2.0
/*
 * Makes a transfer of a request. All checks are here, done once on the kernel's copy of the request.
 *
 *   memferry_transfer ─ shape ─► segments ─ handles, rights, ranges ─► mf_transfer ─ place ─► channel or CPU ─ start
 */
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "memferry.h"

/* The submitter moves CPU transfers up to this size itself; a work item moves longer ones. */
#define AT_ONCE_BYTES	(64UL << 10)

struct mf_transfer *mf_transfer_new(unsigned int count)
{
	struct mf_transfer *transfer;

	transfer = kvzalloc(struct_size(transfer, segments, count), GFP_KERNEL_ACCOUNT);
	if (!transfer)
		return NULL;
	INIT_LIST_HEAD(&transfer->node);
	INIT_LIST_HEAD(&transfer->of_client);
	INIT_WORK(&transfer->work, mf_cpu_work);
	transfer->rows = 1;
	transfer->cpu_from = U64_MAX;
	transfer->count = count;
	return transfer;
}

/* Releases the regions. Those of a quarantined transfer keep a reference, which its channel drops when it may. */
static void release_regions(struct mf_transfer *transfer)
{
	unsigned int i, side;

	for (i = 0; i < transfer->count; i++) {
		struct mf_region *regions[] = { transfer->segments[i].source, transfer->segments[i].destination };

		for (side = 0; side < ARRAY_SIZE(regions); side++) {
			if (!regions[side])
				continue;
			if (atomic_dec_and_test(&regions[side]->users))
				wake_up(&regions[side]->unused);
			if (!transfer->quarantined)
				mf_region_put(regions[side]);
		}
	}
}

/* Frees a transfer that never started, or whose regions were released. */
void mf_transfer_free(struct mf_transfer *transfer)
{
	kvfree(transfer);
}

/* Ends a started transfer, in any context. */
void mf_transfer_end(struct mf_transfer *transfer)
{
	if (!transfer->status && transfer->landed < transfer->total)
		transfer->status = -ECANCELED;
	release_regions(transfer);
	transfer->ended(transfer);
}

/* ---- checks ---- */

static int check_shape(const struct memferry_transfer *request)
{
	bool is_list = request->operation == MEMFERRY_LIST, is_plane = request->operation == MEMFERRY_PLANE;
	bool is_fill = request->operation == MEMFERRY_FILL;

	if (request->operation > MEMFERRY_PLANE || request->reserved || request->source.reserved ||
	    request->destination.reserved)
		return -EINVAL;
	if (request->flags & ~(MEMFERRY_CPU_ONLY | MEMFERRY_DMA_ONLY))
		return -EINVAL;
	if ((request->flags & MEMFERRY_CPU_ONLY) && (request->flags & MEMFERRY_DMA_ONLY))
		return -EINVAL;
	if (request->patience_ms > MEMFERRY_MAX_PATIENCE_MS || request->length > MEMFERRY_MAX_BYTES)
		return -EINVAL;
	if (!is_list && (request->segments || request->segment_count))
		return -EINVAL;
	if (is_list && (request->segment_count > MEMFERRY_MAX_SEGMENTS || request->length || request->source.region ||
			request->destination.region))
		return -EINVAL;
	if (!is_plane && (request->rows || request->source_pitch || request->destination_pitch))
		return -EINVAL;
	/* Destination rows must not overlap, so a transfer moves no more bytes than the region has. */
	if (is_plane && (!request->rows || (request->rows > 1 && request->destination_pitch < request->length)))
		return -EINVAL;
	if (!is_fill && (request->pattern || request->pattern_bytes))
		return -EINVAL;
	if (is_fill && (request->source.region || request->source.offset))
		return -EINVAL;
	if (is_fill && request->pattern_bytes != 1 && request->pattern_bytes != 2 && request->pattern_bytes != 4)
		return -EINVAL;
	return 0;
}

/* Whether all rows of length bytes, the first at offset, lie in the region. */
static bool is_inside(const struct mf_region *region, u64 offset, u64 length, u32 rows, u64 pitch)
{
	u64 reach, end;

	if (!length)
		return offset <= region->length;
	if (check_mul_overflow((u64)rows - 1, pitch, &reach) || check_add_overflow(reach, length, &reach) ||
	    check_add_overflow(offset, reach, &end))
		return false;
	return end <= region->length;
}

/* Checks one side of a segment and takes a reference on its region. */
static int hold(struct mf_client *client, const struct memferry_place *place, u64 length, u32 rows, u64 pitch, u32 right,
		struct mf_region **held)
{
	struct mf_region *region;

	if (place->reserved)
		return -EINVAL;
	region = mf_client_region(client, place->region);
	if (!region)
		return -ENOENT;
	if (!(region->rights & right))
		return -EACCES;
	if (!is_inside(region, place->offset, length, rows, pitch))
		return -ERANGE;
	kref_get(&region->references);
	atomic_inc(&region->users);
	*held = region;
	return 0;
}

static int fill_segment(struct mf_client *client, struct mf_transfer *transfer, struct mf_segment *segment,
			const struct memferry_segment *from)
{
	u64 total;
	int error = 0;

	if (from->length > MEMFERRY_MAX_BYTES)
		return -EINVAL;
	if (transfer->operation != MEMFERRY_FILL)
		error = hold(client, &from->source, from->length, transfer->rows, transfer->source_pitch, MEMFERRY_READ,
			     &segment->source);
	if (!error)
		error = hold(client, &from->destination, from->length, transfer->rows, transfer->destination_pitch,
			     MEMFERRY_WRITE, &segment->destination);
	if (error)
		return error;
	segment->source_offset = from->source.offset;
	segment->destination_offset = from->destination.offset;
	segment->length = from->length;
	if (check_mul_overflow(from->length, (u64)transfer->rows, &total) || total > MEMFERRY_MAX_BYTES - transfer->total)
		return -EINVAL;
	transfer->total += total;
	return 0;
}

static int fill_segments(struct mf_client *client, struct mf_transfer *transfer, const struct memferry_transfer *request)
{
	const struct memferry_segment __user *list = u64_to_user_ptr(request->segments);
	struct memferry_segment segment = {
		.source = request->source, .destination = request->destination, .length = request->length,
	};
	unsigned int i;
	int error;

	for (i = 0; i < transfer->count; i++) {
		if (transfer->operation == MEMFERRY_LIST && copy_from_user(&segment, list + i, sizeof(segment)))
			return -EFAULT;
		error = fill_segment(client, transfer, &transfer->segments[i], &segment);
		if (error)
			return error;
	}
	return 0;
}

static void fill_pattern(struct mf_transfer *transfer, const struct memferry_transfer *request)
{
	unsigned int i;

	transfer->pattern_bytes = request->pattern_bytes;
	for (i = 0; request->pattern_bytes && i < sizeof(transfer->pattern); i++)
		transfer->pattern[i] = request->pattern >> (8 * (i % request->pattern_bytes));
}

/* Whether source and destination of a copy overlap: only the CPU copies these like memmove. */
static bool overlaps_itself(const struct mf_transfer *transfer)
{
	const struct mf_segment *segment = transfer->segments;

	return transfer->operation == MEMFERRY_COPY && segment->source == segment->destination &&
	       segment->source_offset < segment->destination_offset + segment->length &&
	       segment->destination_offset < segment->source_offset + segment->length;
}

/* ---- placing and starting ---- */

/* Whether rows are so short that the engine could move little more than the CPU moves at their ends. */
static bool is_fragmented(const struct mf_transfer *transfer, const struct mf_channel *channel)
{
	return transfer->rows > 1 && !channel->plane &&
	       transfer->segments[0].length < 4 * max(channel->alignment, channel->line);
}

/* Whether the engine can move all of each segment except its ends. */
static bool is_aligned(const struct mf_transfer *transfer, const struct mf_channel *channel)
{
	unsigned int i;

	for (i = 0; i < transfer->count; i++) {
		const struct mf_segment *segment = &transfer->segments[i];
		u64 skew;

		if (!segment->source)
			continue;
		skew = (segment->source->first + segment->source_offset) ^
		       (segment->destination->first + segment->destination_offset);
		if (transfer->rows > 1)
			skew |= transfer->source_pitch ^ transfer->destination_pitch;
		if (skew & (channel->alignment - 1))
			return false;
	}
	return true;
}

static int map_segments(struct mf_transfer *transfer, const struct mf_channel *channel)
{
	unsigned int i;

	for (i = 0; i < transfer->count; i++) {
		struct mf_segment *segment = &transfer->segments[i];

		if (segment->source) {
			segment->source_map = mf_region_map(segment->source, channel);
			if (IS_ERR(segment->source_map))
				return PTR_ERR(segment->source_map);
		}
		segment->destination_map = mf_region_map(segment->destination, channel);
		if (IS_ERR(segment->destination_map))
			return PTR_ERR(segment->destination_map);
	}
	return 0;
}

/* Chooses a channel or the CPU. Fails only with MEMFERRY_DMA_ONLY; an engine that refuses later fails such transfers too. */
int mf_transfer_place(struct mf_transfer *transfer, u32 class)
{
	bool insists = transfer->flags & MEMFERRY_DMA_ONLY;
	struct mf_channel *channel;
	int error;

	transfer->channel = NULL;
	if (!transfer->total || (transfer->flags & MEMFERRY_CPU_ONLY))
		return 0;
	if (overlaps_itself(transfer))
		return insists ? -EINVAL : 0;
	if (!insists && transfer->total < READ_ONCE(mf_threshold))
		return 0;
	channel = mf_policy_choose(class);
	if (!channel)
		return insists ? -ENODEV : 0;
	if (!is_aligned(transfer, channel))
		return insists ? -EINVAL : 0;
	if (!insists && is_fragmented(transfer, channel))
		return 0;
	error = map_segments(transfer, channel);
	if (!error)
		transfer->channel = channel;
	return insists ? error : 0;
}

/* Starts a transfer. Exactly one call of ended() follows, possibly before this returns. */
void mf_transfer_start(struct mf_transfer *transfer)
{
	if (transfer->channel && mf_channel_submit(transfer->channel, transfer))
		return;
	/* A transfer that was cancelled meanwhile ends at once, not behind other copies. */
	if (transfer->total <= AT_ONCE_BYTES || READ_ONCE(transfer->cancelled))
		mf_cpu_work(&transfer->work);
	else
		queue_work(mf_copies, &transfer->work);
}

static bool uses_dying(const struct mf_transfer *transfer)
{
	unsigned int i;

	for (i = 0; i < transfer->count; i++) {
		const struct mf_segment *segment = &transfer->segments[i];

		if (segment->destination->dying || (segment->source && segment->source->dying))
			return true;
	}
	return false;
}

static int reserve(struct mf_client *client)
{
	bool is_full;

	spin_lock(&client->lock);
	is_full = client->outstanding >= MEMFERRY_MAX_OUTSTANDING;
	client->outstanding += !is_full;
	spin_unlock(&client->lock);
	return is_full ? -EAGAIN : 0;
}

static void unreserve(struct mf_client *client)
{
	spin_lock(&client->lock);
	client->outstanding--;
	/* A poll for room may have found none meanwhile. */
	wake_up_all(&client->wait);
	spin_unlock(&client->lock);
}

/* Checks and starts one transfer, and reserves its record. request is the kernel's copy. */
int mf_submit_one(struct mf_client *client, const struct memferry_transfer *request)
{
	struct mf_transfer *transfer;
	int error = check_shape(request);

	if (error)
		return error;
	error = reserve(client);
	if (error)
		return error;
	transfer = mf_transfer_new(request->operation == MEMFERRY_LIST ? request->segment_count : 1);
	if (!transfer) {
		unreserve(client);
		return -ENOMEM;
	}
	transfer->client = client;
	transfer->ended = mf_client_ended;
	transfer->tag = request->tag;
	transfer->operation = request->operation;
	transfer->flags = request->flags;
	transfer->deadline = jiffies + msecs_to_jiffies(request->patience_ms ?: READ_ONCE(mf_patience_ms));
	if (request->operation == MEMFERRY_PLANE)
		transfer->rows = request->rows;
	transfer->source_pitch = request->source_pitch;
	transfer->destination_pitch = request->destination_pitch;
	fill_pattern(transfer, request);
	mutex_lock(&client->control);
	error = fill_segments(client, transfer, request);
	mutex_unlock(&client->control);
	if (!error && (transfer->total & ((transfer->pattern_bytes ?: 1) - 1)))
		error = -EINVAL;
	if (!error)
		error = mf_transfer_place(transfer, READ_ONCE(client->class));
	if (error) {
		release_regions(transfer);
		mf_transfer_free(transfer);
		unreserve(client);
		return error;
	}
	spin_lock(&client->lock);
	list_add_tail(&transfer->of_client, &client->running);
	client->running_count++;
	/* An unregister that ran meanwhile did not find this transfer in the running list. */
	transfer->cancelled = uses_dying(transfer);
	spin_unlock(&client->lock);
	mf_transfer_start(transfer);
	return 0;
}
