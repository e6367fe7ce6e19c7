/* Plain memory of the program as frames.
 *
 * A service behind a socket takes memfds, so memory that a program registers is moved: whole pages of it are copied into a memfd,
 * which takes their place at the same addresses. They stay there when the region is closed, so that registering them again costs
 * little. Memory that is not private and anonymous, and the parts of pages at both ends of a region, are not moved.
 *
 * A copy loses what another thread writes meanwhile: that is why only registered bytes are moved, and never the rest of a page.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../pages.h"
#include "provider.h"

#define MEMFD_NAME "memferry-fi"
#define MEMFD_PATH "/memfd:" MEMFD_NAME " (deleted)"
#define MOVE_BYTES 65536
/* Frames of closed regions that are kept. */
#define MOST_IDLE 64

struct token {
    struct token *next;
    uint64_t session;
    uint64_t value;
};

/* A frame, mapped at `start`. */
struct backing {
    struct link link;
    uintptr_t start;
    uintptr_t end;
    mf_frame frame;
    int descriptor;
    dev_t device;
    ino_t inode;
    /* Regions that need it. */
    unsigned holds;
    /* Bytes that were still mapped where they were, when memory was last looked at. */
    uintptr_t seen;
    struct token *tokens;
};

struct hold {
    struct link link;
    /* What the region registered. */
    uintptr_t start;
    uintptr_t end;
    size_t count;
    struct backing **backings;
};

/* One line of /proc/self/maps. */
struct area {
    uintptr_t start;
    uintptr_t end;
    uint64_t offset;
    dev_t device;
    ino_t inode;
    bool is_movable;
};

/* All backings by their addresses. */
static struct link backings = {&backings, &backings};
static struct link holds = {&holds, &holds};
static unsigned idle_count;

static struct backing *backing_at(uintptr_t address) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        if (address < backing->start)
            return NULL;
        if (address < backing->end)
            return backing;
    }
    return NULL;
}

/* Where the first backing above an address begins; `most` if that is lower. */
static uintptr_t next_backing(uintptr_t address, uintptr_t most) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        if (backing->start >= address)
            return backing->start < most ? backing->start : most;
    }
    return most;
}

static void forget_at_peers(uint64_t session, uint64_t token) {
    FOR_EACH(one, after, &process.all_domains) {
        struct domain *domain = CONTAINER(one, struct domain, link);

        FOR_EACH(two, after_two, &domain->endpoints) {
            struct endpoint *ep = CONTAINER(two, struct endpoint, link);

            FOR_EACH(three, after_three, &ep->connections) {
                struct connection *connection = CONTAINER(three, struct connection, link);
                struct record record = {.kind = RECORD_FORGET, .key = token};

                if (connection->session == session && !connection->is_dead && connection->is_outgoing)
                    wire_queue(connection, &record, NULL);
            }
        }
    }
}

static void backing_free(struct backing *backing) {
    while (backing->tokens) {
        struct token *token = backing->tokens;

        backing->tokens = token->next;
        forget_at_peers(token->session, token->value);
        free(token);
    }
    link_remove(&backing->link);
    /* Its grants end with it. */
    (void)mf_frame_free(backing->frame);
    close(backing->descriptor);
    free(backing);
}

/* ---- What is mapped ---- */

static bool parse_area(const char *line, struct area *area) {
    unsigned device_major, device_minor;
    uint64_t inode;
    char mode[5];
    int place = 0;

    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &area->start, &area->end, mode, &area->offset,
               &device_major, &device_minor, &inode, &place) < 7)
        return false;
    area->device = makedev(device_major, device_minor);
    area->inode = (ino_t)inode;
    if (strcmp(mode, "rw-p") == 0)
        area->is_movable = inode == 0 && (line[place] == 0 || line[place] == '\n' || strncmp(line + place, "[heap]", 6) == 0 ||
                                          strncmp(line + place, "[anon:", 6) == 0);
    else
        area->is_movable = strcmp(mode, "rw-s") == 0 && strncmp(line + place, MEMFD_PATH, strlen(MEMFD_PATH)) == 0;
    return true;
}

/* Counts the bytes of a backing that lie in the area as they should. */
static void look_for(const struct area *area) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);
        uintptr_t start = backing->start > area->start ? backing->start : area->start;
        uintptr_t end = backing->end < area->end ? backing->end : area->end;

        if (start < end && area->device == backing->device && area->inode == backing->inode &&
            area->offset + (start - area->start) == start - backing->start)
            backing->seen += end - start;
    }
}

/* Reads what is mapped: finds backings that are not there any more, and collects the areas of a range. */
static struct area *read_areas(uintptr_t from, uintptr_t to, size_t *count) {
    FILE *file = fopen("/proc/self/maps", "re");
    size_t capacity = 0;
    struct area *areas = NULL, area;
    char *line = NULL;
    size_t line_bytes = 0;

    *count = 0;
    if (!file)
        return NULL;
    FOR_EACH(item, following, &backings) { CONTAINER(item, struct backing, link)->seen = 0; }
    while (getline(&line, &line_bytes, file) > 0) {
        if (!parse_area(line, &area))
            continue;
        look_for(&area);
        if (area.end <= from || area.start >= to)
            continue;
        if (*count == capacity) {
            size_t larger = capacity ? 2 * capacity : 16;
            struct area *moved = realloc(areas, larger * sizeof(*areas));

            if (!moved)
                break;
            areas = moved;
            capacity = larger;
        }
        areas[(*count)++] = area;
    }
    free(line);
    fclose(file);
    return areas;
}

static void free_unmapped(void) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        if (backing->holds == 0 && backing->seen != backing->end - backing->start) {
            idle_count--;
            backing_free(backing);
        }
    }
}

/* ---- Moving ---- */

static int make_memfd(size_t length, void **mapped) {
    int descriptor = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (descriptor < 0)
        return -1;
    if (ftruncate(descriptor, (off_t)length) == 0 && allocate_pages(descriptor, length) == 0) {
        *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (*mapped != MAP_FAILED)
            return descriptor;
    }
    close(descriptor);
    return -1;
}

static void insert(struct backing *backing) {
    struct link *before = backings.next;

    while (before != &backings && CONTAINER(before, struct backing, link)->start < backing->start)
        before = before->next;
    link_append(before, &backing->link);
}

static struct backing *move(uintptr_t start, uintptr_t end) {
    size_t length = end - start;
    struct backing *backing = calloc(1, sizeof(*backing));
    struct stat state;
    void *mapped;

    if (!backing)
        return NULL;
    backing->descriptor = make_memfd(length, &mapped);
    if (backing->descriptor < 0) {
        free(backing);
        return NULL;
    }
    /* Before the old memory is touched: a refusal changes nothing. */
    if (fstat(backing->descriptor, &state) < 0 ||
        mf_frame_register(process.client, backing->descriptor, length, &backing->frame) != MF_ERROR_NONE) {
        WARN("%zu bytes at %p stay where they are: %s\n", length, (void *)start, mf_last_message());
        munmap(mapped, length);
        close(backing->descriptor);
        free(backing);
        return NULL;
    }
    memcpy(mapped, (const void *)start, length);
    if (mremap(mapped, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED) {
        munmap(mapped, length);
        (void)mf_frame_free(backing->frame);
        close(backing->descriptor);
        free(backing);
        return NULL;
    }
    backing->start = start;
    backing->end = end;
    backing->seen = length;
    backing->device = state.st_dev;
    backing->inode = state.st_ino;
    insert(backing);
    idle_count++;
    return backing;
}

/* Where the movable memory that begins at an address ends. */
static uintptr_t movable_end(uintptr_t address, uintptr_t most, const struct area *areas, size_t count) {
    for (size_t i = 0; i < count && address < most; i++) {
        if (areas[i].start <= address && address < areas[i].end && areas[i].is_movable)
            address = areas[i].end;
    }
    return address < most ? address : most;
}

/* Where the next area after an address begins. */
static uintptr_t next_area(uintptr_t address, uintptr_t most, const struct area *areas, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (areas[i].end > address) {
            uintptr_t next = areas[i].start > address ? areas[i].start : areas[i].end;

            return next < most ? next : most;
        }
    }
    return most;
}

/* MADV_DONTNEED no longer clears memory that was moved. jemalloc counts on that for calloc(), so nothing of its programs is moved
 * unless they ask. Its name is seen where it is a shared library, not where a program contains it. */
static size_t move_bytes(void) {
    size_t bytes = dlsym(RTLD_DEFAULT, "mallctl") ? 0 : MOVE_BYTES;

    (void)fi_param_get_size_t(&memferry_provider, "move", &bytes);
    return bytes;
}

static void add_backing(struct hold *hold, struct backing *backing) {
    struct backing **larger = realloc(hold->backings, (hold->count + 1) * sizeof(*larger));

    if (!larger)
        return;
    if (backing->holds++ == 0)
        idle_count--;
    if (hold->count == 0)
        link_append(&holds, &hold->link);
    hold->backings = larger;
    hold->backings[hold->count++] = backing;
}

struct hold *memory_hold(void *address, size_t length) {
    uintptr_t page = (uintptr_t)getpagesize(), least = move_bytes();
    uintptr_t first = ((uintptr_t)address + page - 1) & ~(page - 1), last = ((uintptr_t)address + length) & ~(page - 1);
    struct hold *hold = calloc(1, sizeof(*hold));
    struct area *areas;
    size_t count;

    if (!hold)
        return NULL;
    hold->start = (uintptr_t)address;
    hold->end = hold->start + length;
    link_init(&hold->link);
    if (least == 0 || (uintptr_t)address + length < length || last <= first || last - first < least)
        return hold;
    areas = read_areas(first, last, &count);
    free_unmapped();
    for (uintptr_t at = first; areas && at < last;) {
        struct backing *backing = backing_at(at);
        uintptr_t end;

        if (!backing) {
            end = movable_end(at, next_backing(at, last), areas, count);
            if (end - at >= least || (end > at && end - at == last - first))
                backing = move(at, end);
            if (!backing && end > at) {
                at = end;
                continue;
            }
        }
        /* Where the program unmapped a part of a frame that is still in use, its bytes are no frame's. */
        if (backing && backing->seen == backing->end - backing->start)
            add_backing(hold, backing);
        at = backing ? backing->end : next_area(at, next_backing(at, last), areas, count);
    }
    free(areas);
    return hold;
}

static void free_oldest_idle(void) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        if (backing->holds == 0) {
            idle_count--;
            backing_free(backing);
            return;
        }
    }
}

void memory_release(struct hold *hold) {
    if (!hold)
        return;
    for (size_t i = 0; i < hold->count; i++) {
        if (--hold->backings[i]->holds == 0)
            idle_count++;
    }
    link_remove(&hold->link);
    free(hold->backings);
    free(hold);
    while (idle_count > MOST_IDLE)
        free_oldest_idle();
}

void memory_close(void) {
    FOR_EACH(item, following, &backings) { backing_free(CONTAINER(item, struct backing, link)); }
    idle_count = 0;
}

void memory_abandon(void) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        while (backing->tokens) {
            struct token *token = backing->tokens;

            backing->tokens = token->next;
            free(token);
        }
        link_remove(item);
        close(backing->descriptor);
        free(backing);
    }
    link_init(&holds);
    idle_count = 0;
}

/* Only registered bytes are sure to be mapped from a frame that is larger: the program may have unmapped the rest. */
bool memory_find(const void *address, size_t length, mf_range *range) {
    uintptr_t start = (uintptr_t)address, most = start + length, end = start, next = most;
    const struct backing *found = NULL;

    FOR_EACH(item, following, &holds) {
        const struct hold *hold = CONTAINER(item, struct hold, link);

        for (size_t i = 0; i < hold->count; i++) {
            const struct backing *backing = hold->backings[i];
            uintptr_t from = backing->start > hold->start ? backing->start : hold->start;
            uintptr_t to = backing->end < hold->end ? backing->end : hold->end;

            if (from <= start && end < to) {
                found = backing;
                end = to;
            } else if (start < from && from < next) {
                next = from;
            }
        }
    }
    if (!found) {
        range->length = next - start;
        return false;
    }
    *range = mf_part(found->frame, start - found->start, (end < most ? end : most) - start);
    return true;
}

/* ---- Tokens ---- */

uint64_t memory_token(const mf_range *range, uint64_t session, uint64_t *offset) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);
        struct token *token;
        mf_grant_token made;

        if (backing->frame.id != range->frame.id)
            continue;
        *offset = range->offset;
        for (token = backing->tokens; token; token = token->next) {
            if (token->session == session)
                return token->value;
        }
        token = malloc(sizeof(*token));
        if (!token)
            return 0;
        if (mf_grant_session(mf_all(backing->frame), MF_RIGHTS_READ, session, &made) != MF_ERROR_NONE) {
            free(token);
            return 0;
        }
        *token = (struct token){backing->tokens, session, made.value};
        backing->tokens = token;
        return made.value;
    }
    return 0;
}

void memory_revoke(uint64_t token) {
    if (mf_revoke(process.client, (mf_grant_token){token}) != MF_ERROR_NONE)
        WARN("memory may still be used by a peer: %s\n", mf_last_message());
}

void memory_forget_session(uint64_t session) {
    FOR_EACH(item, following, &backings) {
        struct backing *backing = CONTAINER(item, struct backing, link);

        for (struct token **place = &backing->tokens; *place;) {
            struct token *token = *place;

            if (token->session != session) {
                place = &token->next;
                continue;
            }
            *place = token->next;
            memory_revoke(token->value);
            free(token);
        }
    }
}
