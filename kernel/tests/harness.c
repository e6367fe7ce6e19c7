// SPDX-License-Identifier: GPL-2.0
/*
 * memferry_test PART...: tests of the loaded module; run it as root.
 *
 *   each part ─► checks ─► "memferry_test: PART: N passed, M failed"; status 1 if any failed
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

unsigned int checks_passed, checks_failed;

bool check(bool held, const char *file, int line, const char *format, ...)
{
	va_list arguments;

	if (held) {
		__atomic_fetch_add(&checks_passed, 1, __ATOMIC_RELAXED);
		return true;
	}
	__atomic_fetch_add(&checks_failed, 1, __ATOMIC_RELAXED);
	printf("FAIL %s:%d: ", file, line);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	return false;
}

bool equal(long long found, long long wanted, const char *file, int line, const char *text)
{
	return check(found == wanted, file, line, "%s: %lld, not %lld", text, found, wanted);
}

long call(int device, unsigned long command, const void *argument)
{
	long result = ioctl(device, command, argument);

	return result < 0 ? -errno : result;
}

int device_open(void)
{
	int device = open(DEVICE, O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (device < 0) {
		perror(DEVICE);
		exit(2);
	}
	return device;
}

struct memferry_query device_query(int device)
{
	struct memferry_query query = {};

	EQUAL(call(device, MEMFERRY_QUERY, &query), 0);
	return query;
}

uint8_t *memory_map(size_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return memory;
}

void memory_noise(uint8_t *memory, size_t length, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	size_t i;

	for (i = 0; i < length; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memory[i] = state >> 32;
	}
}

long region_new(int device, const void *memory, uint64_t length, uint32_t rights)
{
	struct memferry_register request = { .address = (uintptr_t)memory, .length = length, .rights = rights };
	long error = call(device, MEMFERRY_REGISTER, &request);

	return error ? error : (long)request.region;
}

long submit_one(int device, const struct memferry_transfer *transfer)
{
	struct memferry_submit batch = { .transfers = (uintptr_t)transfer, .count = 1 };

	return call(device, MEMFERRY_SUBMIT, &batch);
}

struct memferry_record record_next(int device)
{
	struct memferry_record record = { .status = -ETIME };
	struct pollfd wait = { .fd = device, .events = POLLIN };

	if (poll(&wait, 1, 30000) == 1 && read(device, &record, sizeof(record)) != sizeof(record))
		record.status = -errno;
	return record;
}

struct memferry_record transfer_run(int device, const struct memferry_transfer *transfer)
{
	long error = submit_one(device, transfer);

	if (error)
		return (struct memferry_record){ .tag = ~0ull, .status = error };
	return record_next(device);
}

struct memferry_transfer copy_of(uint32_t source, uint64_t from, uint32_t destination, uint64_t to, uint64_t length)
{
	return (struct memferry_transfer){
		.operation = MEMFERRY_COPY,
		.source = { .region = source, .offset = from },
		.destination = { .region = destination, .offset = to },
		.length = length,
		/* The maximum, because emulators are slow. Tests of time-outs set their own. */
		.patience_ms = MEMFERRY_MAX_PATIENCE_MS,
	};
}

int status_in_child(void (*part)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		checks_failed = 0;
		part();
		fflush(stdout);
		_exit(checks_failed > 0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	return status;
}

long pinned_kilobytes(void)
{
	char line[256];
	long kilobytes = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "VmPin: %ld", &kilobytes) == 1)
			break;
	if (status)
		fclose(status);
	return kilobytes;
}

bool file_write(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	if (file >= 0)
		close(file);
	return written;
}

long file_number(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	if (!file)
		return -1;
	if (fscanf(file, "%ld", &number) != 1)
		number = -1;
	fclose(file);
	return number;
}

void milliseconds_pass(unsigned int count)
{
	struct timespec time = { .tv_sec = count / 1000, .tv_nsec = count % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

void pin_to(unsigned int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

bool channel_is(unsigned int channel, const char *state)
{
	FILE *file = fopen("/sys/kernel/debug/memferry/channels", "r");
	char line[256], found[16];
	unsigned int number;
	bool is = false;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %*s %*s %15s", &number, found) == 2 && number == channel)
			is = !strcmp(found, state);
	if (file)
		fclose(file);
	return is;
}

/* A counter of a channel: the number of its column in /sys/kernel/debug/memferry/channels. */
static uint64_t channel_counter(unsigned int channel, unsigned int column)
{
	FILE *file = fopen("/sys/kernel/debug/memferry/channels", "r");
	unsigned long long found[6], value = 0;
	unsigned int number;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %*s %*s %*s %llu %llu %llu %llu %llu %llu", &number, &found[0], &found[1], &found[2],
			   &found[3], &found[4], &found[5]) == 7 && number == channel)
			value = found[column - 4];
	if (file)
		fclose(file);
	return value;
}

uint64_t channel_transfers(unsigned int channel)
{
	return channel_counter(channel, 5);
}

uint64_t channel_bytes(unsigned int channel)
{
	return channel_counter(channel, 6);
}

uint64_t channel_errors(unsigned int channel)
{
	return channel_counter(channel, 8);
}

static bool run(const char *part)
{
	static const struct {
		const char *name;
		void (*test)(void);
	} parts[] = {
		{ "transfers", test_transfers }, { "misuse", test_misuse }, { "memory", test_memory },
		{ "processes", test_processes }, { "faults", test_faults }, { "policies", test_policies },
		{ "faulted", test_faulted }, { "bounced", test_bounced }, { "demo", test_demo }, { "times", test_times },
		{ "copies", test_copies }, { "removed", test_removed }, { "unbound", test_unbound }, { "disabled", test_disabled },
		{ "disabled-queues", test_disabled_queues }, { "kept", test_kept }, { "killed", test_killed },
		{ "quarantine", test_quarantine }, { "late", test_late }, { "device-faults", test_device_faults },
	};
	unsigned int seconds, seed;
	size_t i;

	if (sscanf(part, "fuzz=%u,%u", &seconds, &seed) == 2) {
		test_fuzz(seconds, seed);
		return true;
	}
	for (i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		if (!strcmp(part, parts[i].name)) {
			parts[i].test();
			return true;
		}
	}
	return false;
}

int main(int count, char **parts)
{
	bool failed = count < 2;
	int i;

	for (i = 1; i < count; i++) {
		checks_passed = checks_failed = 0;
		if (!run(parts[i])) {
			printf("FAIL there is no test part %s; the parts are in harness.c\n", parts[i]);
			failed = true;
			continue;
		}
		printf("memferry_test: %s: %u passed, %u failed\n", parts[i], checks_passed, checks_failed);
		fflush(stdout);
		failed |= checks_failed;
	}
	return failed;
}
