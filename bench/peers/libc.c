/*
 * memcpy and memset of the C library that this program was started with, timed on request.
 *
 *   libc MIB ──► "2.41", then for each line "copy BYTES PLACES" or "zero BYTES PLACES": nanoseconds per call
 *
 * The memory is as that of the benchmark: two areas of MIB, huge pages, random bytes. The places of a line are used one after the other, in
 * an order that returns to a place only after all others, so what is there is in no cache.
 */
#define _GNU_SOURCE
#include <gnu/libc-version.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE (2UL << 20)
#define PAGE 4096UL

static uint64_t state = 0x9e3779b97f4a7c15ULL;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static char *area(size_t length)
{
	char *memory = mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	memory += HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE;
	madvise(memory, length, MADV_HUGEPAGE);
	for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
		uint64_t word = next_random();

		memcpy(memory + at, &word, sizeof(word));
	}
	return memory;
}

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **words)
{
	size_t length = (count > 1 ? strtoul(words[1], NULL, 10) : 64) << 20;
	char *from = area(length), *to = area(length);
	char kind[8];
	size_t bytes, places, turn = 0;

	if (!from || !to) {
		fprintf(stderr, "libc: no memory for two areas of %zu bytes\n", length);
		return 1;
	}
	printf("%s\n", gnu_get_libc_version());
	fflush(stdout);
	while (scanf("%7s %zu %zu", kind, &bytes, &places) == 3) {
		size_t stride = (bytes + PAGE - 1) / PAGE * PAGE;
		size_t slots = stride ? length / stride : 0;
		double started;

		if (!bytes || !slots || !places) {
			fprintf(stderr, "libc: %s of %zu bytes does not fit\n", kind, bytes);
			return 1;
		}
		started = now_ns();
		for (size_t place = 0; place < places; place++, turn++) {
			/* A prime step visits all slots before it returns, unless it divides their number. */
			size_t at = turn * 7919 % slots * stride;

			if (kind[0] == 'z')
				memset(to + at, 0, bytes);
			else
				memcpy(to + at, from + at, bytes);
			__asm__ volatile("" : : "r"(to + at) : "memory");
		}
		printf("%.1f\n", (now_ns() - started) / places);
		fflush(stdout);
	}
	return 0;
}
