// SPDX-License-Identifier: GPL-2.0
/*
 * Statistics of channels and clients: /sys/kernel/debug/memferry/channels and clients.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "memferry.h"

static struct dentry *folder;

static const char *state_of(const struct mf_channel *channel)
{
	if (channel->gone)
		return "gone";
	if (channel->state == MF_FAULTED)
		return "faulted";
	if (channel->stuck)
		return "stuck";
	return channel->gated ? "gated" : "ready";
}

static int channels_show(struct seq_file *to, void *unused)
{
	unsigned int i;

	seq_puts(to, "channel name driver state load transfers bytes timeouts errors gates\n");
	for (i = 0; i < mf_channel_count; i++) {
		struct mf_channel *channel = mf_channels[i];

		spin_lock_irq(&channel->lock);
		seq_printf(to, "%u %s %s %s %u %llu %llu %llu %llu %llu\n", i, channel->name, channel->driver, state_of(channel),
			   channel->load, channel->transfers, channel->bytes, channel->timeouts, channel->errors,
			   channel->gates);
		spin_unlock_irq(&channel->lock);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(channels);

static int clients_show(struct seq_file *to, void *unused)
{
	struct mf_client *client;

	seq_puts(to, "pid name class pinned-pages running unread transfers bytes-by-dma bytes-by-cpu\n");
	mutex_lock(&mf_clients_lock);
	list_for_each_entry(client, &mf_clients, of_all) {
		spin_lock(&client->lock);
		seq_printf(to, "%d %*pE %s %llu %u %u %llu %llu %llu\n", client->pid, (int)strlen(client->name), client->name,
			   client->class == MEMFERRY_HIGH ? "high" : "normal", client->pinned_pages, client->running_count,
			   client->outstanding - client->running_count, client->transfers, client->by_dma, client->by_cpu);
		spin_unlock(&client->lock);
	}
	mutex_unlock(&mf_clients_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(clients);

void mf_stats_start(void)
{
	folder = debugfs_create_dir("memferry", NULL);
	debugfs_create_file("channels", 0400, folder, NULL, &channels_fops);
	debugfs_create_file("clients", 0400, folder, NULL, &clients_fops);
}

void mf_stats_stop(void)
{
	debugfs_remove(folder);
}
