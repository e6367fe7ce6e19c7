// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/memferry_demo: a kernel buffer whose read and write copy by the CPU or by a DMA engine (Papa 2014).
 *
 *   read, write ─► mode cpu: copy_to_user, copy_from_user
 *                  mode dma: memferry_copy_to_user, memferry_copy_from_user
 *
 * Set the mode in /sys/module/memferry_demo/parameters/mode.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "../include/memferry_usercopy.h"

static unsigned int megabytes = 4;
module_param(megabytes, uint, 0444);
MODULE_PARM_DESC(megabytes, "size of the buffer in MiB (4)");

static bool by_dma;
static int set_mode(const char *from, const struct kernel_param *parameter)
{
	if (sysfs_streq(from, "cpu"))
		WRITE_ONCE(by_dma, false);
	else if (sysfs_streq(from, "dma"))
		WRITE_ONCE(by_dma, true);
	else
		return -EINVAL;
	return 0;
}

static int get_mode(char *to, const struct kernel_param *parameter)
{
	return sysfs_emit(to, "%s\n", READ_ONCE(by_dma) ? "dma" : "cpu");
}

static const struct kernel_param_ops mode_operations = { .set = set_mode, .get = get_mode };
module_param_cb(mode, &mode_operations, NULL, 0644);
MODULE_PARM_DESC(mode, "copy by cpu or dma (cpu)");

static char *buffer;
static size_t size;
/* Readers copy at the same time, on several channels. */
static DECLARE_RWSEM(using);

/* Returns the bytes copied before a fault, as a driver would; -EFAULT if there are none. */
static ssize_t transfer(char __user *user, size_t length, loff_t *position, bool to_user)
{
	unsigned long left;
	char *kernel;

	if (*position < 0 || *position >= size)
		return to_user ? 0 : -ENOSPC;
	length = min_t(size_t, length, size - *position);
	kernel = buffer + *position;
	if (to_user ? down_read_interruptible(&using) : down_write_killable(&using))
		return -ERESTARTSYS;
	if (READ_ONCE(by_dma))
		left = to_user ? memferry_copy_to_user(user, kernel, length) : memferry_copy_from_user(kernel, user, length);
	else
		left = to_user ? copy_to_user(user, kernel, length) : copy_from_user(kernel, user, length);
	if (to_user)
		up_read(&using);
	else
		up_write(&using);
	if (left && left == length)
		return -EFAULT;
	*position += length - left;
	return length - left;
}

static ssize_t demo_read(struct file *file, char __user *to, size_t length, loff_t *position)
{
	return transfer(to, length, position, true);
}

static ssize_t demo_write(struct file *file, const char __user *from, size_t length, loff_t *position)
{
	return transfer((char __user *)from, length, position, false);
}

static loff_t demo_seek(struct file *file, loff_t offset, int whence)
{
	return fixed_size_llseek(file, offset, whence, size);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.read = demo_read,
	.write = demo_write,
	.llseek = demo_seek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "memferry_demo",
	.fops = &operations,
	.mode = 0600,
};

static int __init demo_init(void)
{
	int error;

	if (!megabytes || megabytes > 1024)
		return -EINVAL;
	size = (size_t)megabytes << 20;
	buffer = vzalloc(size);
	if (!buffer)
		return -ENOMEM;
	error = misc_register(&device);
	if (error)
		vfree(buffer);
	return error;
}

static void __exit demo_exit(void)
{
	misc_deregister(&device);
	vfree(buffer);
}

module_init(demo_init);
module_exit(demo_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Copies to and from user memory by the CPU or by memferry");
