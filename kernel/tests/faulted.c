// SPDX-License-Identifier: GPL-2.0
/*
 * An engine that cannot be stopped: softdma with synchronizes=0. A program's impatience does not cost the machine a channel; a
 * hang does, also one in which a policy halts the channel again and again, and everybody else is served on. The module cannot be
 * unloaded afterwards.
 */
#include "harness.h"

#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	(2u << 20)
#define QUEUED	100
#define SOFT	"/sys/module/softdma/parameters/"

static int device;
static struct memferry_transfer copy;

/* Hundreds of transfers with less time than they take. */
static void impatient(void)
{
	int i, late = 0;

	EQUAL(file_write(SOFT "delay_us", "2000"), true);
	copy.patience_ms = 1;
	for (i = 0; i < QUEUED; i++)
		EQUAL(submit_one(device, &copy), 0);
	for (i = 0; i < QUEUED; i++) {
		int status = record_next(device).status;

		CHECK(!status || status == -ETIMEDOUT);
		late += status == -ETIMEDOUT;
	}
	CHECK(late > 0);
	EQUAL(device_query(device).faulted_channels, 0);
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	copy.patience_ms = 0;
	EQUAL(transfer_run(device, &copy).status, 0);
}

static bool insists(int tag)
{
	return tag % 3 == 0;
}

/* Cancels race with the channel that gives up its queue; each transfer ends once. */
static void hanging(void)
{
	int i, lost = 0, cancelled = 0, refused = 0, seen[QUEUED] = {};

	copy.patience_ms = 60000;
	EQUAL(file_write(SOFT "hang", "1"), true);
	/* However slowly this program runs, the others do not serve what comes before some waits behind the one that hangs. */
	EQUAL(file_write(SOFT "delay_us", "20000"), true);
	for (i = 0; i < QUEUED; i++) {
		copy.tag = i;
		copy.flags = insists(i) ? MEMFERRY_DMA_ONLY : 0;
		EQUAL(submit_one(device, &copy), 0);
	}
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	copy.flags = MEMFERRY_DMA_ONLY;
	while (!device_query(device).faulted_channels)
		milliseconds_pass(1);
	for (i = 0; i < QUEUED; i += 2) {
		uint64_t tag = i;

		CHECK(call(device, MEMFERRY_CANCEL, &tag) >= 0);
	}
	for (i = 0; i < QUEUED; i++) {
		struct memferry_record record = record_next(device);

		/* What waited behind the one that hung is the CPU's, or nobody's. */
		CHECK(!record.status || record.status == -ECANCELED || record.status == -ENOTRECOVERABLE ||
		      (record.status == -ENODEV && insists(record.tag)));
		refused += record.status == -ENODEV;
		lost += record.status == -ENOTRECOVERABLE;
		cancelled += record.status == -ECANCELED;
		if (CHECK(record.tag < QUEUED))
			seen[record.tag]++;
	}
	for (i = 0; i < QUEUED; i++)
		EQUAL(seen[i], 1);
	EQUAL(lost, 1);
	EQUAL(device_query(device).faulted_channels, 1);
	CHECK(refused > 0);
	printf("memferry_test: %d of %d were cancelled while a channel faulted, %d refused\n", cancelled, QUEUED, refused);
	copy.patience_ms = 0;
	for (i = 0; i < 8; i++)
		EQUAL(transfer_run(device, &copy).status, 0);
}

/* The time in which a channel is halted does not count for its watchdog, the rest does. */
static void hanging_by_turns(void)
{
	EQUAL(file_write(SYSFS "high_channels", "1"), true);
	EQUAL(file_write(SYSFS "period_us", "20000"), true);
	EQUAL(file_write(SYSFS "slice_us", "10000"), true);
	EQUAL(file_write(SYSFS "policy", "priority"), true);
	EQUAL(file_write(SOFT "hang", "1"), true);
	EQUAL(transfer_run(device, &copy).status, -ENOTRECOVERABLE);
	EQUAL(device_query(device).faulted_channels, 2);
	EQUAL(transfer_run(device, &copy).status, 0);
	EQUAL(file_write(SYSFS "policy", "shared"), true);
}

void test_faulted(void)
{
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);

	device = device_open();
	memory_noise(source, LENGTH, 12);
	copy = copy_of(region_new(device, source, LENGTH, MEMFERRY_READ), 0,
		       region_new(device, destination, LENGTH, MEMFERRY_WRITE), 0, LENGTH);
	copy.flags = MEMFERRY_DMA_ONLY;
	impatient();
	hanging();
	hanging_by_turns();
	CHECK(!memcmp(source, destination, LENGTH));
	close(device);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}
