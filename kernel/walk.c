// SPDX-License-Identifier: GPL-2.0
/*
 * Cuts a transfer into pieces: each is one engine descriptor, or a part for the CPU.
 *
 *   segment, row, offset ─► runs of both sides ─► shortest ─► aligned? ─┬─► head: CPU
 *                                                                       ├─► body: DMA
 *                                                                       └─► tail: CPU
 *
 * The pieces of a transfer are always the same, because the CPU walks it again for its share after the engine.
 */
#include <linux/align.h>

#include "memferry.h"

/* Whether the engine has a fill operation for it; other fills copy from the pattern's pages. */
bool mf_is_memset(const struct mf_transfer *transfer)
{
	return transfer->operation == MEMFERRY_FILL && transfer->pattern_bytes == 1 &&
	       (transfer->channel->abilities & MEMFERRY_CAN_FILL);
}

/* Whether the segment is a memmove that must begin at its end. It is then one piece. */
bool mf_is_downward(const struct mf_transfer *transfer, const struct mf_segment *segment)
{
	return !transfer->channel && transfer->rows == 1 && segment->source == segment->destination &&
	       segment->source_offset < segment->destination_offset &&
	       segment->destination_offset < segment->source_offset + segment->length;
}

/* Moves the cursor past completed rows and segments; false at the end of the transfer. */
static bool settle(const struct mf_transfer *transfer, struct mf_cursor *cursor)
{
	while (cursor->segment < transfer->count) {
		if (cursor->offset < transfer->segments[cursor->segment].length)
			return true;
		cursor->offset = 0;
		if (++cursor->row < transfer->rows)
			continue;
		cursor->row = 0;
		cursor->segment++;
	}
	return false;
}

/* Bytes from offset to the end of its run, and its address. */
static u64 run_left(const struct mf_map *map, u64 offset, dma_addr_t *address)
{
	u64 begin;
	const struct mf_run *run = mf_map_find(map, offset, &begin);

	*address = run->address + (offset - begin);
	return run->end - offset;
}

/* The number of whole rows from here that one descriptor with pitches can move; 0 if it cannot. */
static u32 plane_rows(const struct mf_transfer *transfer, const struct mf_cursor *cursor, const struct mf_piece *piece,
		      u64 source_left, u64 destination_left)
{
	const struct mf_channel *channel = transfer->channel;
	u64 length = piece->segment->length, mask = max(channel->alignment, channel->line) - 1;
	u64 rows;

	if (transfer->rows < 2 || !channel->plane || cursor->offset || length > MF_PIECE_BYTES)
		return 0;
	if (transfer->source_pitch < length || transfer->destination_pitch < length)
		return 0;
	if ((piece->source | piece->destination | length | transfer->source_pitch | transfer->destination_pitch) & mask)
		return 0;
	if (source_left < length || destination_left < length)
		return 0;
	rows = min(div64_u64(source_left - length, transfer->source_pitch),
		   div64_u64(destination_left - length, transfer->destination_pitch)) + 1;
	return min3(rows, div64_u64(MF_PIECE_BYTES, length), (u64)transfer->rows - cursor->row);
}

/* Shortens the piece to what the engine's alignment allows, or marks it for the CPU. */
static void align(const struct mf_channel *channel, struct mf_piece *piece)
{
	size_t grain = max(channel->alignment, channel->line);
	size_t head = -(size_t)piece->destination & (grain - 1);

	if ((piece->source ^ piece->destination) & (channel->alignment - 1)) {
		piece->by_cpu = true;
	} else if (head) {
		piece->by_cpu = true;
		piece->length = min(piece->length, head);
	} else if (piece->length < grain) {
		piece->by_cpu = true;
	} else {
		piece->length = ALIGN_DOWN(piece->length, grain);
	}
}

/* Finds the next piece and moves the cursor behind it. False at the end. */
bool mf_walk(const struct mf_transfer *transfer, struct mf_cursor *cursor, struct mf_piece *piece)
{
	struct mf_channel *channel = transfer->channel;
	u64 source_left = U64_MAX, destination_left;
	const struct mf_segment *segment;

	/* Empty rows are not walked: there may be four billion. */
	if (!transfer->total || !settle(transfer, cursor))
		return false;
	segment = &transfer->segments[cursor->segment];
	piece->segment = segment;
	piece->source_offset = segment->source_offset + cursor->row * transfer->source_pitch + cursor->offset;
	piece->destination_offset =
		segment->destination_offset + cursor->row * transfer->destination_pitch + cursor->offset;
	piece->length = min_t(u64, segment->length - cursor->offset, MF_PIECE_BYTES);
	piece->rows = 1;
	piece->by_cpu = !channel;
	if (!channel) {
		if (mf_is_downward(transfer, segment))
			piece->length = segment->length;
		goto moved;
	}
	destination_left = run_left(segment->destination_map, piece->destination_offset, &piece->destination);
	if (segment->source) {
		source_left = run_left(segment->source_map, piece->source_offset, &piece->source);
	} else {
		/* The pattern's pages have the same phase as the destination's. */
		piece->source = channel->pattern_address + offset_in_page(piece->destination);
		if (!mf_is_memset(transfer))
			source_left = (PAGE_SIZE << channel->pattern_order) - offset_in_page(piece->destination);
	}
	piece->rows = plane_rows(transfer, cursor, piece, source_left, destination_left);
	if (piece->rows > 1) {
		cursor->row += piece->rows - 1;
		cursor->offset = segment->length;
		cursor->done += piece->rows * piece->length;
		return true;
	}
	piece->rows = 1;
	piece->length = min3((u64)piece->length, source_left, destination_left);
	align(channel, piece);
	/* The pattern has the phase of the region; a bounce buffer may have another alignment than the region. */
	if (!segment->source && !mf_is_memset(transfer) &&
	    (piece->destination ^ (segment->destination->first + piece->destination_offset)) % 4)
		piece->by_cpu = true;
moved:
	cursor->offset += piece->length;
	cursor->done += piece->length;
	return true;
}
