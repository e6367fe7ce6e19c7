// SPDX-License-Identifier: GPL-2.0
/*
 * Valid transfers of every kind, aligned or not, by the CPU and by the engine, compared byte by byte including the bytes
 * around them; completion by read, poll and eventfd; batches.
 */
#include "harness.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	(3u << 20)

static uint8_t *source, *destination, *expected;
static uint32_t from, to;
static struct memferry_query found;
static int device;

static void verify(const char *what, uint64_t a, uint64_t b, uint64_t length)
{
	bool same = !memcmp(destination, expected, LENGTH);

	if (check(same, __FILE__, __LINE__, "%s of %llu bytes from %llu to %llu", what, (unsigned long long)length,
		  (unsigned long long)a, (unsigned long long)b))
		return;
	for (size_t i = 0; i < LENGTH; i++) {
		if (destination[i] != expected[i]) {
			printf("  byte %zu is %02x, not %02x\n", i, destination[i], expected[i]);
			break;
		}
	}
	memcpy(destination, expected, LENGTH);
}

/* Checks the status of the record and that the expected side, CPU or engine, moved the bytes. */
static void verify_mover(const struct memferry_transfer *transfer, const struct memferry_record *record, uint64_t total)
{
	EQUAL(record->status, 0);
	EQUAL(record->bytes_done, total);
	if (!found.channels || (transfer->flags & MEMFERRY_CPU_ONLY) || !total) {
		EQUAL(record->bytes_by_dma, 0);
		EQUAL(record->moved_by, total ? MEMFERRY_BY_CPU : 0);
		EQUAL(record->channel, -1);
	} else if (transfer->flags & MEMFERRY_DMA_ONLY) {
		CHECK(record->channel >= 0);
	}
}

static void copies(uint32_t flags)
{
	static const uint64_t lengths[] = { 0, 1, 3, 64, 100, 4095, 4096, 4097, 65536, 65539, 1 << 20, (2 << 20) + 12345 };
	static const uint64_t offsets[][2] = {
		{ 0, 0 }, { 64, 128 }, { 1, 1 }, { 4, 8 }, { 3, 2 }, { 4096, 1 }, { 4095, 4096 }, { 60, 124 },
	};
	size_t i, j;

	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		for (j = 0; j < sizeof(offsets) / sizeof(*offsets); j++) {
			uint64_t a = offsets[j][0], b = offsets[j][1], length = lengths[i];
			struct memferry_transfer copy = copy_of(from, a, to, b, length);
			struct memferry_record record;

			copy.tag = i * 100 + j;
			copy.flags = flags;
			memcpy(expected + b, source + a, length);
			record = transfer_run(device, &copy);
			if ((flags & MEMFERRY_DMA_ONLY) && ((a ^ b) & (found.alignment - 1)) && length) {
				EQUAL(record.status, -EINVAL);
				memcpy(destination, expected, LENGTH);
				continue;
			}
			EQUAL(record.tag, copy.tag);
			verify_mover(&copy, &record, length);
			/* With equal alignments the engine moves all bytes except the ends. */
			if ((flags & MEMFERRY_DMA_ONLY) && length >= 65536)
				CHECK(record.bytes_by_dma >= length / 2);
			verify("copy", a, b, length);
		}
	}
}

static void fills(uint32_t flags)
{
	static const uint64_t lengths[] = { 4, 64, 4096, 65536 + 8, 1 << 20 };
	static const uint32_t sizes[] = { 1, 2, 4 };
	size_t i, j, k, at;

	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		for (j = 0; j < 3; j++) {
			for (k = 0; k < 6; k++) {
				uint64_t b = k + 4093 * (k & 1);
				struct memferry_transfer fill = {
					.operation = MEMFERRY_FILL, .flags = flags, .length = lengths[i], .pattern_bytes = sizes[j],
					.pattern = 0x04030201 * (k + 1), .destination = { .region = to, .offset = b },
					.patience_ms = MEMFERRY_MAX_PATIENCE_MS,
				};
				struct memferry_record record = transfer_run(device, &fill);

				for (at = 0; at < lengths[i]; at++)
					expected[b + at] = fill.pattern >> 8 * (at % sizes[j]);
				verify_mover(&fill, &record, lengths[i]);
				verify("fill", sizes[j], b, lengths[i]);
			}
		}
	}
}

static void lists(uint32_t flags)
{
	struct memferry_segment segments[200];
	struct memferry_transfer list = {
		.operation = MEMFERRY_LIST, .flags = flags, .segments = (uintptr_t)segments, .segment_count = 200,
		.patience_ms = MEMFERRY_MAX_PATIENCE_MS,
	};
	struct memferry_record record;
	uint64_t total = 0, at = 16;
	size_t i;

	for (i = 0; i < 200; i++) {
		uint64_t length = i * 37 % 9000 / 8 * 8, a = (i * 12345) % (1 << 20) / 8 * 8;

		segments[i] = (struct memferry_segment){
			.source = { .region = from, .offset = a }, .destination = { .region = to, .offset = at }, .length = length,
		};
		memcpy(expected + at, source + a, length);
		at += length + 24;
		total += length;
	}
	record = transfer_run(device, &list);
	verify_mover(&list, &record, total);
	verify("list", 0, 0, total);
	list.segment_count = 0;
	list.flags = 0;
	record = transfer_run(device, &list);
	EQUAL(record.status, 0);
	EQUAL(record.bytes_done, 0);
}

static void planes(uint32_t flags)
{
	static const uint64_t rows[][3] = { /* bytes, pitches */
		{ 256, 1024, 512 }, { 1920, 2048, 1920 }, { 64, 64, 64 }, { 100, 500, 300 }, { 4096, 0, 4096 }, { 8192, 12288, 8192 },
	};
	size_t i, row;

	for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct memferry_transfer plane = {
			.operation = MEMFERRY_PLANE, .flags = flags, .length = rows[i][0], .rows = 200, .source_pitch = rows[i][1],
			.destination_pitch = rows[i][2], .source = { .region = from, .offset = 128 },
			.destination = { .region = to, .offset = 256 }, .patience_ms = MEMFERRY_MAX_PATIENCE_MS,
		};
		struct memferry_record record = transfer_run(device, &plane);

		for (row = 0; row < 200; row++)
			memcpy(expected + 256 + row * rows[i][2], source + 128 + row * rows[i][1], rows[i][0]);
		verify_mover(&plane, &record, 200 * rows[i][0]);
		verify("plane", rows[i][1], rows[i][2], rows[i][0]);
	}
}

/*
 * Rows that are too short for an engine, so many that the module cannot walk them within the time limit. The CPU's share,
 * which is all of it, has not begun then, and must not begin.
 */
static void late_bytes(void)
{
	struct memferry_transfer plane = {
		.operation = MEMFERRY_PLANE, .flags = MEMFERRY_DMA_ONLY, .length = 1, .rows = LENGTH, .source_pitch = 1,
		.destination_pitch = 1, .source.region = from, .destination.region = to,
	};

	for (plane.patience_ms = 1; plane.patience_ms <= 8; plane.patience_ms++) {
		struct memferry_record record = transfer_run(device, &plane);

		EQUAL(record.status, -ETIMEDOUT);
		EQUAL(record.bytes_done, 0);
		EQUAL(record.moved_by, 0);
	}
	verify("late bytes", 0, 0, LENGTH);
}

static void overlaps(void)
{
	static const uint64_t distances[] = { 1, 63, 4096, 70000 };
	size_t i, down;

	for (i = 0; i < sizeof(distances) / sizeof(*distances); i++) {
		for (down = 0; down < 2; down++) {
			uint64_t a = 100 + (down ? 0 : distances[i]), b = 100 + (down ? distances[i] : 0);
			struct memferry_transfer copy = copy_of(to, a, to, b, 300000);
			struct memferry_record record = transfer_run(device, &copy);

			memmove(expected + b, expected + a, 300000);
			EQUAL(record.status, 0);
			EQUAL(record.moved_by, MEMFERRY_BY_CPU);
			verify("memmove", a, b, 300000);
		}
	}
}

static void batches(void)
{
	struct memferry_transfer transfers[64];
	struct memferry_submit batch = { .transfers = (uintptr_t)transfers, .count = 64 };
	struct memferry_record records[80];
	int signal = eventfd(0, EFD_NONBLOCK), count = 0;
	uint64_t signalled = 0, sum = 0;
	size_t i;

	EQUAL(call(device, MEMFERRY_EVENTFD, (void *)(intptr_t)signal), 0);
	for (i = 0; i < 64; i++) {
		transfers[i] = copy_of(from, i * 8192, to, i * 8192 + 64, 8000);
		transfers[i].tag = i;
		memcpy(expected + i * 8192 + 64, source + i * 8192, 8000);
	}
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), 0);
	EQUAL(batch.accepted, 64);
	while (count < 64) {
		struct pollfd wait = { .fd = signal, .events = POLLIN };
		uint64_t more = 0;
		ssize_t got;

		if (!EQUAL(poll(&wait, 1, 10000), 1))
			break;
		if (read(signal, &more, sizeof(more)) == sizeof(more))
			signalled += more;
		got = read(device, records, sizeof(records));
		for (i = 0; got > 0 && i < got / sizeof(*records); i++)
			sum += records[i].tag;
		count += got > 0 ? got / sizeof(*records) : 0;
	}
	EQUAL(count, 64);
	EQUAL(sum, 63 * 64 / 2);
	verify("batch", 0, 0, 0);
	/* The last records may have been read before their signals arrived. */
	if (signalled < 64 && read(signal, &sum, sizeof(sum)) == sizeof(sum))
		signalled += sum;
	EQUAL(signalled, 64);
	EQUAL(call(device, MEMFERRY_EVENTFD, (void *)-1l), 0);
	close(signal);

	/* The first refused transfer ends a batch. Those before it run. */
	transfers[10].destination.offset = LENGTH;
	batch.accepted = 0;
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), 0);
	EQUAL(batch.accepted, 10);
	for (i = 0; i < 10; i++)
		EQUAL(record_next(device).status, 0);
	EQUAL(read(device, records, sizeof(records)), -1);
	EQUAL(errno, EAGAIN);
}

void test_transfers(void)
{
	static const uint32_t movers[] = { 0, MEMFERRY_CPU_ONLY, MEMFERRY_DMA_ONLY };
	size_t i;

	device = device_open();
	found = device_query(device);
	printf("memferry_test: %u channels, alignment %u, abilities %#x, threshold %llu\n", found.channels, found.alignment,
	       found.abilities, (unsigned long long)found.threshold);
	source = memory_map(LENGTH);
	destination = memory_map(LENGTH);
	expected = memory_map(LENGTH);
	memory_noise(source, LENGTH, 1);
	memory_noise(destination, LENGTH, 2);
	memcpy(expected, destination, LENGTH);
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	to = region_new(device, destination, LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
	for (i = 0; i < (found.channels ? 3 : 2); i++) {
		copies(movers[i]);
		fills(movers[i]);
		lists(movers[i]);
		planes(movers[i]);
	}
	if (found.alignment > 1)
		late_bytes();
	overlaps();
	batches();
	if (!found.channels) {
		struct memferry_transfer copy = copy_of(from, 0, to, 0, 100);

		copy.flags = MEMFERRY_DMA_ONLY;
		EQUAL(submit_one(device, &copy), -ENODEV);
	}
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)from), 0);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)to), 0);
	close(device);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
	munmap(expected, LENGTH);
}
