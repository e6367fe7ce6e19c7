// SPDX-License-Identifier: GPL-2.0
/*
 * Policies: the channel that a transfer gets; with softdma, that halted channels move nothing. Needs at least two channels.
 */
#include "harness.h"

#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	(256u << 10)
#define SOFT	"/sys/module/softdma/parameters/"
#define QUEUED	60

static int device;
static struct memferry_transfer copy;

static void shared(unsigned int channels)
{
	uint64_t seen = 0;
	unsigned int i;

	EQUAL(file_write(SYSFS "policy", "shared"), true);
	for (i = 0; i < 4 * channels; i++)
		seen |= 1ull << transfer_run(device, &copy).channel;
	EQUAL(seen, (1ull << channels) - 1);
}

static void exclusive(unsigned int channels)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), cpu;

	EQUAL(file_write(SYSFS "policy", "exclusive"), true);
	for (cpu = 0; cpu < cpus; cpu++) {
		pin_to(cpu);
		if (cpu < (long)channels)
			EQUAL(transfer_run(device, &copy).channel, cpu);
		else
			EQUAL(transfer_run(device, &copy).status, -ENODEV);
	}
	pin_to(0);
}

static void priority(unsigned int channels)
{
	struct memferry_record record;
	unsigned int i;

	EQUAL(file_write(SYSFS "high_channels", "1"), true);
	EQUAL(file_write(SYSFS "period_us", "20000"), true);
	EQUAL(file_write(SYSFS "slice_us", "10000"), true);
	EQUAL(file_write(SYSFS "policy", "priority"), true);
	EQUAL(device_query(device).policy, MEMFERRY_PRIORITY);
	for (i = 0; i < 3 * channels; i++) {
		record = transfer_run(device, &copy);
		EQUAL(record.status, 0);
		CHECK(record.channel > 0);
	}
	EQUAL(call(device, MEMFERRY_CLASS, (void *)MEMFERRY_HIGH), 0);
	for (i = 0; i < channels; i++)
		EQUAL(transfer_run(device, &copy).channel, 0);
	EQUAL(call(device, MEMFERRY_CLASS, (void *)MEMFERRY_NORMAL), 0);
}

/* More transfers than the low channels can move while their gates are open for a tenth of a second: the rest waits. */
static void halted(void)
{
	struct memferry_transfer page = copy;
	long before, still = 0, now;
	int i;

	page.length = 4096;
	page.patience_ms = MEMFERRY_MAX_PATIENCE_MS;
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	EQUAL(file_write(SYSFS "period_us", "1000000"), true);
	EQUAL(file_write(SYSFS "slice_us", "900000"), true);
	EQUAL(file_write(SOFT "delay_us", "20000"), true);
	before = file_number(SOFT "performed");
	EQUAL(file_write(SYSFS "policy", "priority"), true);
	for (i = 0; i < QUEUED; i++)
		EQUAL(submit_one(device, &page), 0);
	for (i = 0; i < 2000 && !channel_is(1, "gated"); i++)
		milliseconds_pass(1);
	CHECK(channel_is(1, "gated"));
	/* The present descriptors end. Then the engine does nothing for ten times as long, although transfers wait. */
	for (i = 0, now = -1; i < 20 && still != now; i++) {
		still = now;
		milliseconds_pass(200);
		now = file_number(SOFT "performed");
	}
	EQUAL(now, still);
	CHECK(still < before + QUEUED);
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	for (i = 0; i < QUEUED; i++)
		EQUAL(record_next(device).status, 0);
	EQUAL(file_number(SOFT "performed"), before + QUEUED);
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	EQUAL(file_write(SYSFS "slice_us", "10000"), true);
	EQUAL(file_write(SYSFS "period_us", "20000"), true);
	EQUAL(file_write(SYSFS "policy", "priority"), true);
}

static void settings(void)
{
	EQUAL(file_write(SYSFS "policy", "nonsense"), false);
	EQUAL(file_write(SYSFS "policy", ""), true);
	EQUAL(file_write(SYSFS "slice_us", "20000"), false);
	EQUAL(file_write(SYSFS "slice_us", "1"), false);
	EQUAL(file_write(SYSFS "slice_us", "-1"), false);
	EQUAL(file_write(SYSFS "period_us", "0"), false);
	EQUAL(file_write(SYSFS "period_us", "99999999999"), false);
	EQUAL(file_write(SYSFS "high_channels", "65"), false);
	EQUAL(file_write(SYSFS "threshold_bytes", "many"), false);
	EQUAL(file_number(SYSFS "slice_us"), 10000);
	EQUAL(file_number(SYSFS "period_us"), 20000);
	EQUAL(file_write("/sys/module/memferry/parameters/patience_ms", "0"), false);
	EQUAL(file_write("/sys/module/memferry/parameters/patience_ms", "60001"), false);
	/* All channels serve the high class: the CPU moves transfers of the normal class. */
	EQUAL(file_write(SYSFS "high_channels", "64"), true);
	EQUAL(transfer_run(device, &copy).status, -ENODEV);
	copy.flags = 0;
	EQUAL(transfer_run(device, &copy).moved_by, MEMFERRY_BY_CPU);
	copy.flags = MEMFERRY_DMA_ONLY;
	EQUAL(file_write(SYSFS "high_channels", "1"), true);
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	EQUAL(file_write(SYSFS "threshold_bytes", "1048576"), true);
	copy.flags = 0;
	EQUAL(transfer_run(device, &copy).moved_by, MEMFERRY_BY_CPU);
	EQUAL(file_write(SYSFS "threshold_bytes", "4096"), true);
	CHECK(transfer_run(device, &copy).moved_by & MEMFERRY_BY_DMA);
	copy.flags = MEMFERRY_DMA_ONLY;
}

/* Policies change while transfers run. No transfer is lost. */
static void changing(void)
{
	static const char * const policies[] = { "shared", "priority", "exclusive" };
	unsigned int round, i, moved = 0, other = 0;

	copy.flags = 0;
	for (round = 0; round < 30; round++) {
		for (i = 0; i < 16; i++)
			EQUAL(submit_one(device, &copy), 0);
		EQUAL(file_write(SYSFS "policy", policies[round % 3]), true);
		for (i = 0; i < 16; i++) {
			int status = record_next(device).status;

			moved += !status;
			other += !!status;
		}
	}
	EQUAL(moved, 30 * 16);
	EQUAL(other, 0);
	EQUAL(file_write(SYSFS "policy", "shared"), true);
}

void test_policies(void)
{
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
	unsigned int channels;

	device = device_open();
	channels = device_query(device).channels;
	if (!CHECK(channels >= 2, "the module has at least two channels"))
		return;
	memory_noise(source, LENGTH, 8);
	copy = copy_of(region_new(device, source, LENGTH, MEMFERRY_READ), 0,
		       region_new(device, destination, LENGTH, MEMFERRY_WRITE), 0, LENGTH);
	copy.flags = MEMFERRY_DMA_ONLY;
	shared(channels);
	exclusive(channels);
	priority(channels);
	if (!access(SOFT, F_OK))
		halted();
	settings();
	changing();
	CHECK(!memcmp(source, destination, LENGTH));
	close(device);
}
