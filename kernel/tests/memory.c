// SPDX-License-Identifier: GPL-2.0
/*
 * Kinds of memory: memfd, huge pages, read-only, device memory, memory unmapped during a transfer; and the limit on pinned
 * memory.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH	(1u << 20)
#define BOTH	(MEMFERRY_READ | MEMFERRY_WRITE)
#define HUGE_PAGES	"/proc/sys/vm/nr_hugepages"

static int device;

static void forget(long region)
{
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)region), 0);
}

/* Copies between the regions, and compares through the mappings. */
static void copy_through(uint8_t *source, uint8_t *destination, long from, long to)
{
	struct memferry_transfer copy = copy_of(from, 0, to, 0, LENGTH);

	memory_noise(source, LENGTH, from + 1);
	EQUAL(transfer_run(device, &copy).status, 0);
	CHECK(!memcmp(source, destination, LENGTH));
}

static void memfds(void)
{
	int file = syscall(SYS_memfd_create, "test", 0), plain;
	uint8_t *one = memory_map(LENGTH), *two, *read_only;
	struct memferry_transfer copy;
	long from, to;

	EQUAL(ftruncate(file, LENGTH), 0);
	two = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	read_only = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, file, 0);
	from = region_new(device, one, LENGTH, MEMFERRY_READ);
	to = region_new(device, two, LENGTH, MEMFERRY_WRITE);
	copy_through(one, two, from, to);
	CHECK(!memcmp(two, read_only, LENGTH), "the bytes are visible through the other mapping");
	/* Pinned pages stay when the file is truncated or unmapped. */
	EQUAL(ftruncate(file, 0), 0);
	munmap(two, LENGTH);
	copy = copy_of(from, 0, to, 0, LENGTH);
	EQUAL(transfer_run(device, &copy).status, 0);
	forget(to);
	/* A read-only mapping can be registered for reading only. */
	EQUAL(ftruncate(file, LENGTH), 0);
	EQUAL(region_new(device, read_only, LENGTH, MEMFERRY_WRITE), -EACCES);
	EQUAL(region_new(device, read_only, LENGTH, BOTH), -EACCES);
	to = region_new(device, read_only, LENGTH, MEMFERRY_READ);
	CHECK(to > 0);
	forget(to);
	forget(from);
	munmap(read_only, LENGTH);
	close(file);

	EQUAL(mprotect(one, LENGTH, PROT_NONE), 0);
	EQUAL(region_new(device, one, LENGTH, MEMFERRY_READ), -EACCES);
	munmap(one, LENGTH);
	/* A file that is usually not on a memory file system. */
	plain = open("/proc/self/exe", O_RDONLY);
	one = mmap(NULL, 4096, PROT_READ, MAP_SHARED, plain, 0);
	if (CHECK(one != MAP_FAILED)) {
		from = region_new(device, one, 4096, MEMFERRY_READ);
		/* In a guest, programs are on tmpfs. */
		CHECK(from > 0 || from == -EOPNOTSUPP);
		if (from > 0)
			forget(from);
		munmap(one, 4096);
	}
	close(plain);
}

/* Memory that was registered for reading before the program wrote to it: transfers read the later writes. */
static void copy_on_write(void)
{
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
	long from, to;
	volatile uint8_t sum = 0;

	for (size_t i = 0; i < LENGTH; i += 4096)
		sum += source[i];
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	to = region_new(device, destination, LENGTH, MEMFERRY_WRITE);
	copy_through(source, destination, from, to);
	forget(from);
	forget(to);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}

static void huge_page(void)
{
	size_t huge = 2 << 20;
	uint8_t *source, *destination;
	long from, to;

	source = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (source == MAP_FAILED) {
		printf("memferry_test: huge pages are not tried: %s\n", strerror(errno));
		return;
	}
	destination = memory_map(LENGTH);
	from = region_new(device, source, huge, BOTH);
	to = region_new(device, destination, LENGTH, BOTH);
	copy_through(source, destination, from, to);
	copy_through(destination, source, to, from);
	forget(from);
	forget(to);
	munmap(source, huge);
	munmap(destination, LENGTH);
}

/* Adds huge pages to the machine's pool for the test, and removes them afterwards. */
static void huge_pages(void)
{
	long before = file_number(HUGE_PAGES);
	char count[32];

	snprintf(count, sizeof(count), "%ld", before + 4);
	if (before >= 0)
		file_write(HUGE_PAGES, count);
	huge_page();
	snprintf(count, sizeof(count), "%ld", before);
	if (before >= 0)
		EQUAL(file_write(HUGE_PAGES, count), true);
}

static void device_memory(void)
{
	int memory = open("/dev/mem", O_RDONLY);
	void *mapped = memory < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0xfd500000);

	if (mapped == MAP_FAILED) {
		printf("memferry_test: a device's memory is not tried: %s\n", strerror(errno));
	} else {
		EQUAL(region_new(device, mapped, 4096, MEMFERRY_READ), -EFAULT);
		munmap(mapped, 4096);
	}
	if (memory >= 0)
		close(memory);
}

/* Memory that the program unmaps while transfers use it. */
static void unmapped_meanwhile(void)
{
	int round, i;

	for (round = 0; round < 8; round++) {
		uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
		long from = region_new(device, source, LENGTH, MEMFERRY_READ);
		long to = region_new(device, destination, LENGTH, MEMFERRY_WRITE);
		struct memferry_transfer copy = copy_of(from, 0, to, 0, LENGTH);
		int cancelled = 0;

		for (i = 0; i < 8; i++)
			EQUAL(submit_one(device, &copy), 0);
		munmap(source, LENGTH);
		munmap(destination, LENGTH);
		/* Running transfers end and waiting ones are cancelled. Afterwards nothing uses the memory. */
		if (round % 2) {
			forget(to);
			forget(from);
		}
		for (i = 0; i < 8; i++) {
			struct memferry_record record = record_next(device);

			if (!(round % 2) || record.status != -ECANCELED)
				EQUAL(record.status, 0);
			cancelled += record.status == -ECANCELED;
		}
		if (!(round % 2)) {
			forget(to);
			forget(from);
		}
	}
}

/* Opens the device as root, then drops privileges. */
static bool become_a_user(void)
{
	struct rlimit limit = { .rlim_cur = 256 << 10, .rlim_max = 256 << 10 };

	device = device_open();
	return CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit) && !setresuid(1000, 1000, 1000),
		     "drops privileges");
}

/* The limits of an unprivileged user. Runs in a child. */
static void limited(void)
{
	uint8_t *memory = memory_map(LENGTH);
	long first, second;

	if (!become_a_user())
		return;
	EQUAL(region_new(device, memory, LENGTH, BOTH), -ENOMEM);
	first = region_new(device, memory, 200 << 10, BOTH);
	CHECK(first > 0);
	EQUAL(pinned_kilobytes(), 200);
	EQUAL(region_new(device, memory, 200 << 10, BOTH), -ENOMEM);
	EQUAL(pinned_kilobytes(), 200);
	second = region_new(device, memory, 56 << 10, MEMFERRY_READ);
	CHECK(second > 0);
	forget(first);
	EQUAL(pinned_kilobytes(), 56);
	EQUAL(call(device, MEMFERRY_CLASS, (void *)MEMFERRY_HIGH), -EPERM);
	close(device);
	EQUAL(pinned_kilobytes(), 0);
}

static int gate[2];

/* Pins memory and ends; a child that inherited the descriptor stays until the gate is closed. */
static void outlived(void)
{
	uint8_t *memory = memory_map(LENGTH);
	char byte;

	if (!become_a_user())
		return;
	CHECK(region_new(device, memory, 200 << 10, BOTH) > 0);
	if (!fork()) {
		close(gate[1]);
		_exit(read(gate[0], &byte, 1) != 0);
	}
}

static void over_the_limit(void)
{
	if (become_a_user())
		EQUAL(region_new(device, memory_map(LENGTH), 200 << 10, BOTH), -ENOMEM);
}

/* Repeats until the child that outlived() left has ended. */
static void within_the_limit(void)
{
	uint8_t *memory = memory_map(LENGTH);
	long region = -ENOMEM;
	int i;

	if (!become_a_user())
		return;
	for (i = 0; i < 30000 && region == -ENOMEM; i++) {
		region = region_new(device, memory, 200 << 10, BOTH);
		milliseconds_pass(1);
	}
	CHECK(region > 0);
}

void test_memory(void)
{

	device = device_open();
	memfds();
	copy_on_write();
	huge_pages();
	device_memory();
	unmapped_meanwhile();
	EQUAL(pinned_kilobytes(), 0);
	close(device);
	EQUAL(status_in_child(limited), 0);
	/* The limit holds for the user, so a child cannot evade it. */
	EQUAL(pipe(gate), 0);
	EQUAL(status_in_child(outlived), 0);
	EQUAL(status_in_child(over_the_limit), 0);
	close(gate[1]);
	close(gate[0]);
	EQUAL(status_in_child(within_the_limit), 0);
}
