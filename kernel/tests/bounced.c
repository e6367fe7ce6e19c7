// SPDX-License-Identifier: GPL-2.0
/*
 * A device that cannot address all memory: softdma with mask_bits=32, on a machine with most memory above 4 GiB. Transfers
 * then use bounce buffers, of which there are few.
 */
#include "harness.h"

#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	(1u << 20)
/* Number of regions, more than the bounce buffers can serve. */
#define COUNT	16
#define FAIL	"/sys/module/softdma/parameters/fail"

static int device;

static void unregister(uint32_t region)
{
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)region), 0);
}

/* An unaligned region has another alignment in its bounce buffers. */
static void odd_places(uint8_t *memory)
{
	unsigned int first, size, i, wrong = 0;

	for (first = 0; first < 8; first++) {
		uint32_t region = region_new(device, memory + first, LENGTH - first, MEMFERRY_WRITE);

		for (size = 1; size <= 4; size *= 2) {
			struct memferry_transfer fill = {
				.operation = MEMFERRY_FILL, .flags = MEMFERRY_DMA_ONLY, .length = LENGTH / 2,
				.pattern = 0x04030201, .pattern_bytes = size, .destination = { .region = region, .offset = first },
				.patience_ms = MEMFERRY_MAX_PATIENCE_MS,
			};

			memset(memory, 0, LENGTH);
			EQUAL(transfer_run(device, &fill).status, 0);
			for (i = 0; i < LENGTH / 2; i++)
				wrong += memory[2 * first + i] != 1 + i % size;
			wrong += memory[2 * first + LENGTH / 2] != 0;
		}
		unregister(region);
	}
	EQUAL(wrong, 0);
}

/* After an engine failure the region holds what the program wrote last, not the contents of its bounce buffer. */
static void failed(uint8_t *source, uint8_t *memory, uint32_t from)
{
	uint32_t region = region_new(device, memory, LENGTH, MEMFERRY_WRITE);
	struct memferry_transfer copy = copy_of(from, 0, region, 0, LENGTH);
	unsigned int i, wrong = 0;

	copy.flags = MEMFERRY_DMA_ONLY;
	EQUAL(transfer_run(device, &copy).status, 0);
	CHECK(!memcmp(source, memory, LENGTH));
	memset(memory, 0x77, LENGTH);
	EQUAL(file_write(FAIL, "1000000"), true);
	EQUAL(transfer_run(device, &copy).status, -EIO);
	EQUAL(file_write(FAIL, "0"), true);
	for (i = 0; i < LENGTH; i++)
		wrong += memory[i] != 0x77;
	EQUAL(wrong, 0);
	unregister(region);
}

void test_bounced(void)
{
	uint8_t *source = memory_map(LENGTH), *memory = memory_map(COUNT * LENGTH);
	struct memferry_transfer copy;
	uint32_t from, all, parts[COUNT];
	unsigned int i, served = 0;

	device = device_open();
	memory_noise(source, LENGTH, 21);
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	all = region_new(device, memory, COUNT * LENGTH, MEMFERRY_WRITE);
	copy = copy_of(from, 0, all, 0, LENGTH);
	copy.flags = MEMFERRY_DMA_ONLY;
	EQUAL(submit_one(device, &copy), -ENOMEM);
	copy.flags = 0;
	EQUAL(transfer_run(device, &copy).moved_by, MEMFERRY_BY_CPU);
	CHECK(!memcmp(source, memory, LENGTH));
	unregister(all);
	memset(memory, 0, COUNT * LENGTH);
	for (i = 0; i < COUNT; i++) {
		parts[i] = region_new(device, memory + i * LENGTH, LENGTH, MEMFERRY_WRITE);
		copy = copy_of(from, 0, parts[i], 0, LENGTH);
		served += !!(transfer_run(device, &copy).moved_by & MEMFERRY_BY_DMA);
		CHECK(!memcmp(source, memory + i * LENGTH, LENGTH));
	}
	CHECK(served > 0 && served < COUNT);
	printf("memferry_test: %u of %u regions of 1 MiB got bounce buffers\n", served, COUNT);
	for (i = 0; i < COUNT; i++)
		unregister(parts[i]);
	odd_places(memory);
	failed(source, memory, from);
	close(device);
	munmap(source, LENGTH);
	munmap(memory, COUNT * LENGTH);
}
