/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers of the module's tests: counted checks, memory, regions, and transfers in one call.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/uapi/memferry.h"

#define DEVICE	"/dev/memferry"
#define SYSFS	"/sys/class/misc/memferry/"

/* Guard bytes on both sides of a destination. */
#define GUARD	64

extern unsigned int checks_passed, checks_failed;

/* Counts the check, and prints it with its place if it failed. Returns whether it held. */
#define CHECK(condition, ...) check((condition), __FILE__, __LINE__, "%s", #condition " " __VA_ARGS__)
/* Checks that two numbers are equal. */
#define EQUAL(found, wanted) equal((long long)(found), (long long)(wanted), __FILE__, __LINE__, #found " is " #wanted)

bool check(bool held, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
bool equal(long long found, long long wanted, const char *file, int line, const char *text);

/* Calls ioctl(). Returns its result, or a negative errno. */
long call(int device, unsigned long command, const void *argument);

int device_open(void);
struct memferry_query device_query(int device);
uint8_t *memory_map(size_t length);
void memory_noise(uint8_t *memory, size_t length, uint64_t seed);
long region_new(int device, const void *memory, uint64_t length, uint32_t rights);

long submit_one(int device, const struct memferry_transfer *transfer);
/* Waits for the next record. The status is -ETIME if none comes within half a minute. */
struct memferry_record record_next(int device);
/* Submits and waits for the record. For a refused transfer, the record has the error as status and the tag ~0. */
struct memferry_record transfer_run(int device, const struct memferry_transfer *transfer);
struct memferry_transfer copy_of(uint32_t source, uint64_t from, uint32_t destination, uint64_t to, uint64_t length);

/* Runs the part in a child and returns the child's wait status; 0 if all its checks held. */
int status_in_child(void (*part)(void));

/* Kilobytes that this process has pinned. */
long pinned_kilobytes(void);
bool file_write(const char *path, const char *text);
long file_number(const char *path);
void milliseconds_pass(unsigned int count);
/* Binds the caller to this CPU. */
void pin_to(unsigned int cpu);
/* Whether debugfs shows the channel in this state. */
bool channel_is(unsigned int channel, const char *state);
/* Bytes that debugfs shows for the channel. */
uint64_t channel_transfers(unsigned int channel);
uint64_t channel_bytes(unsigned int channel);
uint64_t channel_errors(unsigned int channel);

void test_transfers(void);
void test_misuse(void);
void test_memory(void);
void test_processes(void);
void test_faults(void);
void test_faulted(void);
void test_policies(void);
void test_bounced(void);
void test_demo(void);
void test_fuzz(unsigned int seconds, unsigned int seed);
void test_times(void);
void test_copies(void);
void test_removed(void);
void test_unbound(void);
void test_disabled(void);
void test_disabled_queues(void);
void test_kept(void);
void test_killed(void);
void test_quarantine(void);
void test_late(void);
void test_device_faults(void);

#endif
