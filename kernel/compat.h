/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel interfaces that changed after 6.1.
 */
#ifndef MEMFERRY_COMPAT_H
#define MEMFERRY_COMPAT_H

#include <linux/device/class.h>
#include <linux/eventfd.h>
#include <linux/hrtimer.h>
#include <linux/mm.h>
#include <linux/timer.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "memferry needs Linux 6.1 or later"
#endif

/* The caller holds the mmap lock, before and after. */
static inline long mf_pin_pages(unsigned long address, unsigned long count, unsigned int flags, struct page **pages)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
	return pin_user_pages(address, count, flags, pages, NULL);
#else
	return pin_user_pages(address, count, flags, pages);
#endif
}

/*
 * Before 6.2 a long-term pin for reading did not break copy-on-write: the program's next write went to a page other
 * than the pinned one. Requesting a forced write breaks copy-on-write.
 */
static inline unsigned int mf_read_pin_flags(bool is_private)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	return is_private ? FOLL_LONGTERM | FOLL_FORCE | FOLL_WRITE : FOLL_LONGTERM;
#else
	return FOLL_LONGTERM;
#endif
}

static inline void mf_eventfd_signal(struct eventfd_ctx *eventfd)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
	eventfd_signal(eventfd, 1);
#else
	eventfd_signal(eventfd);
#endif
}

static inline void mf_hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *))
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	timer->function = function;
#else
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
#endif
}

static inline void mf_timer_stop(struct timer_list *timer)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
	del_timer_sync(timer);
#else
	timer_delete_sync(timer);
#endif
}

/* Parameters of what a class_interface calls when a device of its class goes. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define MF_REMOVAL struct device *self, struct class_interface *unused
#else
#define MF_REMOVAL struct device *self
#endif

#endif
