// SPDX-License-Identifier: GPL-2.0
/*
 * Several processes and threads: inherited descriptors, races for handles, a process that dies during its transfers, and
 * unloading the module while it is in use.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH	(1u << 20)
#define BOTH	(MEMFERRY_READ | MEMFERRY_WRITE)
#define HANG	"/sys/module/softdma/parameters/hang"

static int device;

static void use_parents(void)
{
	struct memferry_transfer copy = copy_of(1, 0, 1, 0, 64);
	struct memferry_query query;
	struct memferry_record record;
	uint64_t tag = 0;

	EQUAL(call(device, MEMFERRY_QUERY, &query), -EPERM);
	EQUAL(region_new(device, &record, 8, BOTH), -EPERM);
	EQUAL(submit_one(device, &copy), -EPERM);
	EQUAL(call(device, MEMFERRY_CANCEL, &tag), -EPERM);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)1), -EPERM);
	EQUAL(read(device, &record, sizeof(record)), -1);
	EQUAL(errno, EPERM);
}

/* After a fork, pinned pages stay the parent's; the child gets copies. */
static void forked(void)
{
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
	struct memferry_transfer copy;
	uint32_t from, to;
	pid_t child;
	int gate[2], status;

	memory_noise(source, LENGTH, 5);
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	to = region_new(device, destination, LENGTH, MEMFERRY_WRITE);
	copy = copy_of(from, 0, to, 0, LENGTH);
	EQUAL(pipe(gate), 0);
	child = fork();
	if (!child) {
		char byte;

		close(gate[1]);
		_exit(read(gate[0], &byte, 1) != 1 || destination[LENGTH / 2] != 0);
	}
	close(gate[0]);
	EQUAL(transfer_run(device, &copy).status, 0);
	CHECK(!memcmp(source, destination, LENGTH), "the parent sees the copied bytes");
	memory_noise(source, LENGTH, 6);
	EQUAL(transfer_run(device, &copy).status, 0);
	CHECK(!memcmp(source, destination, LENGTH), "a transfer reads what the parent wrote after the fork");
	EQUAL(write(gate[1], "x", 1), 1);
	close(gate[1]);
	waitpid(child, &status, 0);
	EQUAL(status, 0);
	EQUAL(status_in_child(use_parents), 0);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)from), 0);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)to), 0);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}

static void submit_and_die(void)
{
	int own = device_open();
	uint8_t *memory = memory_map(4 * LENGTH);
	uint32_t region = region_new(own, memory, 4 * LENGTH, BOTH);
	struct memferry_transfer copy = copy_of(region, 0, region, 2 * LENGTH, 2 * LENGTH);
	int i;

	for (i = 0; i < 32; i++)
		submit_one(own, &copy);
	kill(getpid(), SIGKILL);
}

static void submit_and_leave(void)
{
	int own = device_open(), i;
	uint8_t *memory = memory_map(4 * LENGTH);
	uint32_t region = region_new(own, memory, 4 * LENGTH, BOTH);
	struct memferry_transfer copy = copy_of(region, 0, region, 2 * LENGTH, 2 * LENGTH);

	for (i = 0; i < 32; i++)
		submit_one(own, &copy);
	munmap(memory, 4 * LENGTH);
	close(own);
}

struct racer {
	pthread_t thread;
	int transfers;
	int strange;
};

static uint8_t *raced;
static volatile bool racing;
static volatile uint32_t latest;

/* Registers a region, uses the handle that any thread registered last, and unregisters that. */
static void *race(void *argument)
{
	struct racer *racer = argument;

	while (racing) {
		long region = region_new(device, raced, LENGTH, BOTH);
		struct memferry_transfer copy;
		struct memferry_record records[16];
		long error;
		int i;

		if (region > 0)
			latest = region;
		for (i = 0; i < 4; i++) {
			copy = copy_of(latest, 0, latest, LENGTH / 2, 5000 * i);
			error = submit_one(device, &copy);
			racer->transfers += !error;
			racer->strange += error && error != -ENOENT && error != -EAGAIN;
		}
		error = call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)latest);
		racer->strange += error && error != -ENOENT;
		error = read(device, records, sizeof(records));
		for (i = 0; i < (long)(error / (long)sizeof(*records)); i++)
			racer->strange += records[i].status && records[i].status != -ECANCELED;
	}
	return NULL;
}

static void raced_for(void)
{
	struct racer racers[4] = {};
	int i, transfers = 0;

	device = device_open();
	raced = memory_map(LENGTH);
	racing = true;
	for (i = 0; i < 4; i++)
		pthread_create(&racers[i].thread, NULL, race, &racers[i]);
	milliseconds_pass(2000);
	racing = false;
	for (i = 0; i < 4; i++) {
		pthread_join(racers[i].thread, NULL);
		EQUAL(racers[i].strange, 0);
		transfers += racers[i].transfers;
	}
	CHECK(transfers > 0);
	printf("memferry_test: %d transfers between racing threads\n", transfers);
	close(device);
	munmap(raced, LENGTH);
}

/* Number of pages that are pinned in the machine. */
static long pinned_pages(void)
{
	long acquired = -1, released = -1;
	char line[128];
	FILE *file;

	/* Adds up the counters of all CPUs. */
	file_write("/proc/sys/vm/stat_refresh", "1");
	file = fopen("/proc/vmstat", "r");
	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "nr_foll_pin_acquired %ld", &acquired);
		sscanf(line, "nr_foll_pin_released %ld", &released);
	}
	if (file)
		fclose(file);
	CHECK(acquired >= 0 && released >= 0);
	return acquired - released;
}

/* A module with running transfers cannot be unloaded, and they continue. With softdma they certainly run, because it hangs. */
static void unloaded(void)
{
	uint8_t *memory = memory_map(2 * LENGTH);
	uint32_t region = region_new(device, memory, 2 * LENGTH, BOTH);
	struct memferry_transfer copy = copy_of(region, 0, region, LENGTH, LENGTH);
	unsigned int count = device_query(device).channels ?: 1, i;
	bool hangs = file_write(HANG, "1");
	struct memferry_record record;

	/* One transfer on each channel. */
	for (i = 0; i < count; i++)
		EQUAL(submit_one(device, &copy), 0);
	EQUAL(syscall(SYS_delete_module, "memferry", O_NONBLOCK), -1);
	EQUAL(errno, EWOULDBLOCK);
	for (i = hangs; i < count; i++)
		EQUAL(record_next(device).status, 0);
	if (hangs) {
		EQUAL(read(device, &record, sizeof(record)), -1);
		EQUAL(errno, EAGAIN);
	}
	/* Closing ends the hanging transfers. */
	close(device);
	if (hangs)
		EQUAL(file_write(HANG, "0"), true);
	munmap(memory, 2 * LENGTH);
}

void test_processes(void)
{
	long pinned;
	int i;

	device = device_open();
	forked();
	unloaded();
	pinned = pinned_pages();
	for (i = 0; i < 10; i++) {
		CHECK(WIFSIGNALED(status_in_child(submit_and_die)));
		EQUAL(status_in_child(submit_and_leave), 0);
	}
	EQUAL(status_in_child(raced_for), 0);
	/* All their memory is unpinned, some of it after the processes have ended. */
	for (i = 0; i < 1000 && pinned_pages() != pinned; i++)
		milliseconds_pass(10);
	EQUAL(pinned_pages(), pinned);
}
