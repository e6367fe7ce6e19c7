// SPDX-License-Identifier: GPL-2.0
/*
 * Random calls, most of them nearly valid: threads register, unregister, submit, cancel, read and unmap until the time is
 * over. Passes if the module accepted some transfers. The guest checks that the kernel logs no error.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS	32
#define LENGTH	(512u << 10)
#define THREADS	3

struct fuzzer {
	pthread_t thread;
	uint64_t state;
	int device;
	uint8_t *memory;
	uint32_t regions[SLOTS];
	unsigned long calls, moved;
};

static time_t end;

static uint64_t next(struct fuzzer *fuzzer)
{
	fuzzer->state ^= fuzzer->state << 13;
	fuzzer->state ^= fuzzer->state >> 7;
	fuzzer->state ^= fuzzer->state << 17;
	return fuzzer->state * 0x2545f4914f6cdd1dull >> 16;
}

/* Usually a number below the bound, sometimes an extreme one. */
static uint64_t below(struct fuzzer *fuzzer, uint64_t bound)
{
	static const uint64_t odd[] = { 0, 1, ~0ull, 1ull << 63, 1ull << 32, 0xffffffff, 4095, 4096, 1ull << 40 };
	uint64_t random = next(fuzzer);

	return random % 64 ? (random >> 8) % bound : odd[(random >> 8) % (sizeof(odd) / sizeof(*odd))];
}

static struct memferry_place place(struct fuzzer *fuzzer)
{
	return (struct memferry_place){
		.region = next(fuzzer) % 32 ? fuzzer->regions[next(fuzzer) % SLOTS] : below(fuzzer, 200),
		.reserved = next(fuzzer) % 256 ? 0 : 1,
		.offset = below(fuzzer, LENGTH / 2),
	};
}

static struct memferry_transfer transfer(struct fuzzer *fuzzer, struct memferry_segment *segments)
{
	struct memferry_transfer made = { .tag = below(fuzzer, 4), .operation = below(fuzzer, 4) };
	size_t i;

	made.flags = next(fuzzer) % 8 ? 0 : below(fuzzer, 4);
	made.patience_ms = next(fuzzer) % 16 ? 0 : below(fuzzer, 3000);
	if (made.operation == MEMFERRY_LIST) {
		made.segments = next(fuzzer) % 32 ? (uintptr_t)segments : below(fuzzer, 1 << 20);
		made.segment_count = below(fuzzer, 20);
		for (i = 0; i < 20; i++)
			segments[i] = (struct memferry_segment){ place(fuzzer), place(fuzzer), below(fuzzer, LENGTH / 8) };
		return made;
	}
	if (made.operation != MEMFERRY_FILL)
		made.source = place(fuzzer);
	made.destination = place(fuzzer);
	made.length = below(fuzzer, LENGTH / 2);
	if (made.operation == MEMFERRY_FILL) {
		made.pattern = next(fuzzer);
		made.pattern_bytes = 1 << below(fuzzer, 3) % 8;
		made.length &= ~3ull;
	} else if (made.operation == MEMFERRY_PLANE) {
		made.length = below(fuzzer, next(fuzzer) % 16 ? 2048 : 1 << 20);
		made.rows = next(fuzzer) % 16 ? below(fuzzer, 100) : next(fuzzer);
		made.source_pitch = next(fuzzer) % 16 ? below(fuzzer, 3000) : 0;
		made.destination_pitch = next(fuzzer) % 16 ? below(fuzzer, 3000) : 0;
	}
	/* Flip one bit of any field. */
	if (!(next(fuzzer) % 32))
		((uint64_t *)&made)[next(fuzzer) % (sizeof(made) / 8)] ^= 1ull << next(fuzzer) % 64;
	return made;
}

static void submit(struct fuzzer *fuzzer)
{
	struct memferry_segment segments[20];
	struct memferry_transfer transfers[4];
	struct memferry_submit batch = { .transfers = (uintptr_t)transfers, .count = 1 + below(fuzzer, 4) % 4 };
	size_t i;

	for (i = 0; i < 4; i++)
		transfers[i] = transfer(fuzzer, segments);
	if (!(next(fuzzer) % 64))
		batch.transfers = below(fuzzer, 1 << 20);
	call(fuzzer->device, MEMFERRY_SUBMIT, &batch);
	fuzzer->moved += batch.accepted;
}

static void regions(struct fuzzer *fuzzer)
{
	uint64_t slot = next(fuzzer) % SLOTS;
	uint32_t rights = next(fuzzer) % 4 ? 3 : below(fuzzer, 4);

	if (next(fuzzer) % 2)
		call(fuzzer->device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)fuzzer->regions[slot]);
	fuzzer->regions[slot] =
		region_new(fuzzer->device, fuzzer->memory + below(fuzzer, LENGTH), 1 + below(fuzzer, LENGTH), rights);
}

static void memory(struct fuzzer *fuzzer)
{
	uint8_t *from = fuzzer->memory + next(fuzzer) % (2 * LENGTH) / 4096 * 4096;
	size_t length = next(fuzzer) % (LENGTH / 4);

	switch (next(fuzzer) % 4) {
	case 0:
		mmap(from, length + 1, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		break;
	case 1:
		mprotect(from, length + 1, next(fuzzer) % 2 ? PROT_READ : PROT_READ | PROT_WRITE);
		break;
	case 2:
		madvise(from, length + 1, MADV_DONTNEED);
		break;
	default:
		mmap(from, length + 1, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	}
}

static void step(struct fuzzer *fuzzer)
{
	struct memferry_record records[32];
	uint64_t tag = below(fuzzer, 4), random = next(fuzzer) % 100;

	fuzzer->calls++;
	if (random < 50) {
		submit(fuzzer);
	} else if (random < 70) {
		if (read(fuzzer->device, records, next(fuzzer) % sizeof(records)) < 0)
			return;
	} else if (random < 85) {
		regions(fuzzer);
	} else if (random < 90) {
		call(fuzzer->device, MEMFERRY_CANCEL, &tag);
	} else if (random < 96) {
		memory(fuzzer);
	} else if (random < 98) {
		call(fuzzer->device, 0xb700 + below(fuzzer, 16) + (next(fuzzer) << 16), (void *)(uintptr_t)below(fuzzer, 1 << 20));
	} else if (random < 99) {
		int signal = eventfd(0, EFD_NONBLOCK);

		call(fuzzer->device, MEMFERRY_EVENTFD, (void *)(intptr_t)signal);
		close(signal);
	} else {
		close(fuzzer->device);
		fuzzer->device = device_open();
		memset(fuzzer->regions, 0, sizeof(fuzzer->regions));
	}
}

static void *fuzz(void *argument)
{
	struct fuzzer *fuzzer = argument;

	while (time(NULL) < end)
		step(fuzzer);
	close(fuzzer->device);
	return NULL;
}

void test_fuzz(unsigned int seconds, unsigned int seed)
{
	struct fuzzer fuzzers[THREADS] = {};
	unsigned long calls = 0, moved = 0;
	int i;

	printf("memferry_test: fuzzing for %u s with seed %u\n", seconds, seed);
	end = time(NULL) + seconds;
	for (i = 0; i < THREADS; i++) {
		fuzzers[i].state = (seed + 1) * 0x9e3779b97f4a7c15ull + i;
		fuzzers[i].device = device_open();
		fuzzers[i].memory = memory_map(4 * LENGTH);
		pthread_create(&fuzzers[i].thread, NULL, fuzz, &fuzzers[i]);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(fuzzers[i].thread, NULL);
		calls += fuzzers[i].calls;
		moved += fuzzers[i].moved;
	}
	CHECK(calls && moved);
	printf("memferry_test: %lu calls, %lu transfers accepted\n", calls, moved);
}
