// SPDX-License-Identifier: GPL-2.0
/*
 * A device that is lost under load: removed, unbound, or dead while its driver does not know; or one channel of it. Also one that
 * fails now and then, by the schedule that its model follows. Every request ends exactly once, with success or a clear error; every copy that succeeded is
 * right; the CPU serves on; and in the end nothing is pinned.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS	4
#define DEPTH	8
#define LENGTH	(64u << 10)
#define MOST	16384
#define SHARE	(1u << 20)
#define MODE	"/sys/module/memferry_demo/parameters/mode"
#define SOFT	"/sys/module/softdma/parameters/"
#define UNBIND	"/sys/bus/platform/drivers/softdma/unbind"
#define DSA	"/sys/bus/dsa/drivers/"

/* Statuses that this loss may cause, beyond success. */
static bool may_time_out;
/* The load goes on until this is set. */
static volatile bool over;
static volatile unsigned int succeeded, failed, refused, timed_out, quarantined, by_dma;

struct load {
	pthread_t thread;
	unsigned int number;
};

static bool insists(uint64_t tag)
{
	return tag % 2;
}

static void count(struct memferry_record record, const uint8_t *source, const uint8_t *destination)
{
	switch (record.status) {
	case 0:
		__atomic_fetch_add(&succeeded, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&by_dma, record.bytes_by_dma > 0, __ATOMIC_RELAXED);
		CHECK(!memcmp(source, destination, LENGTH), "a copy that succeeded is right");
		break;
	case -EIO:
		__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
		break;
	case -ENODEV:
		CHECK(insists(record.tag), "only a transfer that insists on DMA is refused");
		__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
		break;
	case -ETIMEDOUT:
		__atomic_fetch_add(&timed_out, 1, __ATOMIC_RELAXED);
		CHECK(may_time_out);
		break;
	case -ENOTRECOVERABLE:
		__atomic_fetch_add(&quarantined, 1, __ATOMIC_RELAXED);
		CHECK(may_time_out);
		break;
	default:
		EQUAL(record.status, 0);
	}
}

/* Keeps some copies outstanding, each with a tag of its own, until the load is over. */
static void *load(void *parameter)
{
	struct load *own = parameter;
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(DEPTH * LENGTH), seen[MOST] = {};
	unsigned int submitted = 0, ended = 0, wrong = 0, i;
	int device = device_open();
	uint32_t from, to;

	memory_noise(source, LENGTH, own->number);
	from = region_new(device, source, LENGTH, MEMFERRY_READ);
	to = region_new(device, destination, DEPTH * LENGTH, MEMFERRY_WRITE);
	while (!(over && ended == submitted)) {
		if (!over && submitted < MOST && submitted - ended < DEPTH) {
			struct memferry_transfer copy = copy_of(from, 0, to, submitted % DEPTH * LENGTH, LENGTH);
			long error;

			copy.tag = submitted;
			copy.flags = insists(submitted) ? MEMFERRY_DMA_ONLY : 0;
			/* Of each place, one copy at a time. */
			if (submitted >= DEPTH && !seen[submitted - DEPTH]) {
				milliseconds_pass(0);
			} else {
				memset(destination + submitted % DEPTH * LENGTH, 0, LENGTH);
				error = submit_one(device, &copy);
				if (!error) {
					submitted++;
					continue;
				}
				/* Refused at once. */
				if (!CHECK(error == -ENODEV && insists(submitted)))
					break;
				__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
				seen[submitted++] = 1;
				ended++;
				milliseconds_pass(1);
				continue;
			}
		}
		if (ended < submitted) {
			struct memferry_record record = record_next(device);

			if (!CHECK(record.tag < submitted && !seen[record.tag], "each request ends once"))
				break;
			seen[record.tag] = 1;
			ended++;
			count(record, source, destination + record.tag % DEPTH * LENGTH);
		} else if (submitted == MOST) {
			milliseconds_pass(1);
		}
	}
	for (i = 0; i < submitted; i++)
		wrong += seen[i] != 1;
	EQUAL(wrong, 0);
	close(device);
	munmap(source, LENGTH);
	munmap(destination, DEPTH * LENGTH);
	return NULL;
}

/* Reads the kernel's memory by DMA until the load is over. */
static void *load_kernel(void *parameter)
{
	uint8_t *memory = memory_map(SHARE), *expected = memory_map(SHARE);
	int demo = open("/dev/memferry_demo", O_RDWR);
	unsigned int *reads = parameter;

	memory_noise(expected, SHARE, 99);
	while (!over) {
		memset(memory, 0, SHARE);
		EQUAL(pread(demo, memory, SHARE, 0), SHARE);
		CHECK(!memcmp(memory, expected, SHARE), "a read of the kernel's memory is right");
		++*reads;
	}
	close(demo);
	return NULL;
}

static bool fill_kernel(void)
{
	uint8_t *expected = memory_map(SHARE);
	int demo = open("/dev/memferry_demo", O_RDWR);

	if (!CHECK(demo >= 0, "memferry_demo is loaded"))
		return false;
	memory_noise(expected, SHARE, 99);
	EQUAL(file_write(MODE, "dma"), true);
	EQUAL(pwrite(demo, expected, SHARE, 0), SHARE);
	close(demo);
	munmap(expected, SHARE);
	return true;
}

static unsigned int reads;
static pthread_t kernel_thread;
static struct load loads[THREADS];

static bool begin(void)
{
	unsigned int i;

	over = false;
	succeeded = failed = refused = timed_out = quarantined = by_dma = reads = 0;
	if (!fill_kernel())
		return false;
	for (i = 0; i < THREADS; i++) {
		loads[i].number = i;
		pthread_create(&loads[i].thread, NULL, load, &loads[i]);
	}
	pthread_create(&kernel_thread, NULL, load_kernel, &reads);
	return true;
}

static void end(void)
{
	unsigned int i;

	over = true;
	for (i = 0; i < THREADS; i++)
		pthread_join(loads[i].thread, NULL);
	pthread_join(kernel_thread, NULL);
	printf("memferry_test: %u copies succeeded, %u of them by DMA; %u failed, %u refused, %u timed out, %u quarantined; %u reads\n",
	       succeeded, by_dma, failed, refused, timed_out, quarantined, reads);
}

/* The path of a file of the PCI device. */
static bool device_file(char path[256], const char *name)
{
	glob_t found;

	if (!EQUAL(glob("/sys/bus/pci/drivers/ioatdma/0000:*", 0, NULL, &found), 0))
		return false;
	snprintf(path, 256, "%s/%s", found.gl_pathv[0], name);
	globfree(&found);
	return true;
}

/* Removes the device from its bus, as for hot unplugging. */
static void remove_device(void)
{
	char path[256];

	if (device_file(path, "remove"))
		EQUAL(file_write(path, "1"), true);
}

/* Whether the device answers: what is not there reads as ones. */
static bool device_answers(void)
{
	uint32_t identity = 0;
	char path[256];
	int config;

	if (!device_file(path, "config"))
		return false;
	config = open(path, O_RDONLY);
	EQUAL(pread(config, &identity, sizeof(identity), 0), sizeof(identity));
	close(config);
	return identity != ~0u;
}

static unsigned int channels_gone(int device)
{
	unsigned int i, gone = 0;

	for (i = 0; i < device_query(device).channels; i++)
		gone += channel_is(i, "gone");
	return gone;
}

/* Without a device the CPU moves transfers, and those that insist on DMA are refused. */
static void serves_by_cpu(unsigned int kept)
{
	int device = device_open();
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
	struct memferry_transfer copy = copy_of(region_new(device, source, LENGTH, MEMFERRY_READ), 0,
						region_new(device, destination, LENGTH, MEMFERRY_WRITE), 0, LENGTH);
	struct memferry_record record;

	memory_noise(source, LENGTH, 5);
	record = transfer_run(device, &copy);
	EQUAL(record.status, 0);
	EQUAL(record.bytes_by_dma, 0);
	CHECK(!memcmp(source, destination, LENGTH));
	copy.flags = MEMFERRY_DMA_ONLY;
	EQUAL(transfer_run(device, &copy).status, -ENODEV);
	EQUAL(channels_gone(device), device_query(device).channels - kept);
	EQUAL(device_query(device).faulted_channels, device_query(device).channels);
	close(device);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}

void test_removed(void)
{
	may_time_out = false;
	if (!begin())
		return;
	while (by_dma < 100 || !reads)
		milliseconds_pass(1);
	remove_device();
	milliseconds_pass(100);
	end();
	CHECK(refused > 0);
	serves_by_cpu(0);
	EQUAL(pinned_kilobytes(), 0);
}

/* Not a PCI device: softdma loses its driver under load. Its engine falls silent first. */
void test_unbound(void)
{
	may_time_out = false;
	if (!begin())
		return;
	while (by_dma < 100 || !reads)
		milliseconds_pass(1);
	EQUAL(file_write(UNBIND, "softdma"), true);
	milliseconds_pass(100);
	end();
	CHECK(refused > 0);
	serves_by_cpu(0);
	EQUAL(pinned_kilobytes(), 0);
}

/* Some work queues of the DSA device are disabled under load, then the device with the others. idxd frees their channels. */
static void disable(unsigned int queues, bool with_device)
{
	char name[] = "wq0.0";
	unsigned int i, before;
	int device = device_open();

	may_time_out = false;
	if (!begin())
		return;
	for (i = 0; i < queues; i++) {
		for (before = by_dma; by_dma < before + 100 || !reads;)
			milliseconds_pass(1);
		name[4] = '0' + i;
		EQUAL(file_write(DSA "dmaengine/unbind", name), true);
		EQUAL(channels_gone(device), i + 1);
	}
	if (with_device)
		EQUAL(file_write(DSA "idxd/unbind", "dsa0"), true);
	milliseconds_pass(100);
	end();
	CHECK(refused > 0);
	close(device);
	serves_by_cpu(0);
	EQUAL(pinned_kilobytes(), 0);
}

void test_disabled(void)
{
	disable(2, true);
}

void test_disabled_queues(void)
{
	disable(4, false);
}

/* softdma loses its driver while its engine hangs and cannot be stopped: the engine's memory stays pinned. */
void test_kept(void)
{
	int device = device_open();
	uint8_t *memory = memory_map(2 * LENGTH);
	uint32_t region = region_new(device, memory, 2 * LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
	struct memferry_transfer copy = copy_of(region, 0, region, LENGTH, LENGTH);
	unsigned int faulted = device_query(device).faulted_channels;

	CHECK(faulted < device_query(device).channels);
	copy.flags = MEMFERRY_DMA_ONLY;
	EQUAL(file_write(SOFT "hang", "1"), true);
	EQUAL(submit_one(device, &copy), 0);
	while (file_number(SOFT "hang"))
		milliseconds_pass(1);
	EQUAL(file_write(UNBIND, "softdma"), true);
	EQUAL(record_next(device).status, -ENOTRECOVERABLE);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)region), 0);
	EQUAL(pinned_kilobytes(), 2 * LENGTH / 1024);
	close(device);
	serves_by_cpu(faulted + 1);
	EQUAL(pinned_kilobytes(), 2 * LENGTH / 1024);
}

/*
 * An engine hangs. Its channel is given up, and its memory kept until the device is removed, before the driver resets it. (It is no
 * dead engine: Linux's driver waits without a limit for one that it has reset, and hangs a CPU.)
 */
void test_quarantine(void)
{
	unsigned int i;
	int device = device_open();

	may_time_out = true;
	if (!begin())
		return;
	for (i = 0; i < 30000 && !quarantined; i++)
		milliseconds_pass(1);
	CHECK(quarantined > 0, "a transfer of the engine that hangs ends");
	close(device);
	remove_device();
	milliseconds_pass(100);
	end();
	serves_by_cpu(0);
	EQUAL(pinned_kilobytes(), 0);
}

/*
 * The device's process is gone while nothing moves, so that no register answers, and the device is removed. With descriptors in
 * the device, Linux's driver would dereference NULL in its interrupt handler, or keep the CPUs busy with resets.
 */
void test_killed(void)
{
	int device = device_open(), i;
	uint8_t *memory = memory_map(2 * LENGTH);
	uint32_t region = region_new(device, memory, 2 * LENGTH, MEMFERRY_READ | MEMFERRY_WRITE);
	struct memferry_transfer copy = copy_of(region, 0, region, LENGTH, LENGTH);

	copy.flags = MEMFERRY_DMA_ONLY;
	for (i = 0; i < 16; i++)
		EQUAL(transfer_run(device, &copy).status, 0);
	CHECK(device_answers());
	/* For who runs the guest. */
	printf("guest: kill the device\n");
	fflush(stdout);
	for (i = 0; i < 30000 && device_answers(); i++)
		milliseconds_pass(1);
	CHECK(!device_answers(), "the device was killed");
	remove_device();
	EQUAL(transfer_run(device, &copy).status, -ENODEV);
	EQUAL(pinned_kilobytes(), 2 * LENGTH / 1024);
	EQUAL(call(device, MEMFERRY_UNREGISTER, (void *)(uintptr_t)region), 0);
	EQUAL(pinned_kilobytes(), 0);
	close(device);
	serves_by_cpu(0);
}

/* The driver resets a channel later than the module waits: memory in doubt stays pinned until then, and no longer. */
void test_late(void)
{
	unsigned int i;
	int device = device_open();

	may_time_out = true;
	if (!begin())
		return;
	for (i = 0; i < 30000 && !quarantined; i++)
		milliseconds_pass(1);
	CHECK(quarantined > 0, "a transfer of the engine that hangs ends");
	for (i = 0; i < 30000 && (by_dma < 1000 || device_query(device).faulted_channels); i++)
		milliseconds_pass(1);
	CHECK(by_dma >= 1000, "the engine moved on");
	EQUAL(device_query(device).faulted_channels, 0);
	end();
	for (i = 0; i < device_query(device).channels; i++)
		CHECK(channel_is(i, "ready"));
	EQUAL(pinned_kilobytes(), 0);
	close(device);
}

/* The transfers and errors that channels of the device-faults part need for each line of its schedule. */
static const struct {
	unsigned int transfers, errors;
} scheduled[] = {
	/* Each transfer has a descriptor or more. Of the two kinds of errors, neither alone comes more than seven times. */
	{ 1000, 8 },
	{ 1000, 0 },
	/* Only a descriptor that the driver forgot fails here. */
	{ 0, 1 },
	{ 1000, 0 },
};

#define SCHEDULED (sizeof(scheduled) / sizeof(*scheduled))

/* How many of the channels have met all of their faults. */
static unsigned int channels_through(void)
{
	unsigned int i, through = 0;

	for (i = 0; i < SCHEDULED; i++)
		through += channel_transfers(i) >= scheduled[i].transfers && channel_errors(i) >= scheduled[i].errors;
	return through;
}

/*
 * What the driver hides (lost completions and interrupts, slow descriptors) shows nowhere here, and the device's log does not tell: that
 * it happened follows from the descriptors that the channel has had.
 */
void test_device_faults(void)
{
	unsigned int i;
	int device = device_open();

	may_time_out = false;
	if (!begin())
		return;
	for (i = 0; i < 60000 && channels_through() < SCHEDULED; i++)
		milliseconds_pass(1);
	end();
	EQUAL(channels_through(), SCHEDULED);
	CHECK(failed > 0, "the engine's errors are reported");
	/* Linux's driver recovered all channels, and the module uses them. */
	EQUAL(device_query(device).faulted_channels, 0);
	for (i = 0; i < device_query(device).channels; i++)
		CHECK(channel_is(i, "ready"));
	EQUAL(pinned_kilobytes(), 0);
	close(device);
}
