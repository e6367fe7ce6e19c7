// SPDX-License-Identifier: GPL-2.0
/*
 * memferry_copy_to_user() and memferry_copy_from_user(), through read and write of memferry_demo: the same bytes and the
 * same faults as copies by the CPU.
 */
#include "harness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH	(4u << 20)
#define HOLE	(512l << 10)
#define MODE	"/sys/module/memferry_demo/parameters/mode"

/* Addresses without memory; volatile, so that the compiler does not know them. */
static void *volatile bad = (void *)8, *volatile worse = (void *)-8192l;
static int demo;
static uint8_t *out, *in;

static void round_trip(size_t length, size_t skew, size_t at)
{
	memory_noise(out + skew, length, length + skew);
	memset(in, 0xee, LENGTH);
	EQUAL(pwrite(demo, out + skew, length, at), length);
	EQUAL(pread(demo, in + 2 * skew, length, at), length);
	CHECK(!memcmp(out + skew, in + 2 * skew, length));
	CHECK(in[2 * skew + length] == 0xee && (!skew || in[2 * skew - 1] == 0xee), "bytes around the destination are unchanged");
}

/* Results of faulting calls in the present mode, and the number of bytes read before a hole. */
static void faults(long answers[6], size_t *reached)
{
	uint8_t *part = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(part + (HOLE), HOLE);
	memset(part, 0xee, HOLE);
	answers[0] = pread(demo, part, 1 << 20, 0);
	for (*reached = 0; *reached < (size_t)HOLE && part[*reached] == in[*reached];)
		++*reached;
	answers[1] = pwrite(demo, part, 1 << 20, 0);
	answers[2] = pread(demo, bad, 100000, 0);
	answers[3] = pwrite(demo, bad, 100000, 0);
	mprotect(part, HOLE, PROT_READ);
	answers[4] = pread(demo, part, 100000, 0) < 0 ? -errno : 1;
	answers[5] = pread(demo, worse, 100000, 0) < 0 ? -errno : 1;
	munmap(part, HOLE);
}

void test_demo(void)
{
	static const char * const modes[] = { "cpu", "dma" };
	static const size_t lengths[] = { 1, 100, 4096, 5000, 65536, 300001, (1 << 20) + 7, 3 << 20 };
	long answers[2][6];
	size_t reached[2], i, skew;
	int mode;

	demo = open("/dev/memferry_demo", O_RDWR);
	if (!CHECK(demo >= 0, "memferry_demo is loaded"))
		return;
	out = memory_map(LENGTH);
	in = memory_map(LENGTH);
	EQUAL(file_write(MODE, "other"), false);
	for (mode = 0; mode < 2; mode++) {
		EQUAL(file_write(MODE, modes[mode]), true);
		for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
			for (skew = 0; skew < 70; skew += 23)
				round_trip(lengths[i], skew, 5 * skew);
		memory_noise(out, LENGTH, 77);
		EQUAL(pwrite(demo, out, LENGTH, 0), LENGTH);
		EQUAL(pread(demo, in, LENGTH, 0), LENGTH);
		faults(answers[mode], &reached[mode]);
		EQUAL(pread(demo, in, 10, LENGTH), 0);
		EQUAL(pwrite(demo, in, 10, LENGTH), -1);
	}
	/* Copies by the CPU may stop some bytes before the hole. */
	for (mode = 0; mode < 2; mode++)
		for (i = 0; i < 2; i++)
			CHECK(answers[mode][i] > HOLE - 64 && answers[mode][i] <= HOLE);
	for (i = 2; i < 6; i++)
		EQUAL(answers[1][i], answers[0][i]);
	for (mode = 0; mode < 2; mode++)
		CHECK((long)reached[mode] >= answers[mode][0], "all bytes that read() counted were copied");
	printf("memferry_test: a read up to a hole returns %ld bytes\n", answers[1][0]);
	file_write(MODE, "cpu");
	close(demo);
	munmap(out, LENGTH);
	munmap(in, LENGTH);
}
