// SPDX-License-Identifier: GPL-2.0
/*
 * An engine that cannot be stopped: softdma with synchronizes=0. A short time limit does not fault a channel. A hang does,
 * even if a policy halts the channel repeatedly, and other channels keep serving. The module cannot be unloaded afterwards.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH	(2u << 20)
#define QUEUED	100
#define SOFT	"/sys/module/softdma/parameters/"
#define MODE	"/sys/module/memferry_demo/parameters/mode"

static int device;
static struct memferry_transfer copy;

/* Transfers whose time limit is shorter than they take. */
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
	copy.patience_ms = MEMFERRY_MAX_PATIENCE_MS;
	EQUAL(transfer_run(device, &copy).status, 0);
}

static unsigned int stuck_channels(void)
{
	unsigned int i, count = 0;

	for (i = 0; i < device_query(device).channels; i++)
		count += channel_is(i, "stuck");
	return count;
}

/* The other channels serve transfers. */
static void serves_on(void)
{
	int i;

	for (i = 0; i < 8; i++)
		EQUAL(transfer_run(device, &copy).status, 0);
}

/* Reads through the kernel, in a child process; the engine hangs in this copy at first. */
static void read_demo(void)
{
	int demo = open("/dev/memferry_demo", O_RDONLY);
	uint8_t *memory = memory_map(LENGTH), *expected = memory_map(LENGTH);

	memory_noise(expected, LENGTH, 31);
	EQUAL(pread(demo, memory, LENGTH, 0), LENGTH);
	CHECK(!memcmp(memory, expected, LENGTH));
}

/* A kernel copy in which an engine hangs blocks no other transfer, and its channel is used again when it ends. */
static void stuck(void)
{
	int demo = open("/dev/memferry_demo", O_WRONLY), i, status = -1;
	uint8_t *noise = memory_map(LENGTH);
	pid_t child;

	if (!CHECK(demo >= 0, "memferry_demo is loaded"))
		return;
	memory_noise(noise, LENGTH, 31);
	EQUAL(file_write(MODE, "cpu"), true);
	EQUAL(pwrite(demo, noise, LENGTH, 0), LENGTH);
	EQUAL(file_write(MODE, "dma"), true);
	EQUAL(file_write(SOFT "hang", "1"), true);
	fflush(stdout);
	child = fork();
	if (!child) {
		checks_failed = 0;
		read_demo();
		fflush(stdout);
		_exit(checks_failed > 0);
	}
	while (file_number(SOFT "hang"))
		milliseconds_pass(1);
	/* So slow that transfers queue up in all channels, also behind the one that hangs. */
	EQUAL(file_write(SOFT "delay_us", "20000"), true);
	copy.flags = 0;
	for (i = 0; i < 16; i++)
		EQUAL(submit_one(device, &copy), 0);
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	for (i = 0; i < 16; i++)
		if (!EQUAL(record_next(device).status, 0))
			break;
	for (i = 0; i < 60000 && !stuck_channels(); i++)
		milliseconds_pass(1);
	EQUAL(stuck_channels(), 1);
	copy.flags = MEMFERRY_DMA_ONLY;
	serves_on();
	EQUAL(stuck_channels(), 1);
	/* The hanging descriptor continues. */
	EQUAL(file_write(SOFT "hang", "-1"), true);
	waitpid(child, &status, 0);
	EQUAL(status, 0);
	EQUAL(file_write(SOFT "hang", "0"), true);
	EQUAL(stuck_channels(), 0);
	EQUAL(device_query(device).faulted_channels, 0);
	serves_on();
	close(demo);
	munmap(noise, LENGTH);
}

static bool insists(int tag)
{
	return tag % 3 == 0;
}

/* Queues transfers of many seconds in one channel, and lets it hang. */
static void queue_behind(void)
{
	struct memferry_transfer transfers[QUEUED];
	struct memferry_submit batch = { .transfers = (uintptr_t)transfers, .count = QUEUED };
	cpu_set_t before;
	int i;

	for (i = 0; i < QUEUED; i++) {
		transfers[i] = copy;
		transfers[i].tag = i;
		transfers[i].flags = insists(i) ? MEMFERRY_DMA_ONLY : 0;
	}
	sched_getaffinity(0, sizeof(before), &before);
	pin_to(0);
	EQUAL(file_write(SYSFS "policy", "exclusive"), true);
	EQUAL(file_write(SOFT "delay_us", "50000"), true);
	EQUAL(call(device, MEMFERRY_SUBMIT, &batch), 0);
	EQUAL(batch.accepted, QUEUED);
	EQUAL(file_write(SOFT "hang", "1"), true);
	EQUAL(file_write(SOFT "delay_us", "0"), true);
	EQUAL(file_write(SYSFS "policy", "shared"), true);
	sched_setaffinity(0, sizeof(before), &before);
}

/* Cancels race with a faulted channel that empties its queue. Each transfer ends once. */
static void hanging(void)
{
	int i, lost = 0, cancelled = 0, refused = 0, seen[QUEUED] = {};

	queue_behind();
	while (!device_query(device).faulted_channels)
		milliseconds_pass(1);
	for (i = 0; i < QUEUED; i += 2) {
		uint64_t tag = i;

		CHECK(call(device, MEMFERRY_CANCEL, &tag) >= 0);
	}
	for (i = 0; i < QUEUED; i++) {
		struct memferry_record record = record_next(device);

		/* The CPU moves transfers behind the hanging one, except those with MEMFERRY_DMA_ONLY. */
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
	serves_on();
}

/* The watchdog counts the time in which the policy does not halt the channel. */
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
	stuck();
	hanging();
	hanging_by_turns();
	CHECK(!memcmp(source, destination, LENGTH));
	close(device);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}
