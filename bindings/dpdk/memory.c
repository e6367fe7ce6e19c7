/* DPDK's memory as frames; see memory.h.
 *
 * The service in this process takes memory where it is: nothing is copied, moved or sealed, so secondary processes go on.
 *
 * A service behind a socket takes memfds, whose size it seals. DPDK makes its own memfds such that nobody can seal them, so their
 * content is moved into new ones, which take the place of the old mappings at the same addresses. That is invisible to this
 * process; a process that maps the old file would see other memory than this one from then on. Therefore memory of files that
 * still have a name is refused: secondary processes open those.
 *
 * Memory events come under EAL's memory lock: nothing here may call DPDK's allocator, nor any function that takes that lock.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "memory.h"

#include "../pages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_common.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_memory.h>
#include <rte_rwlock.h>

#define EVENT_NAME "memferry"
/* memfd_create(2): the logarithm of the size of huge pages is above this bit. */
#define HUGE_SHIFT 26

/* A frame, and how many of its bytes DPDK still has. */
struct backing {
    mf_frame frame;
    size_t live;
    /* The memfd, or -1 for lent memory. */
    int descriptor;
};

/* Addresses of one frame. */
struct region {
    uint64_t start;
    uint64_t end;
    /* Of `start` in the frame. */
    uint64_t offset;
    struct backing *backing;
};

static struct {
    /* Held by whoever opens, closes, adds or removes. */
    pthread_mutex_t changes;
    /* Held by lookups, and for the moment in which the table changes. */
    rte_rwlock_t table;
    unsigned devices;
    mf_client client;
    char *socket;
    int has_events;
    struct region *regions;
    unsigned count;
    unsigned capacity;
} memory = {.changes = PTHREAD_MUTEX_INITIALIZER, .table = RTE_RWLOCK_INITIALIZER};

mf_client memory_client(void) { return memory.client; }

int memory_is_embedded(void) { return memory.socket == NULL; }

void memory_enter(void) { rte_rwlock_read_lock(&memory.table); }

void memory_leave(void) { rte_rwlock_read_unlock(&memory.table); }

/* The first region that ends above the address. */
static unsigned first_above(uint64_t address) {
    unsigned low = 0, high = memory.count;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;

        if (memory.regions[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int memory_find(uint64_t address, uint64_t length, mf_range *ranges, int most, unsigned *hint) {
    unsigned at = *hint;
    int found = 0;

    if (at >= memory.count || memory.regions[at].start > address || memory.regions[at].end <= address)
        at = first_above(address);
    *hint = at;
    while (length > 0) {
        const struct region *region;
        uint64_t part;

        if (at >= memory.count || memory.regions[at].start > address)
            return 0;
        if (found == most)
            return MEMORY_TOO_MANY;
        region = &memory.regions[at];
        part = RTE_MIN(region->end - address, length);
        ranges[found++] = mf_part(region->backing->frame, region->offset + (address - region->start), part);
        address += part;
        length -= part;
        at++;
    }
    return found;
}

/* Makes room for two more regions: one that is added, one that is split. */
static int reserve(void) {
    struct region *larger;
    unsigned capacity = memory.capacity ? 2 * memory.capacity : 16;

    if (memory.count + 2 <= memory.capacity)
        return 0;
    larger = malloc(capacity * sizeof(*larger));
    if (!larger)
        return -ENOMEM;
    rte_rwlock_write_lock(&memory.table);
    if (memory.count > 0)
        memcpy(larger, memory.regions, memory.count * sizeof(*larger));
    struct region *smaller = memory.regions;
    memory.regions = larger;
    memory.capacity = capacity;
    rte_rwlock_write_unlock(&memory.table);
    free(smaller);
    return 0;
}

static void insert(struct region region) {
    unsigned at;

    rte_rwlock_write_lock(&memory.table);
    at = first_above(region.start);
    memmove(&memory.regions[at + 1], &memory.regions[at], (memory.count - at) * sizeof(region));
    memory.regions[at] = region;
    memory.count++;
    rte_rwlock_write_unlock(&memory.table);
}

static int overlaps(uint64_t start, uint64_t end) {
    unsigned at = first_above(start);

    return at < memory.count && memory.regions[at].start < end;
}

static void release(struct backing *backing) {
    mf_error error = mf_frame_free(backing->frame);

    if (error != MF_ERROR_NONE)
        SAY(WARNING, "freeing a frame: %s", mf_last_message());
    if (backing->descriptor >= 0)
        close(backing->descriptor);
    free(backing);
}

/* Takes the bytes in start..end from one region. Gives its frame when no byte of it is left. */
static struct backing *cut(unsigned at, uint64_t start, uint64_t end) {
    struct region *region = &memory.regions[at];
    struct backing *backing = region->backing;
    uint64_t from = RTE_MAX(start, region->start), to = RTE_MIN(end, region->end);
    struct region behind = {to, region->end, region->offset + (to - region->start), backing};

    backing->live -= to - from;
    region->end = from;
    if (behind.start < behind.end) {
        memmove(&memory.regions[at + 2], &memory.regions[at + 1], (memory.count - at - 1) * sizeof(behind));
        memory.regions[at + 1] = behind;
        memory.count++;
    }
    if (memory.regions[at].start == memory.regions[at].end) {
        memory.count--;
        memmove(&memory.regions[at], &memory.regions[at + 1], (memory.count - at) * sizeof(behind));
    }
    return backing->live == 0 ? backing : NULL;
}

/* Takes start..end out of the table. A frame stays until no byte of it is left: parts of it cannot be given back. */
static int removed(uint64_t start, uint64_t end) {
    int some = 0;

    while (overlaps(start, end)) {
        struct backing *unused;

        if (reserve() < 0) {
            SAY(ERR, "no memory to forget %zu bytes of DPDK's", (size_t)(end - start));
            break;
        }
        rte_rwlock_write_lock(&memory.table);
        unused = cut(first_above(start), start, end);
        rte_rwlock_write_unlock(&memory.table);
        if (unused)
            release(unused);
        some = 1;
    }
    return some;
}

static int add(void *address, size_t length, mf_frame frame, int descriptor) {
    struct backing *backing = malloc(sizeof(*backing));
    uint64_t start = (uintptr_t)address;

    if (!backing || reserve() < 0) {
        free(backing);
        (void)mf_frame_free(frame);
        return -ENOMEM;
    }
    *backing = (struct backing){frame, length, descriptor};
    insert((struct region){start, start + length, 0, backing});
    return 0;
}

static int lend(void *address, size_t length) {
    mf_frame frame;

    if (mf_frame_lend(memory.client, address, length, 0, &frame) != MF_ERROR_NONE) {
        SAY(ERR, "%zu bytes at %p cannot be a frame: %s", length, address, mf_last_message());
        return -EIO;
    }
    return add(address, length, frame, -1);
}

/* The one file that all these segments are in, from `offset` on; -1 if there are several or none. */
static int file_of(const struct rte_memseg *first, size_t length, size_t *offset) {
    const struct rte_memseg *last = first + (length / first->len - 1);
    int descriptor = rte_memseg_get_fd_thread_unsafe(first);
    size_t at_end;

    if (descriptor < 0 || rte_memseg_get_fd_thread_unsafe(last) != descriptor)
        return -1;
    if (rte_memseg_get_fd_offset_thread_unsafe(first, offset) < 0 ||
        rte_memseg_get_fd_offset_thread_unsafe(last, &at_end) < 0)
        return -1;
    return at_end + last->len - *offset == length ? descriptor : -1;
}

/* Why memory cannot be moved, or null. */
static const char *obstacle(const struct rte_memseg *first, size_t length, size_t page) {
    const struct rte_memseg *segment = first;
    size_t offset;
    struct stat state;

    for (size_t done = 0; done < length; done += segment++->len) {
        int descriptor = rte_memseg_get_fd_thread_unsafe(segment);

        if (descriptor < 0)
            continue;
        if (fstat(descriptor, &state) < 0)
            return strerror(errno);
        if (state.st_nlink > 0)
            return "secondary processes can open its files: start with --in-memory or --no-huge, or leave out socket=";
        if (page <= (size_t)getpagesize())
            return NULL; /* one file for all */
        if (rte_memseg_get_fd_offset_thread_unsafe(segment, &offset) < 0 || offset > 0 || (size_t)state.st_size > page)
            return "it is in few large files: start without --single-file-segments, or leave out socket=";
    }
    return NULL;
}

/* Copies what there is. Of a file with holes only the rest: the holes are zero on both sides. */
static void copy_content(char *to, const char *from, size_t length, int file, size_t offset) {
    off_t at = offset, end = offset + length;

    if (file < 0 || lseek(file, at, SEEK_DATA) < 0) {
        if (file < 0 || errno != ENXIO)
            memcpy(to, from, length);
        return;
    }
    while ((at = lseek(file, at, SEEK_DATA)) >= 0 && at < end) {
        off_t hole = lseek(file, at, SEEK_HOLE);

        if (hole < 0 || hole > end)
            hole = end;
        memcpy(to + (at - offset), from + (at - offset), hole - at);
        at = hole;
    }
}

/* DPDK keeps descriptors of its memory, which other parts of it pass to other processes. They must not name the old memory: where
 * the new one has the same layout it takes their place, else a descriptor that nobody can map. */
static void replace_files(const struct rte_memseg *first, size_t length, int file, size_t offset, int descriptor) {
    const struct rte_memseg *segment = first;
    struct stat state;
    int nothing;

    if (file >= 0 && offset == 0 && fstat(file, &state) == 0 && (size_t)state.st_size == length) {
        if (dup3(descriptor, file, O_CLOEXEC) < 0)
            SAY(WARNING, "DPDK keeps a descriptor of memory that it does not use any more: %s", strerror(errno));
        return;
    }
    nothing = open("/", O_PATH | O_CLOEXEC);
    for (size_t done = 0; done < length; done += segment++->len) {
        int old = rte_memseg_get_fd_thread_unsafe(segment);

        if (old >= 0 && (nothing < 0 || dup3(nothing, old, O_CLOEXEC) < 0))
            SAY(WARNING, "DPDK keeps a descriptor of memory that it does not use any more: %s", strerror(errno));
    }
    if (nothing >= 0)
        close(nothing);
}

/* Makes a memfd of that size, allocated, and maps it. */
static int make_memory(size_t length, size_t page, void **mapped) {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int descriptor;

    if (page > (size_t)getpagesize())
        flags |= MFD_HUGETLB | (unsigned)__builtin_ctzll(page) << HUGE_SHIFT;
    descriptor = memfd_create("memferry-dpdk", flags);
    if (descriptor < 0)
        return -1;
    if (ftruncate(descriptor, length) == 0 && allocate_pages(descriptor, length) == 0) {
        *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (*mapped != MAP_FAILED)
            return descriptor;
    }
    int error = errno;
    close(descriptor);
    errno = error;
    return -1;
}

/* Moves memory into a frame at the same addresses. */
static int move(const struct rte_memseg *first, void *address, size_t length, size_t page) {
    const char *reason = obstacle(first, length, page);
    size_t offset = 0;
    int file, descriptor;
    void *mapped;
    mf_frame frame;

    if (reason) {
        SAY(ERR, "%zu bytes at %p cannot be a frame: %s", length, address, reason);
        return -ENOTSUP;
    }
    file = file_of(first, length, &offset);
    descriptor = make_memory(length, page, &mapped);
    if (descriptor < 0) {
        SAY(ERR, "no memory for %zu bytes in pages of %zu: %s", length, page, strerror(errno));
        return -errno;
    }
    /* Before the old memory is touched: a refusal changes nothing. Its seals forbid further writable mappings, not this one. */
    if (mf_frame_register(memory.client, descriptor, length, &frame) != MF_ERROR_NONE) {
        SAY(ERR, "%zu bytes at %p cannot be a frame: %s", length, address, mf_last_message());
        munmap(mapped, length);
        close(descriptor);
        return -EIO;
    }
    copy_content(mapped, address, length, file, offset);
    if (mremap(mapped, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
        int error = errno;

        SAY(ERR, "cannot map %zu bytes at %p: %s (huge pages need Linux 5.16)", length, address, strerror(error));
        munmap(mapped, length);
        (void)mf_frame_free(frame);
        close(descriptor);
        return -error;
    }
    replace_files(first, length, file, offset, descriptor);
    int status = add(address, length, frame, descriptor);
    if (status < 0)
        close(descriptor);
    return status;
}

static int take(const struct rte_memseg_list *list, const struct rte_memseg *first, void *address, size_t length) {
    uint64_t start = (uintptr_t)address;

    if (list->external || overlaps(start, start + length))
        return 0;
    return memory_is_embedded() ? lend(address, length) : move(first, address, length, list->page_sz);
}

static int take_walked(const struct rte_memseg_list *list, const struct rte_memseg *first, size_t length, void *argument) {
    int status;

    RTE_SET_USED(argument);
    pthread_mutex_lock(&memory.changes);
    status = take(list, first, first->addr, length);
    pthread_mutex_unlock(&memory.changes);
    return status;
}

static void on_event(enum rte_mem_event event, const void *address, size_t length, void *argument) {
    const struct rte_memseg_list *list = rte_mem_virt2memseg_list(address);
    uint64_t start = (uintptr_t)address;

    RTE_SET_USED(argument);
    pthread_mutex_lock(&memory.changes);
    if (event == RTE_MEM_EVENT_FREE)
        removed(start, start + length);
    else if (list && memory.devices > 0)
        /* A failure is said; operations on that memory then end with an error. */
        (void)take(list, rte_mem_virt2memseg(address, list), (void *)(uintptr_t)address, length);
    pthread_mutex_unlock(&memory.changes);
}

int memory_map(void *address, size_t length) {
    uint64_t start = (uintptr_t)address;
    int status;

    pthread_mutex_lock(&memory.changes);
    if (!memory_is_embedded()) {
        SAY(ERR, "memory of the program itself cannot be mapped with socket=: allocate it from DPDK");
        status = -ENOTSUP;
    } else if (length == 0 || start + length < start) {
        status = -EINVAL;
    } else if (overlaps(start, start + length)) {
        status = -EEXIST;
    } else {
        status = lend(address, length);
    }
    pthread_mutex_unlock(&memory.changes);
    return status;
}

int memory_unmap(void *address, size_t length) {
    uint64_t start = (uintptr_t)address;
    int some;

    pthread_mutex_lock(&memory.changes);
    some = removed(start, start + length);
    pthread_mutex_unlock(&memory.changes);
    return some ? 0 : -ENOENT;
}

/* Starts the service of this process. Its threads inherit the CPUs of this one, which EAL has pinned to one that will poll: they
 * take those that no lcore has, or all. */
static mf_error embed(mf_client *client) {
    cpu_set_t mine, all, others;
    unsigned lcore;
    mf_error error;

    CPU_ZERO(&all);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF) && cpu < CPU_SETSIZE; cpu++)
        CPU_SET(cpu, &all);
    others = all;
    RTE_LCORE_FOREACH(lcore) { CPU_CLR(rte_lcore_to_cpu_id(lcore), &others); }
    if (pthread_getaffinity_np(pthread_self(), sizeof(mine), &mine) != 0)
        return mf_embed(client);
    /* CPUs that are offline or forbidden are ignored, unless no other is left. */
    if (CPU_COUNT(&others) == 0 || pthread_setaffinity_np(pthread_self(), sizeof(others), &others) != 0)
        (void)pthread_setaffinity_np(pthread_self(), sizeof(all), &all);
    error = mf_embed(client);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(mine), &mine);
    return error;
}

/* Memory is moved by a copy, which would lose what another thread writes meanwhile. */
static int is_quiet(void) {
    unsigned lcore;

    RTE_LCORE_FOREACH_WORKER(lcore) {
        if (rte_eal_get_lcore_state(lcore) != WAIT)
            return 0;
    }
    return 1;
}

static void forget_all(void) {
    if (memory.has_events)
        rte_mem_event_callback_unregister(EVENT_NAME, NULL);
    memory.has_events = 0;
    pthread_mutex_lock(&memory.changes);
    removed(0, UINT64_MAX);
    free(memory.regions);
    memory.regions = NULL;
    memory.capacity = 0;
    memory.devices = 0;
    (void)mf_disconnect(memory.client);
    free(memory.socket);
    memory.socket = NULL;
    pthread_mutex_unlock(&memory.changes);
}

static int open_session(const char *socket) {
    mf_error error;

    memory.socket = socket ? strdup(socket) : NULL;
    if (socket && !memory.socket)
        return -ENOMEM;
    if (mf_check_version(MF_VERSION) != MF_ERROR_NONE) {
        SAY(ERR, "%s", mf_last_message());
        return -EPROTO;
    }
    error = socket ? mf_connect(socket, &memory.client) : embed(&memory.client);
    if (error == MF_ERROR_NONE)
        return 0;
    SAY(ERR, "no session with %s: %s", socket ? socket : "the service in this process", mf_last_message());
    free(memory.socket);
    memory.socket = NULL;
    return error == MF_ERROR_NO_SERVICE ? -ENOENT : -EIO;
}

int memory_open(const char *socket) {
    int status = 0;

    if (memory.devices > 0) {
        if ((socket == NULL) != memory_is_embedded() || (socket && strcmp(socket, memory.socket) != 0)) {
            SAY(ERR, "all memferry devices of a process share one service: give them the same socket=");
            return -EINVAL;
        }
        memory.devices++;
        return 0;
    }
    if (socket && !is_quiet()) {
        SAY(ERR, "DPDK's memory is moved while no lcore works: attach the device before they start, or without socket=");
        return -EBUSY;
    }
    status = open_session(socket);
    if (status < 0)
        return status;
    memory.devices = 1;
    /* Before the walk, so that no memory is missed. Where memory never changes there are no events. */
    if (rte_mem_event_callback_register(EVENT_NAME, on_event, NULL) == 0)
        memory.has_events = 1;
    else if (rte_errno != ENOTSUP)
        status = -rte_errno;
    if (status == 0)
        status = rte_memseg_contig_walk(take_walked, NULL);
    if (status < 0)
        forget_all();
    return status < 0 ? status : 0;
}

void memory_close(void) {
    if (memory.devices > 1)
        memory.devices--;
    else if (memory.devices == 1)
        forget_all();
}
