// SPDX-License-Identifier: GPL-2.0
/*
 * read and write of a driver by DMA (Papa 2014), through memferry_demo: what the policies do with one to four channels, and
 * how long copies take. Every byte is compared, and the bytes around it. In a guest the times are an emulator's.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LONGEST	(4u << 20)
#define PART	(1u << 20)
#define READERS	4
#define ROUNDS	2
#define MODE	"/sys/module/memferry_demo/parameters/mode"

static int demo;
static unsigned int channels;
static uint8_t *content;
static uint64_t moved[64];

/* Bytes that each channel has moved since the last call. */
static uint64_t moved_by(unsigned int channel)
{
	uint64_t before = moved[channel];

	moved[channel] = channel_bytes(channel);
	return moved[channel] - before;
}

static void forget_moved(void)
{
	unsigned int i;

	for (i = 0; i < channels; i++)
		moved_by(i);
}

static void be_urgent(bool urgent)
{
	struct sched_param parameter = { .sched_priority = urgent };

	EQUAL(sched_setscheduler(0, urgent ? SCHED_FIFO : SCHED_OTHER, &parameter), 0);
}

/* Reads, and compares all bytes and those around them. */
static void read_part(uint8_t *memory, size_t offset, size_t length)
{
	size_t i, stray = 0;

	memset(memory, 0xee, length + 2 * GUARD);
	EQUAL(pread(demo, memory + GUARD, length, offset), length);
	CHECK(!memcmp(memory + GUARD, content + offset, length), "the bytes that were read are the buffer's");
	for (i = 0; i < GUARD; i++)
		stray += memory[i] != 0xee || memory[GUARD + length + i] != 0xee;
	EQUAL(stray, 0);
}

struct reader {
	pthread_t thread;
	int cpu;			/* -1: any */
	bool urgent;
	unsigned int count;
	size_t length;
	volatile bool done;
};

static void *read_parts(void *parameter)
{
	struct reader *reader = parameter;
	uint8_t *memory = memory_map(reader->length + 2 * GUARD);
	unsigned int i;

	if (reader->cpu >= 0)
		pin_to(reader->cpu);
	be_urgent(reader->urgent);
	for (i = 0; i < reader->count; i++)
		read_part(memory, i * 4099 % (LONGEST - reader->length), reader->length);
	reader->done = true;
	munmap(memory, reader->length + 2 * GUARD);
	return NULL;
}

static void start(struct reader *reader)
{
	reader->done = false;
	EQUAL(pthread_create(&reader->thread, NULL, read_parts, reader), 0);
}

/* Readers share all channels, none of which gets less than half of its part. */
static void shared(void)
{
	struct reader readers[READERS];
	uint64_t total = 0, least = UINT64_MAX, bytes;
	unsigned int i;

	EQUAL(file_write(SYSFS "policy", "shared"), true);
	forget_moved();
	for (i = 0; i < READERS; i++) {
		readers[i] = (struct reader){ .cpu = -1, .count = 4, .length = PART };
		start(&readers[i]);
	}
	for (i = 0; i < READERS; i++)
		pthread_join(readers[i].thread, NULL);
	for (i = 0; i < channels; i++) {
		bytes = moved_by(i);
		total += bytes;
		least = bytes < least ? bytes : least;
	}
	/* The CPU moves parts shorter than the threshold. */
	CHECK(total > READERS * 4 * (uint64_t)PART - READERS * 4 * 8192);
	CHECK(least * channels * 2 >= total, "no channel moves less than half of its share");
	printf("memferry_test: shared: of %u channels the least moved %llu %%\n", channels,
	       (unsigned long long)(100 * least / total));
}

/* A CPU's reads use its own channel; one without a channel copies by itself. */
static void exclusive(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), cpu;
	unsigned int i;

	EQUAL(file_write(SYSFS "policy", "exclusive"), true);
	for (cpu = 0; cpu < cpus; cpu++) {
		struct reader reader = { .cpu = cpu, .count = 2, .length = PART };

		forget_moved();
		start(&reader);
		pthread_join(reader.thread, NULL);
		for (i = 0; i < channels; i++) {
			uint64_t bytes = moved_by(i);

			if ((long)i == cpu)
				CHECK(bytes > 2 * (PART - 8192));
			else
				EQUAL(bytes, 0);
		}
	}
}

/* Urgent readers have the first channel; the others halt for most of a period, and their readers wait. */
static void priority(void)
{
	struct reader urgent = { .cpu = -1, .urgent = true, .count = 4, .length = PART };
	struct reader normal = { .cpu = -1, .count = 4, .length = PART };
	unsigned int i, tries;
	uint64_t bytes = 0;
	bool judged = false;

	EQUAL(file_write(SYSFS "policy", "shared"), true);
	EQUAL(file_write(SYSFS "period_us", "1000000"), true);
	EQUAL(file_write(SYSFS "slice_us", "900000"), true);
	EQUAL(file_write(SYSFS "high_channels", "1"), true);
	EQUAL(file_write(SYSFS "policy", "priority"), true);
	forget_moved();
	start(&urgent);
	pthread_join(urgent.thread, NULL);
	CHECK(moved_by(0) > 4 * (PART - 8192));
	for (i = 1; i < channels; i++)
		EQUAL(moved_by(i), 0);
	for (tries = 0; channels > 1 && tries < 10 && !judged; tries++) {
		for (i = 0; i < 3000 && !channel_is(1, "gated"); i++)
			milliseconds_pass(1);
		start(&normal);
		start(&urgent);
		pthread_join(urgent.thread, NULL);
		/* Judged if the gate stayed closed: else the emulator was too slow, and it is tried again. */
		judged = !normal.done && channel_is(1, "gated");
		pthread_join(normal.thread, NULL);
	}
	if (channels > 1) {
		CHECK(judged, "urgent reads end while a normal one waits behind the gate");
	} else {
		start(&normal);
		pthread_join(normal.thread, NULL);
	}
	forget_moved();
	start(&normal);
	pthread_join(normal.thread, NULL);
	EQUAL(moved_by(0), 0);
	for (i = 1; i < channels; i++)
		bytes += moved_by(i);
	if (channels > 1)
		CHECK(bytes > 4 * (PART - 8192));
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	EQUAL(file_write(SYSFS "slice_us", "3000"), true);
	EQUAL(file_write(SYSFS "period_us", "10000"), true);
}

static double microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

/* Bytes that all channels have moved. */
static uint64_t moved_in_all(void)
{
	uint64_t bytes = 0;
	unsigned int i;

	for (i = 0; i < channels; i++)
		bytes += channel_bytes(i);
	return bytes;
}

/* Best time of a read or a write of this length; below 0 if a channel should have moved bytes of each, and moved none of one. */
static double best_of(uint8_t *memory, size_t length, bool writes, bool by_dma)
{
	double best = 1e12, begin, taken;
	bool moves = true;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		uint64_t before = moved_in_all();

		begin = microseconds();
		if (writes)
			EQUAL(pwrite(demo, content, length, 0), length);
		else
			EQUAL(pread(demo, memory + GUARD, length, 0), length);
		taken = microseconds() - begin;
		best = taken < best ? taken : best;
		moves &= moved_in_all() > before;
		read_part(memory, 0, length);
	}
	return moves || !by_dma ? best : -1;
}

static void print_time(double time)
{
	if (time < 0)
		printf(" -");
	else
		printf(" %.0f", time);
}

/* One row of the table for each length. */
static void measure(const char *policy, const char *name)
{
	uint8_t *memory = memory_map(LONGEST + 2 * GUARD);
	size_t length;

	EQUAL(file_write(SYSFS "policy", policy), true);
	for (length = 4096; length <= LONGEST; length *= 4) {
		double times[2][2];
		int mode;

		for (mode = 0; mode < 2; mode++) {
			EQUAL(file_write(MODE, mode ? "dma" : "cpu"), true);
			times[mode][0] = best_of(memory, length, false, mode);
			times[mode][1] = best_of(memory, length, true, mode);
			/* Longer than any threshold. Of one channel, urgent copies have all. */
			if (mode && length == LONGEST) {
				bool has_channel = channels > 1 || strcmp(name, "priority-normal");

				EQUAL(times[1][0] >= 0, has_channel);
				EQUAL(times[1][1] >= 0, has_channel);
			}
		}
		printf("memferry_test: emulated %s %u %zu", name, channels, length);
		for (mode = 0; mode < 4; mode++)
			print_time(times[mode % 2][mode / 2]);
		printf("\n");
	}
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	munmap(memory, LONGEST + 2 * GUARD);
}

void test_copies(void)
{
	int device = device_open();

	channels = device_query(device).channels;
	close(device);
	demo = open("/dev/memferry_demo", O_RDWR);
	if (!CHECK(demo >= 0, "memferry_demo is loaded") || !CHECK(channels && channels <= 64))
		return;
	content = memory_map(LONGEST);
	memory_noise(content, LONGEST, 2014);
	EQUAL(file_write(MODE, "dma"), true);
	EQUAL(pwrite(demo, content, LONGEST, 0), LONGEST);
	shared();
	exclusive();
	priority();
	pin_to(0);
	measure("shared", "shared");
	measure("exclusive", "exclusive");
	measure("priority", "priority-normal");
	be_urgent(true);
	measure("priority", "priority-high");
	be_urgent(false);
	EQUAL(file_write(MODE, "cpu"), true);
	close(demo);
	munmap(content, LONGEST);
}
