// SPDX-License-Identifier: GPL-2.0
/*
 * memferry: DMA between memory of unprivileged processes, through the engines of dmaengine drivers.
 */
#include <linux/module.h>

#include "memferry.h"

struct workqueue_struct *mf_works;
struct workqueue_struct *mf_copies;

static unsigned int channels = 4;
module_param(channels, uint, 0444);
MODULE_PARM_DESC(channels, "maximum number of DMA channels to take; device drivers keep the others (4; 0: none)");

static char *driver = "";
module_param(driver, charp, 0444);
MODULE_PARM_DESC(driver, "take channels of this driver only (default: any driver)");

unsigned int mf_patience_ms = 5000;

static int set_patience(const char *from, const struct kernel_param *parameter)
{
	return param_set_uint_minmax(from, parameter, 1, MEMFERRY_MAX_PATIENCE_MS);
}

static const struct kernel_param_ops patience_operations = { .set = set_patience, .get = param_get_uint };
module_param_cb(patience_ms, &patience_operations, &mf_patience_ms, 0644);
MODULE_PARM_DESC(patience_ms, "time limit in milliseconds of transfers that set none (5000)");

unsigned int mf_watchdog_ms = 5000;
module_param_cb(watchdog_ms, &patience_operations, &mf_watchdog_ms, 0644);
MODULE_PARM_DESC(watchdog_ms, "time limit in milliseconds of a batch of an engine that cannot be stopped (5000)");

static int __init memferry_init(void)
{
	int error;

	mf_works = alloc_workqueue("memferry", WQ_UNBOUND | WQ_HIGHPRI, 0);
	mf_copies = alloc_workqueue("memferry_copies", WQ_UNBOUND, 0);
	error = -ENOMEM;
	if (!mf_works || !mf_copies)
		goto destroy;
	error = mf_channels_take(channels, driver);
	if (error)
		goto release;
	mf_policy_start();
	error = mf_device_register();
	if (error)
		goto release;
	mf_stats_start();
	if (!mf_channel_count)
		pr_info("no free DMA channel copies memory: the CPU moves all transfers\n");
	return 0;
release:
	mf_channels_release();
destroy:
	if (mf_copies)
		destroy_workqueue(mf_copies);
	if (mf_works)
		destroy_workqueue(mf_works);
	return error;
}

static void __exit memferry_exit(void)
{
	mf_stats_stop();
	mf_device_unregister();
	mf_policy_stop();
	mf_channels_release();
	destroy_workqueue(mf_copies);
	destroy_workqueue(mf_works);
}

module_init(memferry_init);
module_exit(memferry_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("DMA engines for unprivileged processes");
