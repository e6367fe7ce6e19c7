// SPDX-License-Identifier: GPL-2.0
/*
 * Invalid calls: each ioctl with bad sizes, pointers, flags, handles and ranges. Each fails with the error that the header
 * documents, and no byte moves.
 */
#include "harness.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	65536u
/* An address without memory; volatile, so that the compiler does not know it. */
static void *volatile bad = (void *)8;
#define BAD	bad

static int device;
static uint8_t *memory;
static uint32_t readable, writable, both;

static struct memferry_register region(void)
{
	return (struct memferry_register){
		.address = (uintptr_t)memory, .length = LENGTH, .rights = MEMFERRY_READ | MEMFERRY_WRITE,
	};
}

static void commands(void)
{
	static const unsigned long known[] = { MEMFERRY_QUERY, MEMFERRY_REGISTER, MEMFERRY_SUBMIT, MEMFERRY_CANCEL };
	unsigned int i;

	for (i = 0; i < 256; i++) {
		EQUAL(call(device, _IOC(_IOC_NONE, 0xb7, i, 24), memory), -ENOTTY);
		EQUAL(call(device, _IOC(_IOC_READ | _IOC_WRITE, 0xb7, i, 8191), memory), -ENOTTY);
	}
	for (i = 0; i < sizeof(known) / sizeof(*known); i++) {
		EQUAL(call(device, known[i], NULL), -EFAULT);
		EQUAL(call(device, known[i], BAD), -EFAULT);
		EQUAL(call(device, known[i], (void *)-4096l), -EFAULT);
		/* The same number with another size is another command. */
		EQUAL(call(device, known[i] + (8 << _IOC_SIZESHIFT), memory), -ENOTTY);
	}
	EQUAL(call(device, MEMFERRY_CLASS, (void *)2), -EINVAL);
	EQUAL(call(device, MEMFERRY_CLASS, (void *)-1), -EINVAL);
	EQUAL(call(device, MEMFERRY_EVENTFD, (void *)99999), -EBADF);
	EQUAL(call(device, MEMFERRY_EVENTFD, (void *)0), -EINVAL);
}

static void registrations(void)
{
	struct memferry_register request;
	long page = sysconf(_SC_PAGESIZE);

#define REFUSED(change, error)						\
	do {								\
		request = region();					\
		change;							\
		EQUAL(call(device, MEMFERRY_REGISTER, &request), error);	\
	} while (0)

	REFUSED(request.length = 0, -EINVAL);
	REFUSED(request.rights = 0, -EINVAL);
	REFUSED(request.rights = 4, -EINVAL);
	REFUSED(request.rights = ~0u, -EINVAL);
	REFUSED(request.flags = 1, -EINVAL);
	REFUSED(request.region = 1, -EINVAL);
	REFUSED(request.runs = 1, -EINVAL);
	REFUSED(request.length = ~0ull, -EOVERFLOW);
	REFUSED(request.address = -4096ll; request.length = 8192, -EOVERFLOW);
	REFUSED(request.address = ~0ull; request.length = 1, -EOVERFLOW);
	REFUSED(request.address = 0x123; request.length = 1, -EFAULT);
	REFUSED(request.address = 1ull << 47 | 64, sizeof(long) == 8 ? -EFAULT : -EOVERFLOW);
	/* A range that ends behind mapped memory. */
	munmap(memory + LENGTH - page, page);
	REFUSED(, -EFAULT);
	check(mmap(memory + LENGTH - page, page, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
		      MAP_FAILED, __FILE__, __LINE__, "mmap");
#undef REFUSED
	EQUAL(call(device, MEMFERRY_UNREGISTER, NULL), -ENOENT);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)123456), -ENOENT);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)-1l), -ENOENT);
}

static void batches(void)
{
	struct memferry_transfer transfer = copy_of(readable, 0, writable, 0, 64);
	struct memferry_submit batch = { .transfers = (uintptr_t)&transfer, .count = 0 };

	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EINVAL);
	batch.count = MEMFERRY_MAX_BATCH + 1;
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EINVAL);
	batch.count = ~0u;
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EINVAL);
	batch = (struct memferry_submit){ .transfers = (uintptr_t)&transfer, .count = 1, .accepted = 1 };
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EINVAL);
	batch = (struct memferry_submit){ .transfers = 8, .count = 1 };
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EFAULT);
	batch = (struct memferry_submit){ .transfers = -64ll, .count = 256 };
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), -EFAULT);
}

/* Each request differs from a valid copy, fill, list or plane in one respect. */
static void shapes(void)
{
	struct memferry_transfer copy = copy_of(readable, 0, writable, 0, 64), request;
	struct memferry_segment segment = { .source.region = readable, .destination.region = writable, .length = 64 };
	struct memferry_transfer fill = { .operation = MEMFERRY_FILL, .destination.region = writable, .length = 64,
					  .pattern_bytes = 4 };
	struct memferry_transfer list = { .operation = MEMFERRY_LIST, .segments = (uintptr_t)&segment, .segment_count = 1 };
	struct memferry_transfer plane = copy;

	plane.operation = MEMFERRY_PLANE;
	plane.rows = 4;
	plane.source_pitch = plane.destination_pitch = 128;

#define REFUSED(from, change, error)					\
	do {								\
		request = from;						\
		change;							\
		EQUAL(submit_one(device, &request), error);		\
	} while (0)

	REFUSED(copy, request.operation = 4, -EINVAL);
	REFUSED(copy, request.operation = ~0u, -EINVAL);
	REFUSED(copy, request.flags = 4, -EINVAL);
	REFUSED(copy, request.flags = 3, -EINVAL);
	REFUSED(copy, request.reserved = 1, -EINVAL);
	REFUSED(copy, request.source.reserved = 1, -EINVAL);
	REFUSED(copy, request.destination.reserved = 1, -EINVAL);
	REFUSED(copy, request.patience_ms = MEMFERRY_MAX_PATIENCE_MS + 1, -EINVAL);
	REFUSED(copy, request.rows = 1, -EINVAL);
	REFUSED(copy, request.source_pitch = 1, -EINVAL);
	REFUSED(copy, request.pattern = 1, -EINVAL);
	REFUSED(copy, request.segments = 1, -EINVAL);
	REFUSED(copy, request.segment_count = 1, -EINVAL);
	REFUSED(copy, request.source.region = 0, -ENOENT);
	REFUSED(copy, request.source.region = 99999, -ENOENT);
	REFUSED(copy, request.destination.region = ~0u, -ENOENT);
	REFUSED(copy, request.source.region = writable, -EACCES);
	REFUSED(copy, request.destination.region = readable, -EACCES);
	REFUSED(copy, request.length = LENGTH + 1, -ERANGE);
	REFUSED(copy, request.source.offset = LENGTH - 63, -ERANGE);
	REFUSED(copy, request.destination.offset = LENGTH, -ERANGE);
	REFUSED(copy, request.source.offset = -64ll, -ERANGE);
	REFUSED(copy, request.destination.offset = ~0ull, -ERANGE);
	REFUSED(copy, request.length = 0; request.source.offset = LENGTH + 1, -ERANGE);
	REFUSED(copy, request.length = ~0ull, -EINVAL);
	REFUSED(copy, request.length = MEMFERRY_MAX_BYTES, -ERANGE);
	REFUSED(fill, request.pattern_bytes = 0, -EINVAL);
	REFUSED(fill, request.pattern_bytes = 3, -EINVAL);
	REFUSED(fill, request.pattern_bytes = ~0u, -EINVAL);
	REFUSED(fill, request.length = 62, -EINVAL);
	REFUSED(fill, request.source.region = readable, -EINVAL);
	REFUSED(fill, request.destination.region = readable, -EACCES);
	REFUSED(list, request.segment_count = MEMFERRY_MAX_SEGMENTS + 1, -EINVAL);
	REFUSED(list, request.segment_count = ~0u, -EINVAL);
	REFUSED(list, request.segments = 8, -EFAULT);
	REFUSED(list, request.segments = 0, -EFAULT);
	REFUSED(list, request.segments = -16ll, -EFAULT);
	REFUSED(list, request.length = 64, -EINVAL);
	REFUSED(list, segment.length = ~0ull, -EINVAL);
	REFUSED(list, segment.length = LENGTH; segment.source.offset = 1, -ERANGE);
	REFUSED(list, segment.length = 64; segment.source.offset = 0; segment.source.reserved = 1, -EINVAL);
	REFUSED(list, segment.source.reserved = 0; segment.destination.region = readable, -EACCES);
	REFUSED(plane, request.rows = 0, -EINVAL);
	REFUSED(plane, request.rows = 0; request.length = 1 << 20, -EINVAL);
	REFUSED(plane, request.rows = 0; request.length = MEMFERRY_MAX_BYTES, -EINVAL);
	REFUSED(plane, request.destination_pitch = 63, -EINVAL);
	REFUSED(plane, request.rows = ~0u; request.source_pitch = request.destination_pitch = 0, -EINVAL);
	REFUSED(plane, request.rows = ~0u, -ERANGE);
	REFUSED(plane, request.rows = LENGTH / 128 + 1, -ERANGE);
	REFUSED(plane, request.source_pitch = 1ull << 63, -ERANGE);
	REFUSED(plane, request.destination_pitch = ~0ull, -ERANGE);
	REFUSED(plane, request.rows = ~0u; request.source_pitch = request.destination_pitch = 1ull << 32, -ERANGE);
#undef REFUSED
	/* Four billion empty rows take no time. */
	plane.rows = ~0u;
	plane.length = plane.source_pitch = plane.destination_pitch = 0;
	EQUAL(transfer_run(device, &plane).status, 0);
}

static void stale_handles(void)
{
	uint32_t first = region_new(device, memory, 4096, MEMFERRY_READ | MEMFERRY_WRITE), again;
	struct memferry_transfer copy = copy_of(first, 0, first, 2048, 64);

	EQUAL(transfer_run(device, &copy).status, 0);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)first), 0);
	EQUAL(submit_one(device, &copy), -ENOENT);
	again = region_new(device, memory, 4096, MEMFERRY_READ | MEMFERRY_WRITE);
	CHECK(again != first, "a handle is not reused at once");
	EQUAL(submit_one(device, &copy), -ENOENT);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)first), -ENOENT);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)again), 0);
}

static void reading(void)
{
	struct memferry_transfer copy = copy_of(readable, 0, writable, 0, 64);
	struct memferry_record record;
	char small[sizeof(record) - 1];
	int i;

	EQUAL(read(device, small, sizeof(small)), -1);
	EQUAL(errno, EINVAL);
	EQUAL(read(device, &record, sizeof(record)), -1);
	EQUAL(errno, EAGAIN);
	copy.tag = 7;
	copy.flags = MEMFERRY_CPU_ONLY;
	EQUAL(submit_one(device, &copy), 0);
	/* A record that could not be copied to the reader is not lost. */
	EQUAL(read(device, BAD, sizeof(record)), -1);
	EQUAL(errno, EFAULT);
	EQUAL(record_next(device).tag, 7);
	EQUAL(write(device, &record, sizeof(record)), -1);
	/* The number of unread records is limited. */
	for (i = 0; i < MEMFERRY_MAX_OUTSTANDING; i++)
		if (!EQUAL(submit_one(device, &copy), 0))
			break;
	EQUAL(submit_one(device, &copy), -EAGAIN);
	EQUAL(record_next(device).status, 0);
	EQUAL(submit_one(device, &copy), 0);
	for (i = 0; i < MEMFERRY_MAX_OUTSTANDING; i++)
		if (!EQUAL(record_next(device).status, 0))
			break;
}

void test_misuse(void)
{
	uint8_t *before = memory_map(LENGTH);

	device = device_open();
	memory = memory_map(LENGTH);
	memory_noise(memory, LENGTH - 4096, 3);
	readable = region_new(device, memory, LENGTH, MEMFERRY_READ);
	writable = region_new(device, memory, LENGTH, MEMFERRY_WRITE);
	both = region_new(device, memory, LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
	memcpy(before, memory, LENGTH);
	commands();
	batches();
	shapes();
	CHECK(!memcmp(before, memory, LENGTH), "no byte moved");
	registrations();
	stale_handles();
	reading();
	close(device);
	munmap(before, LENGTH);
}
