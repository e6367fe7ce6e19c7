/* Tells libFuzzer which blocks of the C sources an input reached. GCC calls a function for each block. libFuzzer's own one of that name
 * refuses to work, so the linker puts this one in its place: see build.rs. SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <stdint.h>

/* A few times the number of blocks, so that few share one. */
#define COUNTERS (1 << 15)

/* libFuzzer reads this section after each input, and clears it. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];

void __wrap___sanitizer_cov_trace_pc(void);

void __wrap___sanitizer_cov_trace_pc(void) {
    uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&__wrap___sanitizer_cov_trace_pc;

    counters[(place ^ place >> 15) & (COUNTERS - 1)]++;
}
