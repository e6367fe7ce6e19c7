/* An engine process that copies with the CPU: the template for engines that have a device.
 *
 *   memferry-engine-example --socket PATH --name NAME [--shortest BYTES]
 *
 * The service must be configured with an engine of that name. Long copies and fills are done in pieces, so that progress is seen and an
 * early end is possible. SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <memferry_engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes between two looks at the request's cancel. */
#define PIECE ((uint64_t)1 << 20)
#define OPERATIONS                                                                                               \
    (MF_ENGINE_OPERATION_NOP | MF_ENGINE_OPERATION_COPY | MF_ENGINE_OPERATION_FILL |                              \
     MF_ENGINE_OPERATION_SCATTER_GATHER | MF_ENGINE_OPERATION_COMPARE)

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
        uint64_t piece = request->length - done < PIECE ? request->length - done : PIECE;
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
        uint64_t end = request->length - done < PIECE ? request->length : done + PIECE;
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

/* Each piece ends where a segment of either list ends. */
static uint64_t scatter_gather(mf_engine_process *engine, const mf_engine_request *request) {
    uint64_t done = 0;
    uint64_t source_at = 0, destination_at = 0;
    uint32_t source = 0, destination = 0;
    while (source < request->source_count && destination < request->destination_count) {
        const mf_engine_segment *from = &request->source_segments[source];
        const mf_engine_segment *to = &request->destination_segments[destination];
        uint64_t piece = from->length - source_at;
        if (piece > to->length - destination_at)
            piece = to->length - destination_at;
        memmove((uint8_t *)to->address + destination_at, (const uint8_t *)from->address + source_at, piece);
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
        if (done < request->length && should_end(engine, request, done, false))
            break;
    }
    return done;
}

static uint64_t first_difference(const mf_engine_request *request) {
    const uint8_t *one = request->source;
    const uint8_t *other = request->second;
    uint64_t at = 0;
    while (at < request->length && one[at] == other[at])
        at++;
    return at;
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
        value = first_difference(request);
        break;
    default:
        mf_engine_complete(engine, request->id, MF_ENGINE_STATUS_UNSUPPORTED, 0, 0);
        return;
    }
    uint32_t status = done == request->length ? MF_ENGINE_STATUS_DONE : MF_ENGINE_STATUS_CANCELLED;
    mf_engine_complete(engine, request->id, status, done, value);
}

/* Runs in the engine's process until the service or the keeper ends it. */
static int serve(mf_engine_process *engine, void *context) {
    (void)context;
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

int main(int count, char **arguments) {
    mf_engine_options options = MF_ENGINE_OPTIONS_INIT;
    options.operations = OPERATIONS;
    for (int at = 1; at + 1 < count; at += 2) {
        if (strcmp(arguments[at], "--socket") == 0)
            options.socket = arguments[at + 1];
        else if (strcmp(arguments[at], "--name") == 0)
            options.name = arguments[at + 1];
        else if (strcmp(arguments[at], "--shortest") == 0)
            options.shortest_bytes = strtoull(arguments[at + 1], NULL, 10);
        else
            options.socket = NULL, at = count;
    }
    if (count % 2 == 0 || !options.socket || !options.name) {
        fprintf(stderr, "usage: %s --socket PATH --name NAME [--shortest BYTES]\n", arguments[0]);
        return 2;
    }
    return mf_engine_run(&options, serve, NULL) == 0 ? 0 : 1;
}
