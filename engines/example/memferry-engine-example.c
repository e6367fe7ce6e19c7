/* An engine process that copies with the CPU: the template for engines that have a device.
 *
 *   memferry-engine-example --socket PATH --name NAME [--shortest BYTES] [--memory BYTES]
 *
 * With --memory, clients can have frames in memory that only this process reaches, as a GPU has it; here each is a memfd, which its
 * owner can also map. The service must be configured with an engine of that name. Requests are done in pieces: progress keeps a long one from being taken
 * for stalled, and an early end is possible. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE 1 /* memfd_create, F_ADD_SEALS */
#include <errno.h>
#include <fcntl.h>
#include <memferry_engine.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes between two looks at the request's cancel. */
#define PIECE ((uint64_t)1 << 20)
#define OPERATIONS                                                                                               \
    (MF_ENGINE_OPERATION_NOP | MF_ENGINE_OPERATION_COPY | MF_ENGINE_OPERATION_FILL |                              \
     MF_ENGINE_OPERATION_SCATTER_GATHER | MF_ENGINE_OPERATION_COMPARE)

static uint64_t smaller(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

/* Reports progress. Returns whether the request should end. */
static bool should_end(mf_engine_process *engine, const mf_engine_request *request, uint64_t done, bool downward) {
    mf_engine_progress(engine, request->id, done, downward);
    return mf_engine_is_cancelled(engine, request->id) == 1;
}

/* Returns the number of bytes that were copied before the end or a cancel. */
static uint64_t copy(mf_engine_process *engine, const mf_engine_request *request) {
    uint8_t *to = request->destination;
    const uint8_t *from = request->source;
    /* As with memmove: a destination above the source is written from its end. */
    bool downward = (uintptr_t)to - (uintptr_t)from < request->length;
    uint64_t done = 0;
    while (done < request->length) {
        uint64_t piece = smaller(request->length - done, PIECE);
        uint64_t at = downward ? request->length - done - piece : done;
        memmove(to + at, from + at, piece);
        done += piece;
        if (done < request->length && should_end(engine, request, done, downward))
            break;
    }
    return done;
}

static uint64_t fill(mf_engine_process *engine, const mf_engine_request *request) {
    uint8_t *to = request->destination;
    uint64_t done = 0;
    while (done < request->length) {
        /* A piece holds whole patterns, and so does the length. */
        uint64_t end = done + smaller(request->length - done, PIECE);
        if (request->pattern_bytes == 1) {
            memset(to + done, request->pattern[0], end - done);
        } else {
            for (uint64_t at = done; at < end; at++)
                to[at] = request->pattern[at % 4];
        }
        done = end;
        if (done < request->length && should_end(engine, request, done, false))
            break;
    }
    return done;
}

/* Each piece ends where a segment of either list ends, or before, unless it writes what it reads, which own memory allows. */
static uint64_t scatter_gather(mf_engine_process *engine, const mf_engine_request *request) {
    uint64_t done = 0, reported = 0;
    uint64_t source_at = 0, destination_at = 0;
    uint32_t source = 0, destination = 0;
    while (source < request->source_count && destination < request->destination_count) {
        const mf_engine_segment *from = &request->source_segments[source];
        const mf_engine_segment *to = &request->destination_segments[destination];
        uint64_t piece = smaller(from->length - source_at, to->length - destination_at);
        uint8_t *write = (uint8_t *)to->address + destination_at;
        const uint8_t *read = (const uint8_t *)from->address + source_at;
        bool is_apart = (uintptr_t)write - (uintptr_t)read >= piece && (uintptr_t)read - (uintptr_t)write >= piece;
        if (is_apart)
            piece = smaller(piece, PIECE);
        memmove(write, read, piece);
        done += piece;
        source_at += piece;
        destination_at += piece;
        if (source_at == from->length) {
            source++;
            source_at = 0;
        }
        if (destination_at == to->length) {
            destination++;
            destination_at = 0;
        }
        /* Many short segments need no report each. */
        if (done - reported >= PIECE && done < request->length) {
            reported = done;
            if (should_end(engine, request, done, false))
                break;
        }
    }
    return done;
}

/* Sets `difference` to the offset of the first difference, or to the length. A comparison that finds one is done as a whole. */
static uint64_t compare(mf_engine_process *engine, const mf_engine_request *request, uint64_t *difference) {
    const uint8_t *one = request->source;
    const uint8_t *other = request->second;
    uint64_t done = 0;
    *difference = request->length;
    while (done < request->length) {
        uint64_t piece = smaller(request->length - done, PIECE);
        if (memcmp(one + done, other + done, piece) != 0) {
            uint64_t at = done;
            /* Memory that its owner changes meanwhile may be equal now. */
            while (at < done + piece && one[at] == other[at])
                at++;
            if (at < done + piece) {
                *difference = at;
                return request->length;
            }
        }
        done += piece;
        if (done < request->length && should_end(engine, request, done, false))
            break;
    }
    return done;
}

/* Carries out one request. */
static void perform(mf_engine_process *engine, const mf_engine_request *request) {
    uint64_t done = request->length;
    uint64_t value = 0;
    switch (request->operation) {
    case MF_ENGINE_OPERATION_NOP:
        break;
    case MF_ENGINE_OPERATION_COPY:
        done = copy(engine, request);
        break;
    case MF_ENGINE_OPERATION_FILL:
        done = fill(engine, request);
        break;
    case MF_ENGINE_OPERATION_SCATTER_GATHER:
        done = scatter_gather(engine, request);
        break;
    case MF_ENGINE_OPERATION_COMPARE:
        done = compare(engine, request, &value);
        break;
    default:
        mf_engine_complete(engine, request->id, MF_ENGINE_STATUS_UNSUPPORTED, 0, 0);
        return;
    }
    uint32_t status = done == request->length ? MF_ENGINE_STATUS_DONE : MF_ENGINE_STATUS_CANCELLED;
    mf_engine_complete(engine, request->id, status, done, status == MF_ENGINE_STATUS_DONE ? value : 0);
}

/* A frame in memory of this process. The list belongs to the thread on which the library calls. */
struct own {
    uint64_t frame;
    uint64_t length;
    void *bytes;
    int memfd;
    struct own *next;
};

static void discard(struct own *own) {
    if (own->bytes != MAP_FAILED)
        munmap(own->bytes, own->length);
    if (own->memfd >= 0)
        close(own->memfd);
    free(own);
}

/* A new memfd has zeros. Its pages are taken now, so that none is missing later, and it cannot shrink: its owner may map it. */
static void *allocate(void *list, uint64_t frame, uint64_t length) {
    struct own **first = list;
    struct own *own = malloc(sizeof *own);
    if (!own)
        return NULL;
    *own = (struct own){frame, length, MAP_FAILED, memfd_create("memferry-own", MFD_CLOEXEC | MFD_ALLOW_SEALING), *first};
    int error;
    do
        error = posix_fallocate(own->memfd, 0, (off_t)length);
    while (error == EINTR);
    if (error == 0 && fcntl(own->memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
        own->bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, own->memfd, 0);
    if (own->bytes == MAP_FAILED) {
        discard(own);
        return NULL;
    }
    *first = own;
    return own->bytes;
}

/* Is called for frames of clients, too. */
static void release(void *list, uint64_t frame, void *base, uint64_t length, bool is_writable) {
    (void)base, (void)length, (void)is_writable;
    for (struct own **at = list; *at; at = &(*at)->next) {
        if ((*at)->frame == frame) {
            struct own *own = *at;
            *at = own->next;
            discard(own);
            return;
        }
    }
}

/* Gives a frame's memory to its owner. Each frame has a memfd of its own, so the descriptor leads to no other. */
static int export_frame(void *list, uint64_t frame, mf_engine_exported *exported) {
    struct own *own = *(struct own **)list;
    while (own && own->frame != frame)
        own = own->next;
    if (!own)
        return -1;
    exported->descriptor = fcntl(own->memfd, F_DUPFD_CLOEXEC, 0);
    exported->kind = MF_ENGINE_EXPORT_KIND_MEMORY;
    exported->length = own->length;
    return exported->descriptor < 0;
}

/* Runs in the engine's process until the service or the keeper ends it. */
static int serve(mf_engine_process *engine, void *context) {
    int watched = mf_engine_watch_frames(engine, NULL, release, allocate, export_frame, context);
    if (watched < 0)
        return watched;
    for (;;) {
        mf_engine_request request;
        int got = mf_engine_next(engine, &request, -1);
        if (got < 0)
            return got;
        if (got == 1)
            perform(engine, &request);
        else
            mf_engine_take_cancels(engine);
    }
}

/* Reads a number of bytes. Returns whether the text is one; the library refuses one that is too large. */
static bool is_number(const char *text, uint64_t *number) {
    *number = strtoull(text, NULL, 10);
    return *text != 0 && text[strspn(text, "0123456789")] == 0;
}

int main(int count, char **arguments) {
    mf_engine_options options = MF_ENGINE_OPTIONS_INIT;
    struct own *list = NULL;
    options.operations = OPERATIONS;
    bool is_valid = count % 2 == 1;
    for (int at = 1; at + 1 < count; at += 2) {
        if (strcmp(arguments[at], "--socket") == 0)
            options.socket = arguments[at + 1];
        else if (strcmp(arguments[at], "--name") == 0)
            options.name = arguments[at + 1];
        else if (strcmp(arguments[at], "--shortest") == 0)
            is_valid &= is_number(arguments[at + 1], &options.shortest_bytes);
        else if (strcmp(arguments[at], "--memory") == 0)
            is_valid &= is_number(arguments[at + 1], &options.memory_bytes);
        else
            is_valid = false;
    }
    if (!is_valid || !options.socket || !options.name) {
        fprintf(stderr, "usage: %s --socket PATH --name NAME [--shortest BYTES] [--memory BYTES]\n", arguments[0]);
        return 2;
    }
    return mf_engine_run(&options, serve, &list) == 0 ? 0 : 1;
}
