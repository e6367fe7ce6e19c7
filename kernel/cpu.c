// SPDX-License-Identifier: GPL-2.0
/*
 * Copies and fills by the CPU: transfers without a channel, and pieces that an engine cannot move.
 *
 *   work item or submitter ─► walk the transfer's pieces ─► page by page, through the kernel's mapping
 *
 * Pages are pinned, so accesses cannot fault. Cancels and deadlines take effect between pieces.
 */
#include <linux/highmem.h>
#include <linux/sched.h>

#include "memferry.h"

struct place {
	struct page *page;
	unsigned int offset;
};

static struct place place_of(const struct mf_region *region, u64 offset)
{
	u64 at = region->first + offset;

	return (struct place){ region->pages[at >> PAGE_SHIFT], offset_in_page(at) };
}

static void copy_within_pages(struct place to, struct place from, size_t length)
{
	u8 *destination = kmap_local_page(to.page);
	/* One mapping for both sides of one page: with two addresses memmove would not detect the overlap. */
	const u8 *source = from.page == to.page ? destination : kmap_local_page(from.page);

	memmove(destination + to.offset, source + from.offset, length);
	flush_dcache_page(to.page);
	if (source != destination)
		kunmap_local(source);
	kunmap_local(destination);
}

static void copy_up(const struct mf_segment *segment, u64 from, u64 to, size_t length)
{
	while (length) {
		struct place source = place_of(segment->source, from);
		struct place destination = place_of(segment->destination, to);
		size_t part = min3(length, (size_t)(PAGE_SIZE - source.offset), (size_t)(PAGE_SIZE - destination.offset));

		copy_within_pages(destination, source, part);
		from += part;
		to += part;
		length -= part;
	}
}

static bool is_over(const struct mf_transfer *transfer)
{
	return READ_ONCE(transfer->cancelled) || time_after(jiffies, transfer->deadline);
}

/* Whether to skip even the CPU's pieces between an engine's, maybe millions: the client is closing, or it is late. */
static bool is_hopeless(const struct mf_transfer *transfer)
{
	return READ_ONCE(transfer->urgent) || time_after(jiffies, transfer->deadline);
}

/* Copies from the last byte down, for a destination that overlaps the source from above. Returns the bytes done. */
static u64 copy_down(const struct mf_transfer *transfer, const struct mf_segment *segment)
{
	u64 left = segment->length;

	while (left && !is_over(transfer)) {
		struct place source = place_of(segment->source, segment->source_offset + left - 1);
		struct place destination = place_of(segment->destination, segment->destination_offset + left - 1);
		size_t part = min3(left, (u64)source.offset + 1, (u64)destination.offset + 1);

		source.offset -= part - 1;
		destination.offset -= part - 1;
		copy_within_pages(destination, source, part);
		left -= part;
		cond_resched();
	}
	return segment->length - left;
}

/* Writes the pattern, starting with its byte number phase. */
static void fill_within_page(u8 *to, size_t length, const u8 *pattern, unsigned int phase)
{
	u8 turned[4];
	u32 word;
	unsigned int i;

	while (length && (unsigned long)to % sizeof(word)) {
		*to++ = pattern[phase++ % 4];
		length--;
	}
	for (i = 0; i < 4; i++)
		turned[i] = pattern[(phase + i) % 4];
	memcpy(&word, turned, sizeof(word));
	memset32((u32 *)to, word, length / sizeof(word));
	memcpy(to + round_down(length, sizeof(word)), turned, length % sizeof(word));
}

static void fill(const struct mf_transfer *transfer, const struct mf_piece *piece)
{
	u64 to = piece->destination_offset;
	unsigned int phase = (to - piece->segment->destination_offset) % 4;
	size_t length = piece->length;

	while (length) {
		struct place place = place_of(piece->segment->destination, to);
		size_t part = min(length, (size_t)(PAGE_SIZE - place.offset));
		u8 *page = kmap_local_page(place.page);

		fill_within_page(page + place.offset, part, transfer->pattern, phase);
		flush_dcache_page(place.page);
		kunmap_local(page);
		phase += part;
		to += part;
		length -= part;
	}
}

/* Returns the bytes done: less than the piece if the transfer was cancelled or late meanwhile. */
static u64 perform(const struct mf_transfer *transfer, struct mf_piece *piece)
{
	u32 row;

	if (mf_is_downward(transfer, piece->segment))
		return copy_down(transfer, piece->segment);
	for (row = 0; row < piece->rows; row++) {
		if (transfer->operation == MEMFERRY_FILL)
			fill(transfer, piece);
		else
			copy_up(piece->segment, piece->source_offset, piece->destination_offset, piece->length);
		piece->source_offset += transfer->source_pitch;
		piece->destination_offset += transfer->destination_pitch;
	}
	return piece->rows * piece->length;
}

/* Moves the CPU's share of a transfer after the engine has finished its own. */
void mf_cpu_perform(struct mf_transfer *transfer)
{
	struct mf_cursor cursor = {};
	struct mf_piece piece;
	u64 begin = 0;

	while (mf_walk(transfer, &cursor, &piece)) {
		bool is_new = begin >= transfer->landed, is_cpus = piece.by_cpu || begin >= transfer->cpu_from;

		/* Even after a cancel, the CPU moves its pieces between the engine's, so that no byte before landed is missing. */
		if (is_new ? transfer->status || is_over(transfer) : is_cpus && is_hopeless(transfer))
			break;
		if (is_cpus) {
			u64 done = perform(transfer, &piece);

			transfer->by_cpu += done;
			if (done < piece.rows * piece.length) {
				begin += done;
				break;
			}
		}
		begin = cursor.done;
		cond_resched();
	}
	/* Bytes that an engine moved behind the first missing piece do not count. */
	transfer->landed = begin;
	if (!transfer->status && transfer->landed < transfer->total)
		transfer->status = READ_ONCE(transfer->cancelled) ? -ECANCELED : -ETIMEDOUT;
}

void mf_cpu_work(struct work_struct *work)
{
	struct mf_transfer *transfer = container_of(work, struct mf_transfer, work);

	mf_cpu_perform(transfer);
	mf_transfer_end(transfer);
}
