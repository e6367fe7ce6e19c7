/* A DMA device of DPDK (dmadev) whose engine is memferry: `--vdev dma_memferry` or `--vdev dma_memferry,socket=PATH`.
 *
 *     rte_dma_copy ─ memory_find ─► mf_submit_copy, staged ──► rte_dma_submit: mf_publish
 *     rte_dma_completed ◄─ jobs in the order of their ring_idx ◄─ mf_poll
 *
 * A virtual channel is a queue of memferry and a ring of jobs. An operation is one job and at most one transfer: one whose memory is
 * no frame is a job that has failed already. Transfers end in any order; jobs are reported in theirs.
 *
 * The device belongs to the process that made it: handles mean nothing in another one. SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <bus_vdev_driver.h>
#include <rte_dmadev_pmd.h>
#include <rte_eal.h>
#include <rte_kvargs.h>
#include <rte_memory.h>

#include "memory.h"

#define ARGUMENT_SOCKET "socket"

#define MOST_CHANNELS 16
#define LEAST_DESCRIPTORS 2
#define MOST_DESCRIPTORS 4096
#define MOST_SEGMENTS 512

/* Fills whose pattern does not repeat after four bytes copy it from memory that holds it many times: so many patterns at a time,
 * so many bytes of each. */
#define PATTERNS 16
#define PATTERN_BYTES 16384

/* How long rte_dma_stop waits for operations, and then again after it cancelled them. */
#define STOP_SECONDS 1

int memferry_dma_log;

/* Where a job is. */
enum stage { JOB_STAGED, JOB_RUNNING, JOB_ENDED };

struct job {
    uint64_t tag;
    uint16_t status;
    uint8_t stage;
    /* The pattern that it reads, or -1. */
    int8_t pattern;
};

struct pattern {
    uint64_t value;
    uint32_t filled;
    uint32_t users;
};

struct channel {
    mf_queue queue;
    bool is_set_up;
    bool is_open;
    /* The service is gone, or the queue cannot be used any more. */
    bool is_lost;
    uint16_t descriptors;
    /* Of the ring of jobs: a power of two, so that it divides the 65,536 values of ring_idx. */
    uint32_t slots;
    struct job *jobs;
    /* The next job to report; the first that was not submitted; the next to enqueue. They wrap as ring_idx does. */
    uint16_t first;
    uint16_t submitted;
    uint16_t next;
    /* The job that probably ends next. */
    uint16_t expected;
    /* Transfers without a completion: of submitted jobs, and of others. */
    uint32_t running;
    uint32_t staged;
    unsigned source_hint;
    unsigned destination_hint;
    struct rte_dma_stats stats;
    mf_frame pattern_frame;
    uint8_t *pattern_bytes;
    struct pattern patterns[PATTERNS];
    mf_range sources[MEMORY_RANGES];
    mf_range destinations[MEMORY_RANGES];
};

struct device {
    uint16_t channels;
    struct channel *channel[MOST_CHANNELS];
};

/* What DPDK allocates for us, in memory that processes share. */
struct shared {
    struct device *device;
};

static struct device *device_of(const struct rte_dma_dev *dev) {
    return ((struct shared *)dev->data->dev_private)->device;
}

static struct channel *channel_of(const struct device *device, uint16_t number) {
    struct channel *channel = number < device->channels ? device->channel[number] : NULL;

    return channel && channel->is_open ? channel : NULL;
}

static struct job *job_of(const struct channel *channel, uint16_t index) {
    return &channel->jobs[index & (channel->slots - 1)];
}

static uint16_t occupied(const struct channel *channel) { return channel->next - channel->first; }

/* DPDK's word for how a transfer ended. */
static uint16_t status_of(mf_error error, mf_side side) {
    bool source = side == MF_SIDE_SOURCE, destination = side == MF_SIDE_DESTINATION;

    switch (error) {
    case MF_ERROR_NONE:
        return RTE_DMA_STATUS_SUCCESSFUL;
    case MF_ERROR_UNKNOWN_HANDLE:
    case MF_ERROR_STALE_HANDLE:
    case MF_ERROR_REVOKED:
    case MF_ERROR_MISSING_RIGHT:
    case MF_ERROR_OUT_OF_BOUNDS:
        return source        ? RTE_DMA_STATUS_INVALID_SRC_ADDR
               : destination ? RTE_DMA_STATUS_INVALID_DST_ADDR
                             : RTE_DMA_STATUS_INVALID_ADDR;
    case MF_ERROR_TOO_LONG:
    case MF_ERROR_FILL_LENGTH:
    case MF_ERROR_SEGMENT_TOTALS:
        return RTE_DMA_STATUS_INVALID_LENGTH;
    case MF_ERROR_UNSUPPORTED:
        return RTE_DMA_STATUS_INVALID_OPCODE;
    case MF_ERROR_MEMORY_FAULT:
        return source        ? RTE_DMA_STATUS_BUS_READ_ERROR
               : destination ? RTE_DMA_STATUS_BUS_WRITE_ERROR
                             : RTE_DMA_STATUS_BUS_ERROR;
    case MF_ERROR_CANCELLED:
        return RTE_DMA_STATUS_USER_ABORT;
    default:
        return RTE_DMA_STATUS_ERROR_UNKNOWN;
    }
}

/* The job of a transfer. Most end in order, so the search is short. */
static struct job *job_with(struct channel *channel, uint64_t tag) {
    uint16_t count = occupied(channel);
    uint16_t index = channel->expected;

    if ((uint16_t)(index - channel->first) >= count)
        index = channel->first;
    for (uint16_t seen = 0; seen < count; seen++) {
        struct job *job = job_of(channel, index);

        index++;
        if (index == channel->next)
            index = channel->first;
        if (job->stage != JOB_ENDED && job->tag == tag) {
            channel->expected = index;
            return job;
        }
    }
    return NULL;
}

static void end(struct channel *channel, struct job *job, uint16_t status) {
    if (job->stage == JOB_RUNNING)
        channel->running--;
    else
        channel->staged--;
    if (job->pattern >= 0)
        channel->patterns[job->pattern].users--;
    job->stage = JOB_ENDED;
    job->status = status;
}

/* Ends what has no completion to expect: once each, for jobs that have ended stay so. */
static void lose(struct channel *channel) {
    channel->is_lost = true;
    for (uint16_t index = channel->first; index != channel->next; index++) {
        struct job *job = job_of(channel, index);

        if (job->stage != JOB_ENDED)
            end(channel, job, RTE_DMA_STATUS_ERROR_UNKNOWN);
    }
}

/* Takes the completions that have come. */
static void drain(struct channel *channel) {
    while (channel->running > 0) {
        mf_completion completion;
        mf_error error = mf_poll(channel->queue, &completion);
        struct job *job;

        if (error == MF_ERROR_NOTHING || error == MF_ERROR_IN_USE)
            return;
        if (error != MF_ERROR_NONE && error < MF_ERROR_MALFORMED) {
            SAY(ERR, "a channel is lost: %s", mf_last_message());
            lose(channel);
            return;
        }
        if (error == MF_ERROR_OUTCOME_UNKNOWN && !channel->is_lost) {
            SAY(ERR, "the service is lost; outstanding operations end with an error: %s", mf_last_message());
            channel->is_lost = true;
        }
        job = job_with(channel, completion.ticket.tag);
        if (job)
            end(channel, job, status_of(error, completion.side));
    }
}

/* Starts what was enqueued. */
static int submit(struct channel *channel, bool is_published) {
    uint16_t index;

    if (channel->staged > 0 && !is_published && !channel->is_lost) {
        mf_error error = mf_publish(channel->queue);

        if (error != MF_ERROR_NONE) {
            SAY(ERR, "cannot submit: %s", mf_last_message());
            return -EIO;
        }
    }
    for (index = channel->submitted; index != channel->next; index++) {
        struct job *job = job_of(channel, index);

        if (job->stage == JOB_STAGED) {
            job->stage = JOB_RUNNING;
            channel->staged--;
            channel->running++;
        }
    }
    channel->stats.submitted += (uint16_t)(channel->next - channel->submitted);
    channel->submitted = channel->next;
    /* Nobody will complete what was submitted after the loss. */
    if (channel->is_lost)
        lose(channel);
    return 0;
}

/* Whether one more job fits. */
static int room(const struct channel *channel) {
    if (!channel)
        return -EINVAL;
    if (channel->is_lost)
        return -EIO;
    return occupied(channel) < channel->descriptors ? 0 : -ENOSPC;
}

static mf_terms terms_of(uint64_t flags) {
    mf_terms terms = MF_TERMS_INIT;

    if (!(flags & RTE_DMA_OP_FLAG_SUBMIT))
        terms.flags |= MF_FLAG_STAGED;
    if (flags & RTE_DMA_OP_FLAG_FENCE)
        terms.flags |= MF_FLAG_FENCED;
    if (flags & RTE_DMA_OP_FLAG_LLC)
        terms.hint = MF_HINT_KEEP;
    return terms;
}

/* Adds a job. One that could not become a transfer has ended already, with `status`. */
static int enqueued(struct channel *channel, struct job job, uint64_t flags) {
    uint16_t index = channel->next++;
    bool is_transfer = job.stage != JOB_ENDED;

    *job_of(channel, index) = job;
    if (is_transfer)
        channel->staged++;
    if (job.pattern >= 0)
        channel->patterns[job.pattern].users++;
    /* The job is there, also if it cannot start yet: the next rte_dma_submit tries again. */
    if (flags & RTE_DMA_OP_FLAG_SUBMIT)
        (void)submit(channel, is_transfer);
    return index;
}

static int failed(struct channel *channel, uint16_t status, uint64_t flags) {
    return enqueued(channel, (struct job){.status = status, .stage = JOB_ENDED, .pattern = -1}, flags);
}

/* Adds the job of a transfer that was submitted with this result. */
static int accepted(struct channel *channel, mf_error error, mf_ticket ticket, int pattern, uint64_t flags) {
    if (error == MF_ERROR_NONE)
        return enqueued(channel, (struct job){.tag = ticket.tag, .stage = JOB_STAGED, .pattern = pattern}, flags);
    if (error == MF_ERROR_QUEUE_FULL)
        return -ENOSPC;
    if (error == MF_ERROR_SERVICE_LOST)
        channel->is_lost = true;
    SAY(ERR, "cannot enqueue: %s", mf_last_message());
    return -EIO;
}

/* Finds one side of a transfer. Gives the number of ranges, or 0 and the job's status. */
static int side_of(uint64_t address, uint64_t length, mf_range *ranges, int most, unsigned *hint, uint16_t wrong,
                   uint16_t *status) {
    int found = memory_find(address, length, ranges, most, hint);

    if (found > 0)
        return found;
    *status = found == 0 ? wrong : RTE_DMA_STATUS_INVALID_LENGTH;
    return 0;
}

static int move_ranges(struct channel *channel, int sources, int destinations, int pattern, uint64_t flags) {
    mf_terms terms = terms_of(flags);
    mf_ticket ticket;
    mf_error error;

    if (sources == 1 && destinations == 1)
        error = mf_submit_copy(channel->queue, channel->sources[0], channel->destinations[0], &terms, &ticket);
    else
        error = mf_submit_scatter_gather(channel->queue, channel->sources, sources, channel->destinations, destinations,
                                         &terms, &ticket);
    return accepted(channel, error, ticket, pattern, flags);
}

static int copy(void *private, uint16_t number, rte_iova_t source, rte_iova_t destination, uint32_t length,
                uint64_t flags) {
    struct channel *channel = channel_of(private, number);
    uint16_t status = RTE_DMA_STATUS_INVALID_LENGTH;
    int sources = 0, destinations = 0;
    int result = room(channel);

    if (result < 0)
        return result;
    memory_enter();
    if (length > 0)
        sources = side_of(source, length, channel->sources, MEMORY_RANGES, &channel->source_hint,
                          RTE_DMA_STATUS_INVALID_SRC_ADDR, &status);
    if (sources > 0)
        destinations = side_of(destination, length, channel->destinations, MEMORY_RANGES, &channel->destination_hint,
                               RTE_DMA_STATUS_INVALID_DST_ADDR, &status);
    result = destinations > 0 ? move_ranges(channel, sources, destinations, -1, flags) : failed(channel, status, flags);
    memory_leave();
    return result;
}

/* Finds a list. Gives the number of ranges and the bytes in them, or 0 and the job's status. */
static int list_of(const struct rte_dma_sge *list, uint16_t count, mf_range *ranges, unsigned *hint, uint64_t *bytes,
                   uint16_t wrong, uint16_t *status) {
    int found = 0;

    for (uint16_t entry = 0; entry < count; entry++) {
        int more;

        if (list[entry].length == 0)
            continue;
        more = side_of(list[entry].addr, list[entry].length, ranges + found, MEMORY_RANGES - found, hint, wrong, status);
        if (more == 0)
            return 0;
        found += more;
        *bytes += list[entry].length;
    }
    return found;
}

static int copy_sg(void *private, uint16_t number, const struct rte_dma_sge *source,
                   const struct rte_dma_sge *destination, uint16_t source_count, uint16_t destination_count,
                   uint64_t flags) {
    struct channel *channel = channel_of(private, number);
    uint16_t status = RTE_DMA_STATUS_INVALID_LENGTH;
    uint64_t from = 0, to = 0;
    int sources, destinations = 0;
    int result = room(channel);

    if (result < 0)
        return result;
    if (source_count == 0 || source_count > MOST_SEGMENTS || destination_count == 0 ||
        destination_count > MOST_SEGMENTS)
        return -EINVAL;
    memory_enter();
    sources = list_of(source, source_count, channel->sources, &channel->source_hint, &from,
                      RTE_DMA_STATUS_INVALID_SRC_ADDR, &status);
    if (sources > 0)
        destinations = list_of(destination, destination_count, channel->destinations, &channel->destination_hint, &to,
                               RTE_DMA_STATUS_INVALID_DST_ADDR, &status);
    if (destinations > 0 && from == to)
        result = move_ranges(channel, sources, destinations, -1, flags);
    else
        result = failed(channel, status, flags);
    memory_leave();
    return result;
}

/* The width of the shortest pattern that the engine takes and that gives the same bytes; 0 if there is none. */
static unsigned width_of(uint64_t pattern, uint32_t length) {
    if ((uint32_t)pattern != pattern >> 32)
        return 0;
    if ((uint16_t)pattern == (uint16_t)(pattern >> 16)) {
        if ((uint8_t)pattern == (uint8_t)(pattern >> 8))
            return 1;
        if (length % 2 == 0)
            return 2;
    }
    return length % 4 == 0 ? 4 : 0;
}

/* Finds memory that holds the pattern often enough, and writes it. Gives its number, or -ENOSPC. */
static int pattern_of(struct channel *channel, uint64_t value, uint32_t length) {
    uint32_t wanted = RTE_MIN(RTE_ALIGN_CEIL((uint64_t)length, sizeof(value)), (uint64_t)PATTERN_BYTES);
    struct pattern *pattern;
    int chosen = -ENOSPC;

    for (int at = 0; at < PATTERNS; at++) {
        pattern = &channel->patterns[at];
        if (pattern->filled > 0 && pattern->value == value) {
            chosen = at;
            break;
        }
        if (pattern->users == 0)
            chosen = at;
    }
    if (chosen < 0)
        return chosen;
    pattern = &channel->patterns[chosen];
    if (pattern->value != value) {
        pattern->value = value;
        pattern->filled = 0;
    }
    /* Transfers may be reading what is filled; it stays. */
    for (; pattern->filled < wanted; pattern->filled += sizeof(value))
        memcpy(channel->pattern_bytes + chosen * PATTERN_BYTES + pattern->filled, &value, sizeof(value));
    return chosen;
}

static int fill_by_copy(struct channel *channel, uint64_t value, uint32_t length, int destinations, uint64_t flags) {
    int sources = 0, pattern;

    if (((uint64_t)length + PATTERN_BYTES - 1) / PATTERN_BYTES > MEMORY_RANGES)
        return failed(channel, RTE_DMA_STATUS_INVALID_LENGTH, flags);
    pattern = pattern_of(channel, value, length);
    if (pattern < 0) {
        drain(channel);
        pattern = pattern_of(channel, value, length);
    }
    if (pattern < 0)
        return pattern;
    while (length > 0) {
        uint32_t part = RTE_MIN(length, (uint32_t)PATTERN_BYTES);

        channel->sources[sources++] = mf_part(channel->pattern_frame, (uint64_t)pattern * PATTERN_BYTES, part);
        length -= part;
    }
    return move_ranges(channel, sources, destinations, pattern, flags);
}

static int fill(void *private, uint16_t number, uint64_t pattern, rte_iova_t destination, uint32_t length,
                uint64_t flags) {
    struct channel *channel = channel_of(private, number);
    uint16_t status = RTE_DMA_STATUS_INVALID_LENGTH;
    unsigned width = width_of(pattern, length);
    int destinations = 0;
    int result = room(channel);

    if (result < 0)
        return result;
    memory_enter();
    if (length > 0)
        destinations = side_of(destination, length, channel->destinations, MEMORY_RANGES, &channel->destination_hint,
                               RTE_DMA_STATUS_INVALID_DST_ADDR, &status);
    if (destinations == 0) {
        result = failed(channel, status, flags);
    } else if (width > 0 && destinations == 1) {
        uint32_t value = width == 4 ? (uint32_t)pattern : (uint32_t)pattern & ((1u << 8 * width) - 1);
        mf_terms terms = terms_of(flags);
        mf_ticket ticket;
        mf_error error = mf_submit_fill(channel->queue, channel->destinations[0], value, width, &terms, &ticket);

        result = accepted(channel, error, ticket, -1, flags);
    } else {
        result = fill_by_copy(channel, pattern, length, destinations, flags);
    }
    memory_leave();
    return result;
}

static int ring_doorbell(void *private, uint16_t number) {
    struct channel *channel = channel_of(private, number);

    return channel ? submit(channel, false) : -EINVAL;
}

static uint16_t completed(void *private, uint16_t number, const uint16_t most, uint16_t *last, bool *has_error) {
    struct channel *channel = channel_of(private, number);
    uint16_t count = 0;

    if (!channel)
        return 0;
    drain(channel);
    while (count < most && channel->first != channel->submitted) {
        const struct job *job = job_of(channel, channel->first);

        if (job->stage != JOB_ENDED)
            break;
        if (job->status != RTE_DMA_STATUS_SUCCESSFUL) {
            *has_error = true;
            break;
        }
        channel->first++;
        count++;
    }
    channel->stats.completed += count;
    *last = channel->first - 1;
    return count;
}

static uint16_t completed_status(void *private, uint16_t number, const uint16_t most, uint16_t *last,
                                 enum rte_dma_status_code *statuses) {
    struct channel *channel = channel_of(private, number);
    uint16_t count = 0;

    if (!channel)
        return 0;
    drain(channel);
    while (count < most && channel->first != channel->submitted) {
        const struct job *job = job_of(channel, channel->first);

        if (job->stage != JOB_ENDED)
            break;
        statuses[count++] = job->status;
        channel->stats.errors += job->status != RTE_DMA_STATUS_SUCCESSFUL;
        channel->first++;
    }
    channel->stats.completed += count;
    *last = channel->first - 1;
    return count;
}

static uint16_t burst_capacity(const void *private, uint16_t number) {
    const struct channel *channel = channel_of(private, number);

    return channel && !channel->is_lost ? channel->descriptors - occupied(channel) : 0;
}

static int info_get(const struct rte_dma_dev *dev, struct rte_dma_info *info, uint32_t size) {
    RTE_SET_USED(dev);
    RTE_SET_USED(size);
    info->dev_capa = RTE_DMA_CAPA_MEM_TO_MEM | RTE_DMA_CAPA_HANDLES_ERRORS | RTE_DMA_CAPA_OPS_COPY |
                     RTE_DMA_CAPA_OPS_COPY_SG | RTE_DMA_CAPA_OPS_FILL;
    info->max_vchans = MOST_CHANNELS;
    info->max_desc = MOST_DESCRIPTORS;
    info->min_desc = LEAST_DESCRIPTORS;
    info->max_sges = MOST_SEGMENTS;
    return 0;
}

static void free_channels(struct device *device) {
    for (uint16_t number = 0; number < MOST_CHANNELS; number++) {
        if (device->channel[number])
            free(device->channel[number]->jobs);
        free(device->channel[number]);
        device->channel[number] = NULL;
    }
    device->channels = 0;
}

static int configure(struct rte_dma_dev *dev, const struct rte_dma_conf *conf, uint32_t size) {
    struct device *device = device_of(dev);

    RTE_SET_USED(size);
    free_channels(device);
    device->channels = conf->nb_vchans;
    return 0;
}

static int vchan_setup(struct rte_dma_dev *dev, uint16_t number, const struct rte_dma_vchan_conf *conf, uint32_t size) {
    struct device *device = device_of(dev);
    struct channel *channel = device->channel[number];
    uint32_t slots = rte_align32pow2(conf->nb_desc);
    struct job *jobs = calloc(slots, sizeof(*jobs));

    RTE_SET_USED(size);
    if (!channel)
        channel = calloc(1, sizeof(*channel));
    if (!jobs || !channel) {
        free(jobs);
        free(channel);
        device->channel[number] = NULL;
        return -ENOMEM;
    }
    free(channel->jobs);
    channel->jobs = jobs;
    channel->slots = slots;
    channel->descriptors = conf->nb_desc;
    channel->is_set_up = true;
    device->channel[number] = channel;
    return 0;
}

static uint64_t seconds(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Waits for the operations under way. */
static void settle(struct channel *channel) {
    uint64_t until = seconds() + STOP_SECONDS;

    while (channel->running > 0 && seconds() <= until)
        drain(channel);
}

static void close_channel(struct channel *channel) {
    if (!channel || !channel->is_open)
        return;
    settle(channel);
    if (channel->running > 0) {
        for (uint16_t index = channel->first; index != channel->submitted; index++) {
            struct job *job = job_of(channel, index);

            if (job->stage == JOB_RUNNING)
                (void)mf_cancel(channel->queue, (mf_ticket){job->tag, channel->queue.id});
        }
        settle(channel);
    }
    if (channel->running > 0)
        SAY(WARNING, "stopped with %u operations under way: their memory may still be written", channel->running);
    (void)mf_queue_close(channel->queue);
    (void)mf_frame_free(channel->pattern_frame);
    channel->is_open = false;
}

static int open_channel(struct channel *channel) {
    void *bytes;

    if (mf_frame_allocate(memory_client(), PATTERNS * PATTERN_BYTES, &channel->pattern_frame) != MF_ERROR_NONE)
        return -EIO;
    if (mf_frame_map(channel->pattern_frame, &bytes, NULL) != MF_ERROR_NONE ||
        mf_queue_open(memory_client(), channel->slots, &channel->queue) != MF_ERROR_NONE) {
        (void)mf_frame_free(channel->pattern_frame);
        return -EIO;
    }
    channel->pattern_bytes = bytes;
    memset(channel->patterns, 0, sizeof(channel->patterns));
    channel->first = channel->submitted = channel->next = channel->expected = 0;
    channel->running = channel->staged = 0;
    channel->is_lost = false;
    channel->is_open = true;
    return 0;
}

static int stop(struct rte_dma_dev *dev) {
    struct device *device = device_of(dev);

    for (uint16_t number = 0; number < device->channels; number++)
        close_channel(device->channel[number]);
    return 0;
}

static int start(struct rte_dma_dev *dev) {
    struct device *device = device_of(dev);

    for (uint16_t number = 0; number < device->channels; number++) {
        struct channel *channel = device->channel[number];

        if (!channel || !channel->is_set_up)
            continue;
        if (open_channel(channel) < 0) {
            SAY(ERR, "cannot open channel %u: %s", number, mf_last_message());
            stop(dev);
            return -EIO;
        }
    }
    return 0;
}

static int close_device(struct rte_dma_dev *dev) {
    struct device *device = device_of(dev);

    free_channels(device);
    free(device);
    memory_close();
    return 0;
}

static int stats_get(const struct rte_dma_dev *dev, uint16_t number, struct rte_dma_stats *stats, uint32_t size) {
    const struct device *device = device_of(dev);

    RTE_SET_USED(size);
    for (uint16_t at = 0; at < device->channels; at++) {
        const struct channel *channel = device->channel[at];

        if (!channel || (number != RTE_DMA_ALL_VCHAN && number != at))
            continue;
        stats->submitted += channel->stats.submitted;
        stats->completed += channel->stats.completed;
        stats->errors += channel->stats.errors;
    }
    return 0;
}

static int stats_reset(struct rte_dma_dev *dev, uint16_t number) {
    struct device *device = device_of(dev);

    for (uint16_t at = 0; at < device->channels; at++) {
        if (device->channel[at] && (number == RTE_DMA_ALL_VCHAN || number == at))
            memset(&device->channel[at]->stats, 0, sizeof(device->channel[at]->stats));
    }
    return 0;
}

static int vchan_status(const struct rte_dma_dev *dev, uint16_t number, enum rte_dma_vchan_status *status) {
    struct channel *channel = channel_of(device_of(dev), number);

    if (!channel)
        return -EINVAL;
    drain(channel);
    *status = channel->running > 0 ? RTE_DMA_VCHAN_ACTIVE
              : channel->is_lost   ? RTE_DMA_VCHAN_HALTED_ERROR
                                   : RTE_DMA_VCHAN_IDLE;
    return 0;
}

static int dump(const struct rte_dma_dev *dev, FILE *file) {
    const struct device *device = device_of(dev);

    fprintf(file, "    service: %s\n", memory_is_embedded() ? "in this process" : "behind a socket");
    for (uint16_t number = 0; number < device->channels; number++) {
        const struct channel *channel = device->channel[number];

        if (channel && channel->is_open)
            fprintf(file, "    channel %u: %u descriptors, %u used, %u transfers under way%s\n", number,
                    channel->descriptors, occupied(channel), channel->running, channel->is_lost ? ", lost" : "");
    }
    return 0;
}

static const struct rte_dma_dev_ops operations = {
    .dev_info_get = info_get,
    .dev_configure = configure,
    .dev_start = start,
    .dev_stop = stop,
    .dev_close = close_device,
    .vchan_setup = vchan_setup,
    .stats_get = stats_get,
    .stats_reset = stats_reset,
    .vchan_status = vchan_status,
    .dev_dump = dump,
};

static int keep_text(const char *key, const char *value, void *kept) {
    RTE_SET_USED(key);
    if (!value || !*value)
        return -EINVAL;
    *(char **)kept = strdup(value);
    return *(char **)kept ? 0 : -ENOMEM;
}

/* Reads the arguments of --vdev. The socket is null without one. */
static int read_arguments(const char *text, char **socket) {
    static const char *const keys[] = {ARGUMENT_SOCKET, NULL};
    struct rte_kvargs *arguments;
    int status = 0;

    *socket = NULL;
    if (!text || !*text)
        return 0;
    arguments = rte_kvargs_parse(text, keys);
    if (!arguments || rte_kvargs_count(arguments, ARGUMENT_SOCKET) > 1 ||
        rte_kvargs_process(arguments, ARGUMENT_SOCKET, keep_text, socket) < 0) {
        SAY(ERR, "wrong arguments '%s': there is only socket=PATH, of a service of memferry", text);
        free(*socket);
        *socket = NULL;
        status = -EINVAL;
    }
    rte_kvargs_free(arguments);
    return status;
}

static int create(const char *name, struct rte_vdev_device *vdev) {
    struct device *device = calloc(1, sizeof(*device));
    struct rte_dma_dev *dev;

    if (!device)
        return -ENOMEM;
    dev = rte_dma_pmd_allocate(name, vdev->device.numa_node, sizeof(struct shared));
    if (!dev) {
        free(device);
        return -ENOMEM;
    }
    ((struct shared *)dev->data->dev_private)->device = device;
    dev->device = &vdev->device;
    dev->dev_ops = &operations;
    dev->fp_obj->dev_private = device;
    dev->fp_obj->copy = copy;
    dev->fp_obj->copy_sg = copy_sg;
    dev->fp_obj->fill = fill;
    dev->fp_obj->submit = ring_doorbell;
    dev->fp_obj->completed = completed;
    dev->fp_obj->completed_status = completed_status;
    dev->fp_obj->burst_capacity = burst_capacity;
    dev->state = RTE_DMA_DEV_READY;
    return 0;
}

static int probe(struct rte_vdev_device *vdev) {
    const char *name = rte_vdev_device_name(vdev);
    char *socket;
    int status;

    if (!name)
        return -EINVAL;
    if (rte_eal_process_type() != RTE_PROC_PRIMARY) {
        SAY(NOTICE, "%s belongs to the primary process; this one has no device of memferry", name);
        return 0;
    }
    status = read_arguments(rte_vdev_device_args(vdev), &socket);
    if (status < 0)
        return status;
    status = memory_open(socket);
    free(socket);
    if (status < 0)
        return status;
    status = create(name, vdev);
    if (status < 0) {
        SAY(ERR, "cannot create %s", name);
        memory_close();
    }
    return status;
}

static int remove_device(struct rte_vdev_device *vdev) {
    const char *name = rte_vdev_device_name(vdev);

    if (!name)
        return -EINVAL;
    if (rte_eal_process_type() != RTE_PROC_PRIMARY)
        return 0;
    return rte_dma_pmd_release(name);
}

static int dma_map(struct rte_vdev_device *vdev, void *address, uint64_t iova, size_t length) {
    RTE_SET_USED(vdev);
    return iova == (uintptr_t)address ? memory_map(address, length) : -EINVAL;
}

static int dma_unmap(struct rte_vdev_device *vdev, void *address, uint64_t iova, size_t length) {
    RTE_SET_USED(vdev);
    return iova == (uintptr_t)address ? memory_unmap(address, length) : -EINVAL;
}

static struct rte_vdev_driver driver = {
    .probe = probe,
    .remove = remove_device,
    .dma_map = dma_map,
    .dma_unmap = dma_unmap,
    /* The bus refuses the device when EAL uses physical addresses. */
    .drv_flags = RTE_VDEV_DRV_NEED_IOVA_AS_VA,
};

RTE_INIT(memferry_register_log) {
    memferry_dma_log = rte_log_register_type_and_pick_level("pmd.dma.memferry", RTE_LOG_NOTICE);
}

RTE_PMD_REGISTER_VDEV(dma_memferry, driver);
RTE_PMD_REGISTER_PARAM_STRING(dma_memferry, ARGUMENT_SOCKET "=<path of a service's socket>");
