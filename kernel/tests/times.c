// SPDX-License-Identifier: GPL-2.0
/*
 * Measures copies by the CPU and by the engine. Useful on real boards only: in a guest it measures the emulator.
 */
#include "harness.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LENGTH	(4u << 20)

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

void test_times(void)
{
	uint8_t *source = memory_map(LENGTH), *destination = memory_map(LENGTH);
	int device = device_open(), mover, round;
	bool has_engine = device_query(device).channels;
	struct memferry_transfer copy = copy_of(region_new(device, source, LENGTH, MEMFERRY_READ), 0,
						region_new(device, destination, LENGTH, MEMFERRY_WRITE), 0, 0);

	for (copy.length = 4096; copy.length <= LENGTH; copy.length *= 4) {
		double best[2] = { 1e9, 1e9 };

		for (mover = 0; mover < (has_engine ? 2 : 1); mover++) {
			copy.flags = mover ? MEMFERRY_DMA_ONLY : MEMFERRY_CPU_ONLY;
			for (round = 0; round < 5; round++) {
				double begin = seconds(), taken;

				EQUAL(transfer_run(device, &copy).status, 0);
				taken = seconds() - begin;
				best[mover] = taken < best[mover] ? taken : best[mover];
			}
		}
		printf("memferry_test: %llu bytes: %.0f us by the CPU", (unsigned long long)copy.length, best[0] * 1e6);
		if (has_engine)
			printf(", %.0f us by DMA", best[1] * 1e6);
		printf(" (best of five)\n");
	}
	close(device);
	munmap(source, LENGTH);
	munmap(destination, LENGTH);
}
