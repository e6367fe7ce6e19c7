// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/memferry: the clients, their regions, running transfers and records.
 *
 *   open ─► client ─ ioctl ─► regions, transfers ─ ended ─► records ─ read, poll, eventfd
 *   close, death of the process ─► all transfers cancelled and awaited ─► regions released
 *
 * Handles of regions are not reused soon, so that stale ones are detected. Only the process that opened a descriptor can
 * use its client.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "memferry.h"

LIST_HEAD(mf_clients);
DEFINE_MUTEX(mf_clients_lock);

/* Valid while the client's control lock is held. */
struct mf_region *mf_client_region(struct mf_client *client, u32 handle)
{
	return xa_load(&client->regions, handle);
}

/* Adds the transfer to the records. Called from a work item or a submitter. */
void mf_client_ended(struct mf_transfer *transfer)
{
	struct mf_client *client = transfer->client;

	/* client_release() frees the client once nothing runs, so the client is not accessed after the unlock. */
	spin_lock(&client->lock);
	list_del_init(&transfer->of_client);
	list_add_tail(&transfer->node, &client->ended);
	client->running_count--;
	client->transfers++;
	client->by_dma += transfer->by_dma;
	client->by_cpu += transfer->by_cpu;
	if (client->eventfd)
		mf_eventfd_signal(client->eventfd);
	wake_up_all(&client->wait);
	spin_unlock(&client->lock);
}

static bool uses(const struct mf_transfer *transfer, const struct mf_region *region)
{
	unsigned int i;

	for (i = 0; i < transfer->count; i++)
		if (transfer->segments[i].source == region || transfer->segments[i].destination == region)
			return true;
	return false;
}

/* Cancels the transfers with the tag, or those that use the region, or, urgently, all. Returns their number. */
static int cancel(struct mf_client *client, const u64 *tag, const struct mf_region *region)
{
	struct mf_transfer *transfer;
	int count = 0;

	spin_lock(&client->lock);
	list_for_each_entry(transfer, &client->running, of_client) {
		if ((tag && transfer->tag != *tag) || (region && !uses(transfer, region)))
			continue;
		WRITE_ONCE(transfer->cancelled, true);
		if (!tag && !region)
			WRITE_ONCE(transfer->urgent, true);
		if (transfer->channel)
			mf_channel_cancel(transfer->channel, transfer);
		count++;
	}
	spin_unlock(&client->lock);
	return count;
}

/* ---- ioctls ---- */

static long query(void __user *argument)
{
	struct memferry_query answer = {
		.version = MEMFERRY_VERSION,
		.channels = mf_channel_count,
		.alignment = 1,
		.policy = mf_policy_current(),
		.threshold = READ_ONCE(mf_threshold),
	};
	unsigned int i;

	for (i = 0; i < mf_channel_count; i++) {
		answer.abilities |= mf_channel_can(mf_channels[i]);
		answer.alignment = max(answer.alignment, mf_channels[i]->alignment);
		answer.faulted_channels += READ_ONCE(mf_channels[i]->state) == MF_FAULTED;
	}
	return copy_to_user(argument, &answer, sizeof(answer)) ? -EFAULT : 0;
}

/* Adds to the client's count of pinned pages. */
static void charge(struct mf_client *client, s64 pages)
{
	spin_lock(&client->lock);
	client->pinned_pages += pages;
	spin_unlock(&client->lock);
}

static long register_region(struct mf_client *client, void __user *argument)
{
	struct memferry_register request;
	struct mf_region *region;
	int error;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (!request.length || !request.rights || (request.rights & ~(MEMFERRY_READ | MEMFERRY_WRITE)) || request.flags ||
	    request.region || request.runs)
		return -EINVAL;
	if (request.address > ULONG_MAX)
		return -EOVERFLOW;
	region = mf_region_of_user(request.address, request.length, request.rights);
	if (IS_ERR(region))
		return PTR_ERR(region);
	mutex_lock(&client->control);
	error = xa_alloc_cyclic(&client->regions, &request.region, region, XA_LIMIT(1, INT_MAX), &client->next_region,
				GFP_KERNEL_ACCOUNT);
	if (error < 0)
		goto put;
	request.runs = mf_region_runs(region);
	error = copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
	if (error) {
		xa_erase(&client->regions, request.region);
		goto put;
	}
	charge(client, region->page_count);
	mutex_unlock(&client->control);
	return 0;
put:
	mutex_unlock(&client->control);
	mf_region_put_now(region);
	return error;
}

static long unregister_region(struct mf_client *client, unsigned long handle)
{
	DECLARE_COMPLETION_ONSTACK(freed);
	struct mf_region *region;
	int error;

	if (handle > U32_MAX)
		return -ENOENT;
	mutex_lock(&client->control);
	region = xa_erase(&client->regions, handle);
	if (region)
		charge(client, -(s64)region->page_count);
	mutex_unlock(&client->control);
	if (!region)
		return -ENOENT;
	spin_lock(&client->lock);
	region->dying = true;
	spin_unlock(&client->lock);
	cancel(client, NULL, region);
	/* If the caller is killed here, the last transfer frees the region. quarantines is read after users (acquire). */
	error = wait_event_killable(region->unused, !atomic_read_acquire(&region->users));
	if (error || atomic_read(&region->quarantines)) {
		mf_region_put_now(region);
		return error;
	}
	/* A transfer that has just ended may still hold a reference. */
	region->freed = &freed;
	mf_region_put_now(region);
	wait_for_completion(&freed);
	return 0;
}

static long submit(struct mf_client *client, void __user *argument)
{
	const struct memferry_transfer __user *from;
	struct memferry_transfer request;
	struct memferry_submit batch;
	long error = 0;

	if (copy_from_user(&batch, argument, sizeof(batch)))
		return -EFAULT;
	if (!batch.count || batch.count > MEMFERRY_MAX_BATCH || batch.accepted)
		return -EINVAL;
	/* Fails before a transfer starts if the caller's memory for the count is not writable. */
	if (put_user(0, &((struct memferry_submit __user *)argument)->accepted))
		return -EFAULT;
	from = u64_to_user_ptr(batch.transfers);
	while (batch.accepted < batch.count) {
		error = fatal_signal_pending(current) ? -EINTR : 0;
		if (!error && copy_from_user(&request, from + batch.accepted, sizeof(request)))
			error = -EFAULT;
		if (!error)
			error = mf_submit_one(client, &request);
		if (error)
			break;
		batch.accepted++;
	}
	if (copy_to_user(argument, &batch, sizeof(batch)))
		return -EFAULT;
	return batch.accepted ? 0 : error;
}

static long cancel_tag(struct mf_client *client, const void __user *argument)
{
	u64 tag;

	if (copy_from_user(&tag, argument, sizeof(tag)))
		return -EFAULT;
	return cancel(client, &tag, NULL);
}

static long set_eventfd(struct mf_client *client, int descriptor)
{
	struct eventfd_ctx *eventfd = descriptor == -1 ? NULL : eventfd_ctx_fdget(descriptor);

	if (IS_ERR(eventfd))
		return PTR_ERR(eventfd);
	spin_lock(&client->lock);
	swap(client->eventfd, eventfd);
	/* One signal for all records that wait already. */
	if (client->eventfd && !list_empty(&client->ended))
		mf_eventfd_signal(client->eventfd);
	spin_unlock(&client->lock);
	if (eventfd)
		eventfd_ctx_put(eventfd);
	return 0;
}

static long set_class(struct mf_client *client, unsigned long class)
{
	if (class > MEMFERRY_HIGH)
		return -EINVAL;
	if (class == MEMFERRY_HIGH && !capable(CAP_SYS_NICE))
		return -EPERM;
	WRITE_ONCE(client->class, class);
	return 0;
}

static long client_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *pointer = (void __user *)argument;
	struct mf_client *client = file->private_data;

	if (client->mm != current->mm)
		return -EPERM;
	switch (command) {
	case MEMFERRY_QUERY:
		return query(pointer);
	case MEMFERRY_REGISTER:
		return register_region(client, pointer);
	case MEMFERRY_UNREGISTER:
		return unregister_region(client, argument);
	case MEMFERRY_SUBMIT:
		return submit(client, pointer);
	case MEMFERRY_CANCEL:
		return cancel_tag(client, pointer);
	case MEMFERRY_EVENTFD:
		return set_eventfd(client, argument);
	case MEMFERRY_CLASS:
		return set_class(client, argument);
	default:
		return -ENOTTY;
	}
}

/* ---- records ---- */

static struct mf_transfer *take_ended(struct mf_client *client)
{
	struct mf_transfer *transfer;

	spin_lock(&client->lock);
	transfer = list_first_entry_or_null(&client->ended, struct mf_transfer, node);
	if (transfer)
		list_del_init(&transfer->node);
	spin_unlock(&client->lock);
	return transfer;
}

static void give_back(struct mf_client *client, struct mf_transfer *transfer)
{
	spin_lock(&client->lock);
	list_add(&transfer->node, &client->ended);
	wake_up_all(&client->wait);
	spin_unlock(&client->lock);
}

static void forget(struct mf_client *client, struct mf_transfer *transfer)
{
	spin_lock(&client->lock);
	client->outstanding--;
	wake_up_all(&client->wait);
	spin_unlock(&client->lock);
	mf_transfer_free(transfer);
}

static struct memferry_record record_of(const struct mf_transfer *transfer)
{
	return (struct memferry_record){
		.tag = transfer->tag,
		.status = transfer->status,
		.moved_by = (transfer->by_cpu ? MEMFERRY_BY_CPU : 0) | (transfer->by_dma ? MEMFERRY_BY_DMA : 0),
		.bytes_done = transfer->landed,
		.bytes_by_dma = transfer->by_dma,
		.channel = transfer->channel ? transfer->channel->number : -1,
	};
}

static ssize_t read_records(struct mf_client *client, char __user *to, size_t room)
{
	struct mf_transfer *transfer;
	ssize_t given = 0;

	while (given + sizeof(struct memferry_record) <= room) {
		struct memferry_record record;

		transfer = take_ended(client);
		if (!transfer)
			break;
		record = record_of(transfer);
		if (copy_to_user(to + given, &record, sizeof(record))) {
			give_back(client, transfer);
			return given ?: -EFAULT;
		}
		given += sizeof(record);
		forget(client, transfer);
	}
	return given;
}

static ssize_t client_read(struct file *file, char __user *to, size_t room, loff_t *position)
{
	struct mf_client *client = file->private_data;
	ssize_t given;

	if (client->mm != current->mm)
		return -EPERM;
	if (room < sizeof(struct memferry_record))
		return -EINVAL;
	for (;;) {
		if (mutex_lock_interruptible(&client->reading))
			return -ERESTARTSYS;
		given = read_records(client, to, min_t(size_t, room, INT_MAX));
		mutex_unlock(&client->reading);
		if (given)
			return given;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(client->wait, !list_empty_careful(&client->ended)))
			return -ERESTARTSYS;
	}
}

static __poll_t client_poll(struct file *file, poll_table *table)
{
	struct mf_client *client = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &client->wait, table);
	spin_lock(&client->lock);
	if (!list_empty(&client->ended))
		events |= EPOLLIN | EPOLLRDNORM;
	if (client->outstanding < MEMFERRY_MAX_OUTSTANDING)
		events |= EPOLLOUT | EPOLLWRNORM;
	spin_unlock(&client->lock);
	return events;
}

/* ---- life ---- */

static int client_open(struct inode *inode, struct file *file)
{
	struct mf_client *client = kzalloc(struct_size(client, lines, mf_channel_count), GFP_KERNEL_ACCOUNT);
	unsigned int i;

	if (!client)
		return -ENOMEM;
	for (i = 0; i < mf_channel_count; i++)
		mf_line_init(&client->lines[i]);
	client->mm = current->mm;
	mmgrab(client->mm);
	client->pid = task_tgid_nr(current);
	get_task_comm(client->name, current);
	mutex_init(&client->control);
	mutex_init(&client->reading);
	spin_lock_init(&client->lock);
	init_waitqueue_head(&client->wait);
	xa_init_flags(&client->regions, XA_FLAGS_ALLOC1);
	INIT_LIST_HEAD(&client->running);
	INIT_LIST_HEAD(&client->ended);
	file->private_data = client;
	mutex_lock(&mf_clients_lock);
	list_add_tail(&client->of_all, &mf_clients);
	mutex_unlock(&mf_clients_lock);
	return stream_open(inode, file);
}

static bool is_quiet(struct mf_client *client)
{
	bool quiet;

	spin_lock(&client->lock);
	quiet = !client->running_count;
	spin_unlock(&client->lock);
	return quiet;
}

static int client_release(struct inode *inode, struct file *file)
{
	struct mf_client *client = file->private_data;
	struct mf_transfer *transfer;
	struct mf_region *region;
	unsigned long handle;

	mutex_lock(&mf_clients_lock);
	list_del(&client->of_all);
	mutex_unlock(&mf_clients_lock);
	cancel(client, NULL, NULL);
	/*
	 * This wait ends: waiting transfers left their lines, an engine is stopped or limited by the watchdog, and the CPU
	 * checks for the cancel between pieces.
	 */
	wait_event(client->wait, is_quiet(client));
	while ((transfer = take_ended(client)))
		mf_transfer_free(transfer);
	xa_for_each(&client->regions, handle, region)
		mf_region_put_now(region);
	xa_destroy(&client->regions);
	if (client->eventfd)
		eventfd_ctx_put(client->eventfd);
	mmdrop(client->mm);
	kfree(client);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = client_open,
	.release = client_release,
	.read = client_read,
	.poll = client_poll,
	.unlocked_ioctl = client_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "memferry",
	.fops = &operations,
	.mode = 0660,
	.groups = mf_policy_groups,
};

int mf_device_register(void)
{
	return misc_register(&device);
}

void mf_device_unregister(void)
{
	misc_deregister(&device);
}
