// SPDX-License-Identifier: GPL-2.0
/*
 * An engine that hangs, fails and refuses on request: softdma. The module must have taken its channels.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH	(3u << 20)
#define SOFT	"/sys/module/softdma/parameters/"
#define PATIENCE	"/sys/module/memferry/parameters/patience_ms"
/* Large, so that mapping it for the device takes long. */
#define CONTESTED	(32u << 20)

static int device;
static uint8_t *source, *destination;
static uint32_t from, to;

static struct memferry_transfer whole(uint64_t tag)
{
	struct memferry_transfer copy = copy_of(from, 0, to, 0, LENGTH);

	copy.tag = tag;
	copy.flags = MEMFERRY_DMA_ONLY;
	memset(destination, 0, LENGTH);
	return copy;
}

/* The record's bytes were copied, and the next transfer succeeds. */
static void verify_part(struct memferry_record record)
{
	struct memferry_transfer next;

	file_write(SOFT "refuse", "0");
	/* The transfer may have timed out before the engine got a descriptor to hang in. */
	file_write(SOFT "hang", "0");

	CHECK(record.bytes_done < LENGTH);
	CHECK(!memcmp(source, destination, record.bytes_done), "all bytes of bytes_done were copied");
	next = whole(1);
	EQUAL(transfer_run(device, &next).status, 0);
	CHECK(!memcmp(source, destination, LENGTH), "the channel still copies");
}

/* A transfer ends after its own time limit, or after the module's if it sets none. */
static void timed_out(uint32_t patience_ms)
{
	struct memferry_transfer copy = whole(9);
	struct memferry_record record;

	copy.patience_ms = patience_ms;
	EQUAL(file_write(PATIENCE, "300"), true);
	EQUAL(file_write(SOFT "hang", "1"), true);
	record = transfer_run(device, &copy);
	EQUAL(record.status, -ETIMEDOUT);
	EQUAL(record.tag, 9);
	EQUAL(file_write(PATIENCE, "5000"), true);
	verify_part(record);
}

/* Another client hangs count channels, for up to a minute. Closing the returned descriptor ends that. */
static int hang_channels(unsigned int count)
{
	int other = device_open();
	uint8_t *memory = memory_map(LENGTH);
	uint32_t region = region_new(other, memory, LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
	struct memferry_transfer copy = copy_of(region, 0, region, LENGTH / 2, LENGTH / 2);
	char number[16];

	snprintf(number, sizeof(number), "%u", count);
	EQUAL(file_write(SOFT "hang", number), true);
	/* Each transfer goes to an idle channel. */
	while (count--)
		EQUAL(submit_one(other, &copy), 0);
	munmap(memory, LENGTH);
	return other;
}

/* Checks that the channels hung until now, and ends that. */
static void let_channels_go(int other)
{
	struct memferry_record record;

	EQUAL(read(other, &record, sizeof(record)), -1);
	EQUAL(errno, EAGAIN);
	close(other);
	EQUAL(file_write(SOFT "hang", "0"), true);
}

/* Transfers that wait behind a hanging one end at their own time limits. */
static void timed_out_in_line(void)
{
	unsigned int channels = device_query(device).channels, i;
	int other = hang_channels(channels);
	struct memferry_transfer copy = whole(9);
	struct memferry_record record;

	for (i = 0; i < 2 * channels; i++) {
		copy.patience_ms = 100 + 100 * (i % 2);
		EQUAL(submit_one(device, &copy), 0);
	}
	for (i = 0; i < 2 * channels; i++) {
		record = record_next(device);
		if (!EQUAL(record.status, -ETIMEDOUT))
			break;
		EQUAL(record.bytes_done, 0);
		EQUAL(record.moved_by, 0);
	}
	let_channels_go(other);
	verify_part(record);
}

static volatile uint32_t contested;

/* Submits the contested copy and stores whether it was accepted. */
static void *submit_contested(void *accepted)
{
	struct memferry_transfer copy = copy_of(contested, 0, contested, CONTESTED / 2, CONTESTED / 2);

	copy.flags = MEMFERRY_DMA_ONLY;
	*(bool *)accepted = !submit_one(device, &copy);
	return NULL;
}

/*
 * Unregisters a region while its first transfer is being submitted, which takes long because it maps the region for the
 * device. If the unregister missed that transfer, it would wait for it behind the hanging ones.
 */
static void let_go_of_meanwhile(void)
{
	int other = hang_channels(device_query(device).channels);
	uint8_t *memory = memory_map(CONTESTED);
	unsigned int round, cancelled = 0;
	time_t end = time(NULL) + 5;

	for (round = 0; time(NULL) < end; round++) {
		bool accepted = false;
		pthread_t thread;

		contested = region_new(device, memory, CONTESTED, MEMFERRY_READ | MEMFERRY_WRITE);
		pthread_create(&thread, NULL, submit_contested, &accepted);
		milliseconds_pass(round % 8);
		EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)contested), 0);
		pthread_join(thread, NULL);
		if (accepted && EQUAL(record_next(device).status, -ECANCELED))
			cancelled++;
	}
	let_channels_go(other);
	munmap(memory, CONTESTED);
	printf("memferry_test: %u transfers were cancelled during their submission, in %u rounds\n", cancelled, round);
}

static void failed(void)
{
	struct memferry_transfer copy = whole(9);
	struct memferry_record record;

	EQUAL(file_write(SOFT "fail", "1"), true);
	record = transfer_run(device, &copy);
	EQUAL(record.status, -EIO);
	verify_part(record);
}

/* The CPU moves what an engine refuses, except with MEMFERRY_DMA_ONLY. */
static void refused(void)
{
	static const char * const counts[] = { "1", "3", "100000" };
	size_t i;

	for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		struct memferry_transfer copy = whole(9);
		struct memferry_record record;

		EQUAL(file_write(SOFT "refuse", counts[i]), true);
		record = transfer_run(device, &copy);
		EQUAL(record.status, -ENODEV);
		EQUAL(record.moved_by & MEMFERRY_BY_CPU, 0);
		verify_part(record);
		copy = whole(9);
		copy.flags = 0;
		EQUAL(file_write(SOFT "refuse", counts[i]), true);
		record = transfer_run(device, &copy);
		EQUAL(record.status, 0);
		EQUAL(record.bytes_done, LENGTH);
		CHECK(record.moved_by & MEMFERRY_BY_CPU);
		CHECK(!memcmp(source, destination, LENGTH));
		file_write(SOFT "refuse", "0");
	}
}

static void cancelled(void)
{
	struct memferry_transfer copy;
	struct memferry_record records[8];
	uint64_t tag = 3;
	int i, ended = 0;

	/* One transfer hangs on each channel, and the others wait behind them. */
	EQUAL(file_write(SOFT "hang", "4"), true);
	for (i = 0; i < 8; i++) {
		copy = whole(i < 4 ? 2 : 3);
		/* Long enough to submit all of them. */
		copy.patience_ms = i < 4 ? 10000 : MEMFERRY_MAX_PATIENCE_MS;
		EQUAL(submit_one(device, &copy), 0);
	}
	EQUAL(call(device, MEMFERRY_CANCEL, &tag), 4);
	tag = 77;
	EQUAL(call(device, MEMFERRY_CANCEL, &tag), 0);
	for (i = 0; i < 8; i++) {
		records[i] = record_next(device);
		ended += records[i].status == (records[i].tag == 3 ? -ECANCELED : -ETIMEDOUT);
	}
	EQUAL(ended, 8);
	/* The waiting transfers ended first. */
	for (i = 0; i < 4; i++)
		EQUAL(records[i].tag, 3);
	copy = whole(1);
	EQUAL(transfer_run(device, &copy).status, 0);
}

/* The end of a program stops the engine at once, without its time-out. */
static void gone(void)
{
	struct timespec begin, end;
	int status = -1;
	pid_t child;

	EQUAL(file_write(SOFT "hang", "1"), true);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	fflush(stdout);
	child = fork();
	if (!child) {
		int own = device_open();
		uint8_t *memory = memory_map(LENGTH);
		uint32_t region = region_new(own, memory, LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
		struct memferry_transfer copy = copy_of(region, 0, region, LENGTH / 2, LENGTH / 2);

		_exit(submit_one(own, &copy) != 0);
	}
	waitpid(child, &status, 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	EQUAL(status, 0);
	CHECK(end.tv_sec - begin.tv_sec < 30);
	file_write(SOFT "hang", "0");
}

/* One client has long transfers queued in each channel. Another one is served between their batches. */
static void fair(void)
{
	enum { LISTS = 32 };
	static struct memferry_segment segments[MEMFERRY_MAX_SEGMENTS];
	int greedy = device_open(), i;
	/* Not the memory of other tests: DMA-API debugging warns at each piece of memory that is registered twice. */
	uint8_t *memory = memory_map(2 * LENGTH);
	uint32_t region = region_new(greedy, memory, LENGTH, MEMFERRY_READ);
	uint32_t other = region_new(greedy, memory + LENGTH, LENGTH, MEMFERRY_WRITE);
	struct memferry_transfer list = {
		.operation = MEMFERRY_LIST, .flags = MEMFERRY_DMA_ONLY, .segments = (uintptr_t)segments,
		.segment_count = MEMFERRY_MAX_SEGMENTS, .patience_ms = MEMFERRY_MAX_PATIENCE_MS,
	};
	struct memferry_record record;

	for (i = 0; i < MEMFERRY_MAX_SEGMENTS; i++)
		segments[i] = (struct memferry_segment){
			.source.region = region, .destination.region = other, .length = 1 << 20,
		};
	EQUAL(file_write(SOFT "delay_us", "1000"), true);
	for (i = 0; i < LISTS; i++)
		EQUAL(submit_one(greedy, &list), 0);
	for (i = 0; i < 4; i++) {
		struct memferry_transfer copy = whole(i);

		EQUAL(transfer_run(device, &copy).status, 0);
		CHECK(!memcmp(source, destination, LENGTH));
	}
	/* No list has completed; each one ends cancelled, or timed out on a slow machine. */
	CHECK(call(greedy, MEMFERRY_CANCEL, &list.tag) >= 0);
	for (i = 0; i < LISTS; i++) {
		record = record_next(greedy);
		if (!CHECK(record.status == -ECANCELED || record.status == -ETIMEDOUT))
			break;
	}
	close(greedy);
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	munmap(memory, 2 * LENGTH);
}

/* The engine gets fills and planes as such, not as copies. */
static void abilities(void)
{
	struct memferry_transfer fill = {
		.operation = MEMFERRY_FILL, .flags = MEMFERRY_DMA_ONLY, .length = LENGTH, .pattern = 0x5a, .pattern_bytes = 1,
		.destination.region = to, .patience_ms = MEMFERRY_MAX_PATIENCE_MS,
	};
	struct memferry_transfer plane = copy_of(from, 0, to, 0, 1024);
	long fills = file_number(SOFT "fills"), planes = file_number(SOFT "planes");
	size_t i, row, wrong = 0;

	EQUAL(transfer_run(device, &fill).bytes_by_dma, LENGTH);
	for (i = 0; i < LENGTH; i++)
		wrong += destination[i] != 0x5a;
	EQUAL(wrong, 0);
	CHECK(file_number(SOFT "fills") > fills);
	plane.operation = MEMFERRY_PLANE;
	plane.rows = 512;
	plane.source_pitch = 2048;
	plane.destination_pitch = 4096;
	EQUAL(transfer_run(device, &plane).bytes_by_dma, 512 * 1024);
	for (row = 0; row < 512; row++)
		wrong += memcmp(destination + row * 4096, source + row * 2048, 1024) != 0;
	EQUAL(wrong, 0);
	for (i = 0; i < LENGTH; i++)
		wrong += (i % 4096 >= 1024 || i >= 512 * 4096) && destination[i] != 0x5a;
	EQUAL(wrong, 0);
	/* One descriptor moves rows of one run, and the number of runs depends on the allocator. */
	printf("memferry_test: %ld descriptors of planes\n", file_number(SOFT "planes") - planes);
}

void test_faults(void)
{
	device = device_open();
	if (!device_query(device).channels || access(SOFT "hang", W_OK)) {
		CHECK(false, "softdma is not loaded, or the module has no channel");
		return;
	}
	source = memory_map(LENGTH);
	destination = memory_map(LENGTH);
	memory_noise(source, LENGTH, 4);
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	to = region_new(device, destination, LENGTH, MEMFERRY_WRITE);
	timed_out(300);
	timed_out(0);
	timed_out_in_line();
	let_go_of_meanwhile();
	failed();
	refused();
	cancelled();
	gone();
	fair();
	abilities();
	close(device);
}
