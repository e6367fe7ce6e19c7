// SPDX-License-Identifier: GPL-2.0
/*
 * Chooses the channel of a transfer, by the policies of Papa 2014 ("Copy memory support", "Priority Channel").
 *
 *   shared      any channel: the one with the lowest load
 *   exclusive   channel N serves CPU N only; a CPU without a channel copies by itself
 *   priority    the first channels serve the high class; the others halt for a slice of every period
 *
 *   period:  |<- slice: others halted ->|<-------- all run ---------->|
 *
 * The settings are below /sys/class/misc/memferry. A change applies to later submissions.
 */
#include <linux/device.h>
#include <linux/hrtimer.h>
#include <linux/smp.h>

#include "memferry.h"

#define SHORTEST_US	20
#define LONGEST_US	1000000

unsigned long mf_threshold = 4096;

static const char * const names[] = { "shared", "exclusive", "priority" };

static DEFINE_MUTEX(changing);
static u32 policy = MEMFERRY_SHARED;
static unsigned int high_channels = 1;
static unsigned int period_us = 10000;
static unsigned int slice_us = 3000;
static atomic_t turn;

static struct hrtimer timer;
static bool halted;	/* owned by the timer while it runs */

static bool is_usable(const struct mf_channel *channel)
{
	return READ_ONCE(channel->state) != MF_FAULTED && !READ_ONCE(channel->stuck);
}

static struct mf_channel *least_loaded(unsigned int first, unsigned int end)
{
	unsigned int begin = atomic_inc_return(&turn), count, i;
	struct mf_channel *best = NULL;

	if (first >= end)
		return NULL;
	count = end - first;
	for (i = 0; i < count; i++) {
		/* Each call starts at another channel, so that channels with equal loads take turns. */
		struct mf_channel *channel = mf_channels[first + (i + begin) % count];

		if (is_usable(channel) && (!best || READ_ONCE(channel->load) < READ_ONCE(best->load)))
			best = channel;
	}
	return best;
}

/* The channel for a transfer of this class from the calling CPU; NULL: the CPU moves it. */
struct mf_channel *mf_policy_choose(u32 class)
{
	unsigned int high = min(READ_ONCE(high_channels), mf_channel_count), cpu;

	switch (READ_ONCE(policy)) {
	case MEMFERRY_EXCLUSIVE:
		cpu = raw_smp_processor_id();
		return cpu < mf_channel_count && is_usable(mf_channels[cpu]) ? mf_channels[cpu] : NULL;
	case MEMFERRY_PRIORITY:
		return class == MEMFERRY_HIGH ? least_loaded(0, high) : least_loaded(high, mf_channel_count);
	default:
		return least_loaded(0, mf_channel_count);
	}
}

u32 mf_policy_current(void)
{
	return READ_ONCE(policy);
}

/* ---- the period ---- */

static void gate_low(bool closed)
{
	unsigned int i;

	for (i = min(READ_ONCE(high_channels), mf_channel_count); i < mf_channel_count; i++)
		mf_channel_gate(mf_channels[i], closed);
}

static enum hrtimer_restart turn_over(struct hrtimer *expired)
{
	unsigned int us;

	halted = !halted;
	gate_low(halted);
	us = halted ? slice_us : period_us - slice_us;
	hrtimer_forward_now(expired, ns_to_ktime((u64)us * NSEC_PER_USEC));
	return HRTIMER_RESTART;
}

/* The caller holds the lock changing, or the device is not registered. */
static void stop_timer(void)
{
	unsigned int i;

	hrtimer_cancel(&timer);
	halted = false;
	for (i = 0; i < mf_channel_count; i++)
		mf_channel_gate(mf_channels[i], false);
}

static void start_timer(void)
{
	if (policy == MEMFERRY_PRIORITY && slice_us)
		hrtimer_start(&timer, ns_to_ktime((u64)(period_us - slice_us) * NSEC_PER_USEC), HRTIMER_MODE_REL_SOFT);
}

void mf_policy_start(void)
{
	mf_hrtimer_setup(&timer, turn_over);
}

void mf_policy_stop(void)
{
	stop_timer();
}

/* ---- sysfs ---- */

static ssize_t policy_show(struct device *device, struct device_attribute *attribute, char *to)
{
	return sysfs_emit(to, "%s\n", names[READ_ONCE(policy)]);
}

static ssize_t policy_store(struct device *device, struct device_attribute *attribute, const char *from, size_t length)
{
	int chosen = sysfs_match_string(names, from);

	if (chosen < 0)
		return chosen;
	mutex_lock(&changing);
	stop_timer();
	WRITE_ONCE(policy, chosen);
	start_timer();
	mutex_unlock(&changing);
	return length;
}
static DEVICE_ATTR_RW(policy);

static ssize_t threshold_bytes_show(struct device *device, struct device_attribute *attribute, char *to)
{
	return sysfs_emit(to, "%lu\n", READ_ONCE(mf_threshold));
}

static ssize_t threshold_bytes_store(struct device *device, struct device_attribute *attribute, const char *from,
				     size_t length)
{
	unsigned long value;
	int error = kstrtoul(from, 0, &value);

	if (error)
		return error;
	WRITE_ONCE(mf_threshold, value);
	return length;
}
static DEVICE_ATTR_RW(threshold_bytes);

/* Sets a number that the timer uses. 0 <= slice < period; a slice of 0 halts no channel. */
static ssize_t store_number(unsigned int *number, const char *from, size_t length)
{
	unsigned int value, before;
	int error = kstrtouint(from, 0, &value);

	if (error)
		return error;
	mutex_lock(&changing);
	stop_timer();
	before = *number;
	WRITE_ONCE(*number, value);
	if (period_us < SHORTEST_US || period_us > LONGEST_US || slice_us >= period_us ||
	    (slice_us && min(slice_us, period_us - slice_us) < SHORTEST_US) || high_channels > MF_MAX_CHANNELS) {
		WRITE_ONCE(*number, before);
		error = -EINVAL;
	}
	start_timer();
	mutex_unlock(&changing);
	return error ?: length;
}

#define NUMBER(name)											\
static ssize_t name##_show(struct device *device, struct device_attribute *attribute, char *to)		\
{													\
	return sysfs_emit(to, "%u\n", READ_ONCE(name));							\
}													\
static ssize_t name##_store(struct device *device, struct device_attribute *attribute,			\
			    const char *from, size_t length)						\
{													\
	return store_number(&name, from, length);							\
}													\
static DEVICE_ATTR_RW(name)

NUMBER(period_us);
NUMBER(slice_us);
NUMBER(high_channels);

static struct attribute *attributes[] = {
	&dev_attr_policy.attr,
	&dev_attr_threshold_bytes.attr,
	&dev_attr_period_us.attr,
	&dev_attr_slice_us.attr,
	&dev_attr_high_channels.attr,
	NULL,
};

static const struct attribute_group group = { .attrs = attributes };
const struct attribute_group *mf_policy_groups[] = { &group, NULL };
