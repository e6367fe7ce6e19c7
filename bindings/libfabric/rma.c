/* Reads and writes of peers' memory, and all copies by the engine.
 *
 *     OPEN key ──► owner: pieces, granted to this session ──► OPENED      once for each peer and key; the owner must be polling
 *     then the engine copies between frames, and the owner has nothing to do
 *
 * Bytes of the owner that are in no frame go through the ring, moved by it. Local bytes that are in no frame go through a slot.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "provider.h"

#define MOST_PIECES 256
/* Of one request to the engine. */
#define MOST_PART (64 << 20)
/* So many times an owner is asked again when rights are gone, for one operation. It may have closed a region long before, and again. */
#define MOST_REOPENINGS 8
/* How long a closed endpoint waits for cancelled requests, and between two looks. */
#define SETTLE_MS 2000
#define NAP_NANOSECONDS 50000
#define RMA_FLAGS                                                                                                              \
    (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA | FI_MORE)

struct wire_piece {
    /* 0 for bytes that their owner moves. */
    uint64_t token;
    uint64_t length;
};

/* A region of a peer. */
struct remote {
    struct link link;
    struct connection *connection;
    uint64_t key;
    bool is_open;
    uint64_t access;
    uint64_t base;
    uint64_t length;
    struct piece *pieces;
    size_t piece_count;
    /* Operations that wait until it is open. */
    struct link waiting;
};

/* What a region has granted to a session. */
struct granted {
    struct link link;
    uint64_t session;
    size_t count;
    struct wire_piece pieces[];
};

/* A request to the engine. */
struct transfer {
    struct link link;
    struct op *op;
    mf_ticket ticket;
    /* The slot, or -1; where its bytes go if the operation reads. */
    int slot;
    uint8_t *local;
    size_t length;
};

/* ---- Ends ---- */

static int error_of(mf_error error) {
    switch (error) {
    case MF_ERROR_UNKNOWN_HANDLE:
    case MF_ERROR_STALE_HANDLE:
    case MF_ERROR_REVOKED:
    case MF_ERROR_EXPIRED:
    case MF_ERROR_CANCELLED:
    case MF_ERROR_BAD_HANDLE:
        return FI_EKEYREJECTED;
    case MF_ERROR_MISSING_RIGHT:
        return FI_EACCES;
    case MF_ERROR_MEMORY_FAULT:
        return FI_EFAULT;
    default:
        return FI_EIO;
    }
}

static void open_remote(struct op *op);

/* All parts of an operation have ended. */
static void settle(struct op *op) {
    struct connection *connection = op->connection;

    /* It may still wait for a slot. */
    link_remove(&op->waiting);
    if (op->kind == OP_RECEIVE) {
        message_ended(op);
        return;
    }
    if (op->error == FI_EKEYREJECTED && op->reopenings < MOST_REOPENINGS && !connection->is_dead && op->remote == NULL) {
        /* The owner closed the region, and may have another one with that key. */
        op->reopenings++;
        op->pieces = NULL;
        op->piece_count = 0;
        op->error = 0;
        op->provider_error = 0;
        op->position = 0;
        open_remote(op);
        return;
    }
    struct record record = {.kind = RECORD_IMMEDIATE, .data = op->data, .total = op->total};
    bool has_data = !op->error && op->has_data;

    /* In this order: a connection that breaks meanwhile ends the operations that it still has. */
    op_end(op, op->error, op->provider_error);
    if (has_data)
        wire_queue(connection, &record, NULL);
}

static void settle_if_done(struct op *op) {
    /* What the owner still sends for a cancelled one is for nobody. */
    bool is_done = op->pending == 0 && (op->staged == 0 || op->error == FI_ECANCELED);

    if (is_done && (op->error || op->position == op->limit))
        settle(op);
}

void rma_fail(struct op *op, int error, int provider_error) {
    link_remove(&op->waiting);
    op->reopenings = MOST_REOPENINGS;
    op->staged = 0;
    op->error = error;
    op->provider_error = provider_error;
    /* Transfers under way still use its memory. */
    if (op->pending == 0)
        op_end(op, op->error, op->provider_error);
}

/* ---- Copies by the engine ---- */

static int take_slot(void) {
    int slot = process.free_slots ? __builtin_ctz(process.free_slots) : -1;

    if (slot >= 0)
        process.free_slots &= ~(1u << slot);
    return slot;
}

static void free_transfer(struct transfer *transfer) {
    link_remove(&transfer->link);
    process.transfer_count--;
    if (transfer->slot >= 0)
        process.free_slots |= 1u << transfer->slot;
    free(transfer);
}

/* Where a place of an operation is in this process, and how many bytes are there. */
static uint8_t *local_place(const struct op *op, size_t place, size_t *length) {
    for (unsigned i = 0; i < op->iov_count; i++) {
        if (place < op->iov[i].iov_len) {
            if (*length > op->iov[i].iov_len - place)
                *length = op->iov[i].iov_len - place;
            return (uint8_t *)op->iov[i].iov_base + place;
        }
        place -= op->iov[i].iov_len;
    }
    return NULL;
}

static void remote_free(struct remote *remote);

/* The engine does not take a part of an operation, or has failed to move it. */
static void refused(struct op *op, mf_error error) {
    op->error = error_of(error);
    op->provider_error = error;
    /* The rights are gone, of all operations: the owner has to be asked again, which may not have told yet that it closed the region. */
    if (op->error == FI_EKEYREJECTED && op->remote)
        remote_free(op->remote);
}

enum begun { BEGUN, NO_ROOM, FAILED };

/* Begins a copy between the next bytes of an operation and a part of a piece. */
static enum begun begin_part(struct op *op, const struct piece *piece, uint64_t within, size_t *length) {
    uint8_t *local = local_place(op, op->position, length);
    struct transfer *transfer;
    mf_range range, remote;
    mf_ticket ticket;
    mf_error error;
    int slot = -1;

    if (process.transfer_count >= QUEUE_TRANSFERS)
        return NO_ROOM;
    if (!memory_find(local, *length, &range)) {
        *length = range.length < BOUNCE_BYTES ? range.length : BOUNCE_BYTES;
        slot = take_slot();
        if (slot < 0)
            return NO_ROOM;
        range = mf_part(process.bounce, (uint64_t)slot * BOUNCE_BYTES, *length);
        if (op->kind == OP_WRITE)
            memcpy(process.bounce_bytes + (size_t)slot * BOUNCE_BYTES, local, *length);
    } else {
        *length = range.length = range.length < MOST_PART ? range.length : MOST_PART;
    }
    transfer = malloc(sizeof(*transfer));
    remote = mf_part(piece->frame, piece->offset + within, *length);
    if (!transfer)
        error = MF_ERROR_SYSTEM;
    else if (op->kind == OP_WRITE)
        error = mf_submit_copy(process.queue, range, remote, NULL, &ticket);
    else
        error = mf_submit_copy(process.queue, remote, range, NULL, &ticket);
    if (error != MF_ERROR_NONE) {
        if (slot >= 0)
            process.free_slots |= 1u << slot;
        free(transfer);
        if (error == MF_ERROR_QUEUE_FULL)
            return NO_ROOM;
        refused(op, error);
        return FAILED;
    }
    *transfer = (struct transfer){.op = op, .ticket = ticket, .slot = slot, .local = local, .length = *length};
    link_append(&process.transfers, &transfer->link);
    process.transfer_count++;
    op->pending++;
    return BEGUN;
}

/* Lets the owner move the next bytes. If the connection breaks, the operation ends with it. */
static void begin_staged(struct op *op, size_t length) {
    struct connection *connection = op->connection;

    if (op->kind == OP_READ) {
        struct record record = {.kind = RECORD_READ,
                                .id = op->id,
                                .key = op->key,
                                .address = op->address + op->position,
                                .total = length,
                                .tag = op->position};

        op->staged += length;
        wire_queue(connection, &record, NULL);
    } else {
        struct stream stream = {.kind = RECORD_WRITE,
                                .id = op->id,
                                .key = op->key,
                                .address = op->address + op->position,
                                .iov_count = op->iov_count,
                                .skip = op->position,
                                .total = length,
                                .op = op};

        memcpy(stream.iov, op->iov, sizeof(stream.iov));
        if (stream_start(connection, &stream))
            op->staged += length;
        else
            op->error = FI_ENOMEM;
    }
}

/* The piece that a place of an operation is in. */
static const struct piece *piece_at(const struct op *op, uint64_t place, uint64_t *within) {
    for (size_t i = 0; i < op->piece_count; i++) {
        if (place < op->pieces[i].length) {
            *within = place;
            return &op->pieces[i];
        }
        place -= op->pieces[i].length;
    }
    return NULL;
}

void rma_advance(struct op *op) {
    const struct connection *connection = op->connection;

    while (!op->error && op->position < op->limit) {
        uint64_t within = 0;
        const struct piece *piece = piece_at(op, op->first + op->position, &within);
        size_t length = op->limit - op->position;
        enum begun begun = BEGUN;

        if (!piece) {
            op->error = FI_EKEYREJECTED;
            break;
        }
        if (length > piece->length - within)
            length = piece->length - within;
        if (piece->has_frame)
            begun = begin_part(op, piece, within, &length);
        else if (!piece->is_here) {
            begin_staged(op, length);
            if (connection->is_dead)
                return;
        }
        if (begun == NO_ROOM) {
            link_remove(&op->waiting);
            link_append(&process.waiting, &op->waiting);
            return;
        }
        if (begun == BEGUN)
            op->position += length;
    }
    settle_if_done(op);
}

static void transfer_ended(struct transfer *transfer, const mf_completion *completion) {
    struct op *op = transfer->op;

    op->pending--;
    if (op->is_discarded) {
        free_transfer(transfer);
        return;
    }
    if (completion->error != MF_ERROR_NONE && !op->error)
        refused(op, completion->error);
    if (completion->error == MF_ERROR_NONE && transfer->slot >= 0 && op->kind != OP_WRITE)
        memcpy(transfer->local, process.bounce_bytes + (size_t)transfer->slot * BOUNCE_BYTES, transfer->length);
    free_transfer(transfer);
    if (op->connection->is_dead && op->error) {
        if (op->pending == 0)
            op_end(op, op->error, op->provider_error);
        return;
    }
    rma_advance(op);
}

void rma_progress(void) {
    mf_completion completion;

    while (process.transfer_count > 0) {
        mf_error error = mf_poll(process.queue, &completion);

        if (error != MF_ERROR_NONE && (int)error < 100)
            break;
        FOR_EACH(item, following, &process.transfers) {
            struct transfer *transfer = CONTAINER(item, struct transfer, link);

            if (transfer->ticket.tag == completion.ticket.tag) {
                transfer_ended(transfer, &completion);
                break;
            }
        }
    }
    while (!link_is_empty(&process.waiting)) {
        struct op *op = CONTAINER(process.waiting.next, struct op, waiting);
        size_t position = op->position;
        uint64_t id = op->id;

        link_remove(&op->waiting);
        rma_advance(op);
        if (op->id == id && op->position == position && !link_is_empty(&op->waiting))
            break;
    }
}

static bool has_transfers(const struct endpoint *ep) {
    FOR_EACH(item, following, &process.transfers) {
        if (CONTAINER(item, struct transfer, link)->op->endpoint == ep)
            return true;
    }
    return false;
}

bool rma_settle(struct endpoint *ep) {
    uint64_t end = now_ms() + SETTLE_MS;

    FOR_EACH(item, following, &process.transfers) {
        struct transfer *transfer = CONTAINER(item, struct transfer, link);

        if (transfer->op->endpoint == ep)
            (void)mf_cancel(process.queue, transfer->ticket);
    }
    for (;;) {
        rma_progress();
        if (!has_transfers(ep))
            return true;
        if (now_ms() >= end)
            return false;
        /* Other endpoints go on. */
        pthread_mutex_unlock(&process.lock);
        nanosleep(&(struct timespec){0, NAP_NANOSECONDS}, NULL);
        pthread_mutex_lock(&process.lock);
    }
}

void rma_cancel(struct op *op) {
    FOR_EACH(item, following, &process.transfers) {
        struct transfer *transfer = CONTAINER(item, struct transfer, link);

        if (transfer->op == op)
            (void)mf_cancel(process.queue, transfer->ticket);
    }
    link_remove(&op->waiting);
    op->reopenings = MOST_REOPENINGS;
    op->error = FI_ECANCELED;
    op->provider_error = 0;
    settle_if_done(op);
}

/* ---- Regions of peers ---- */

static struct remote *remote_of(struct connection *connection, uint64_t key) {
    FOR_EACH(item, following, &connection->remotes) {
        struct remote *remote = CONTAINER(item, struct remote, link);

        if (remote->key == key)
            return remote;
    }
    return NULL;
}

/* Frees a region of a peer. Operations that move its bytes fail, and may ask for it again. */
static void remote_free(struct remote *remote) {
    FOR_EACH(item, following, &remote->connection->ops) {
        struct op *op = CONTAINER(item, struct op, link);

        if (op->remote != remote)
            continue;
        op->remote = NULL;
        op->pieces = NULL;
        op->piece_count = 0;
        if (!op->error)
            op->error = FI_EKEYREJECTED;
        link_remove(&op->waiting);
        link_append(&process.waiting, &op->waiting);
    }
    link_remove(&remote->link);
    for (size_t i = 0; i < remote->piece_count; i++) {
        if (remote->pieces[i].has_frame)
            (void)mf_frame_free(remote->pieces[i].frame);
    }
    free(remote->pieces);
    free(remote);
}

static void revoke_all(struct granted *granted) {
    link_remove(&granted->link);
    for (size_t i = 0; i < granted->count; i++) {
        if (granted->pieces[i].token)
            memory_revoke(granted->pieces[i].token);
    }
    free(granted);
}

void rma_drop(struct connection *connection) {
    struct domain *domain = connection->endpoint->domain;

    FOR_EACH(item, following, &connection->remotes) { remote_free(CONTAINER(item, struct remote, link)); }
    /* Another connection of that process uses the same grants. */
    if (wire_has_session(domain, connection->session))
        return;
    FOR_EACH(item, following, &domain->regions) {
        FOR_EACH(one, after, &CONTAINER(item, struct region_handle, link)->grants) {
            struct granted *granted = CONTAINER(one, struct granted, link);

            if (granted->session == connection->session)
                revoke_all(granted);
        }
    }
}

static void begin(struct op *op, struct remote *remote) {
    uint64_t needed = op->kind == OP_READ ? FI_REMOTE_READ : FI_REMOTE_WRITE;
    uint64_t first = op->address - remote->base;

    op->state = OP_MOVING;
    op->remote = remote;
    op->pieces = remote->pieces;
    op->piece_count = remote->piece_count;
    op->first = first;
    if (!(remote->access & needed))
        op->error = FI_EACCES;
    else if (op->address < remote->base || first > remote->length || op->total > remote->length - first)
        op->error = FI_EINVAL;
    rma_advance(op);
}

static void open_remote(struct op *op) {
    struct connection *connection = op->connection;
    struct remote *remote = remote_of(connection, op->key);
    struct record record = {.kind = RECORD_OPEN, .key = op->key};

    op->state = OP_WAITING;
    if (remote && remote->is_open) {
        begin(op, remote);
        return;
    }
    if (!remote) {
        remote = calloc(1, sizeof(*remote));
        if (!remote) {
            op_end(op, FI_ENOMEM, 0);
            return;
        }
        remote->connection = connection;
        remote->key = op->key;
        link_init(&remote->waiting);
        link_append(&connection->remotes, &remote->link);
        op->remote = remote;
        link_append(&remote->waiting, &op->waiting);
        wire_queue(connection, &record, NULL);
        return;
    }
    op->remote = remote;
    link_append(&remote->waiting, &op->waiting);
}

static bool accept_pieces(struct remote *remote, const struct wire_piece *wire, size_t count) {
    uint64_t total = 0;

    remote->pieces = calloc(count + 1, sizeof(*remote->pieces));
    if (!remote->pieces)
        return false;
    remote->piece_count = count;
    for (size_t i = 0; i < count; i++) {
        struct piece *piece = &remote->pieces[i];
        uint64_t grantor;

        if (wire[i].length > remote->length - total)
            return false;
        total += wire[i].length;
        piece->length = wire[i].length;
        /* What cannot be accepted is left to its owner. */
        if (!wire[i].token || mf_accept(process.client, (mf_grant_token){wire[i].token}, &piece->frame) != MF_ERROR_NONE)
            continue;
        if (mf_frame_grantor(piece->frame, &grantor) == MF_ERROR_NONE && grantor == remote->connection->session)
            piece->has_frame = true;
        else
            (void)mf_frame_free(piece->frame);
    }
    return total == remote->length;
}

static void opened(struct connection *connection, const struct record *record, const struct payload *payload) {
    struct remote *remote = remote_of(connection, record->key);
    struct wire_piece wire[MOST_PIECES];
    struct link ready;
    size_t count = record->length / sizeof(wire[0]);

    if (!remote || remote->is_open || record->length > sizeof(wire) || record->length % sizeof(wire[0]) != 0) {
        wire_fail(connection, "it opened memory that nobody asked for");
        return;
    }
    payload_copy(payload, 0, wire, record->length);
    remote->access = record->data;
    remote->base = record->address;
    remote->length = record->total;
    remote->is_open = true;
    if (record->tag == 0 && !accept_pieces(remote, wire, count)) {
        wire_fail(connection, "its memory region is wrong");
        return;
    }
    link_init(&ready);
    FOR_EACH(item, following, &remote->waiting) {
        link_remove(item);
        link_append(&ready, item);
    }
    if (record->tag != 0) {
        FOR_EACH(item, following, &ready) {
            struct op *op = CONTAINER(item, struct op, waiting);

            op->remote = NULL;
            op_end(op, FI_EKEYREJECTED, 0);
        }
        remote_free(remote);
        return;
    }
    while (!link_is_empty(&ready)) {
        struct op *op = CONTAINER(ready.next, struct op, waiting);

        link_remove(&op->waiting);
        /* One before it may have found that it is closed again. */
        open_remote(op);
    }
}

/* ---- Regions of this process ---- */

static struct granted *grant_of(struct region_handle *region, uint64_t session) {
    FOR_EACH(item, following, &region->grants) {
        struct granted *granted = CONTAINER(item, struct granted, link);

        if (granted->session == session)
            return granted;
    }
    return NULL;
}

static uint64_t grant_piece(const mf_range *range, const struct region_handle *region, const struct connection *connection) {
    uint32_t rights = (region->access & FI_REMOTE_READ ? MF_RIGHTS_READ : 0) | (region->access & FI_REMOTE_WRITE ? MF_RIGHTS_WRITE : 0);
    mf_grant_token token;

    if (connection->is_self || mf_grant_session(*range, rights, connection->session, &token) != MF_ERROR_NONE)
        return 0;
    return token.value;
}

/* Grants what of a region is in frames. */
static struct granted *grant(struct region_handle *region, struct connection *connection) {
    struct granted *granted = grant_of(region, connection->session);

    if (granted)
        return granted;
    granted = calloc(1, sizeof(*granted) + MOST_PIECES * sizeof(granted->pieces[0]));
    if (!granted)
        return NULL;
    granted->session = connection->session;
    for (size_t at = 0; at < region->length;) {
        struct wire_piece *piece = &granted->pieces[granted->count++];
        mf_range range;

        if (granted->count == MOST_PIECES) {
            piece->length = region->length - at;
            break;
        }
        if (memory_find(region->start + at, region->length - at, &range))
            piece->token = grant_piece(&range, region, connection);
        piece->length = range.length;
        at += range.length;
    }
    link_append(&region->grants, &granted->link);
    return granted;
}

static void asked_to_open(struct connection *connection, uint64_t key) {
    struct domain *domain = connection->endpoint->domain;
    struct region_handle *region = region_of_key(domain, key);
    struct record record = {.kind = RECORD_OPENED, .key = key, .tag = 1};
    struct granted *granted = NULL;

    if (region && region->access & (FI_REMOTE_READ | FI_REMOTE_WRITE))
        granted = grant(region, connection);
    if (granted) {
        record.tag = 0;
        record.data = region->access;
        record.address = domain->has_virtual_addresses ? (uintptr_t)region->start : 0;
        record.total = region->length;
        record.length = (uint32_t)(granted->count * sizeof(granted->pieces[0]));
    }
    wire_queue(connection, &record, granted ? granted->pieces : NULL);
}

static void answer(struct connection *connection, uint64_t id, uint64_t total, int error) {
    struct record record = {.kind = RECORD_DONE, .id = id, .total = total, .tag = (uint64_t)error};

    wire_queue(connection, &record, NULL);
}

static void asked_to_read(struct connection *connection, const struct record *record) {
    struct stream stream = {.kind = RECORD_DATA, .id = record->id, .address = record->tag, .iov_count = 1, .total = record->total};
    uint8_t *start;

    stream.region = region_find(connection->endpoint->domain, record->key, record->address, record->total, FI_REMOTE_READ, &start);
    if (!stream.region || record->total == 0) {
        answer(connection, record->id, record->total, FI_EKEYREJECTED);
        return;
    }
    stream.iov[0] = (struct iovec){start, record->total};
    if (!stream_start(connection, &stream))
        wire_fail(connection, "it asks for too much at a time");
}

static void asked_to_write(struct connection *connection, const struct record *record, const struct payload *payload) {
    uint8_t *start;
    struct region_handle *region =
        region_find(connection->endpoint->domain, record->key, record->address, record->length, FI_REMOTE_WRITE, &start);

    if (region)
        payload_copy(payload, 0, start, record->length);
    answer(connection, record->id, record->length, region ? 0 : FI_EKEYREJECTED);
}

/* Ends one answer from a region; false if there is none. */
static bool stop_stream(struct connection *connection, const struct region_handle *region) {
    FOR_EACH(item, following, &connection->streams) {
        struct stream *stream = CONTAINER(item, struct stream, link);
        uint64_t id = stream->id, left = stream->total - stream->sent;

        if (stream->region != region)
            continue;
        stream_stop(connection, stream);
        answer(connection, id, left, FI_EKEYREJECTED);
        return true;
    }
    return false;
}

void rma_region_closed(struct region_handle *region) {
    FOR_EACH(item, following, &region->grants) { revoke_all(CONTAINER(item, struct granted, link)); }
    FOR_EACH(one, after, &region->domain->endpoints) {
        struct endpoint *ep = CONTAINER(one, struct endpoint, link);

        FOR_EACH(two, after_two, &ep->connections) {
            struct connection *connection = CONTAINER(two, struct connection, link);
            struct record record = {.kind = RECORD_CLOSED, .key = region->fid.key};

            if (connection->is_dead || connection->is_outgoing)
                continue;
            while (stop_stream(connection, region))
                ;
            wire_queue(connection, &record, NULL);
        }
    }
}

/* ---- Records ---- */

void rma_answered(struct op *op, const struct record *record) {
    if (op->state != OP_MOVING || record->kind != RECORD_DONE || record->total > op->staged) {
        wire_fail(op->connection, "it answers what was not asked");
        return;
    }
    op->staged -= record->total;
    if (record->tag && !op->error)
        op->error = FI_EKEYREJECTED;
    settle_if_done(op);
}

void rma_data(struct op *op, const struct record *record, const struct payload *payload) {
    if (op->state != OP_MOVING || record->length > op->staged || record->address > op->total ||
        record->length > op->total - record->address) {
        wire_fail(op->connection, "it sent bytes that were not asked for");
        return;
    }
    iov_write(op->iov, op->iov_count, record->address, payload, 0, record->length);
    op->staged -= record->length;
    settle_if_done(op);
}

void rma_record(struct connection *connection, const struct record *record, const struct payload *payload) {
    struct entry entry = {.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, .source = FI_ADDR_NOTAVAIL};
    struct endpoint *ep = connection->endpoint;
    struct remote *remote;

    switch (record->kind) {
    case RECORD_OPEN:
        asked_to_open(connection, record->key);
        break;
    case RECORD_OPENED:
        opened(connection, record, payload);
        break;
    case RECORD_CLOSED:
        remote = remote_of(connection, record->key);
        if (remote && remote->is_open)
            remote_free(remote);
        break;
    case RECORD_READ:
        asked_to_read(connection, record);
        break;
    case RECORD_WRITE:
        asked_to_write(connection, record, payload);
        break;
    default:
        entry.length = record->total;
        entry.data = record->data;
        if (ep->caps & FI_SOURCE)
            entry.source = wire_address(connection);
        if (ep->receive_cq)
            cq_add(ep->receive_cq, &entry);
    }
}

/* ---- What a program starts ---- */

static ssize_t start_failed(struct endpoint *ep, enum op_kind kind, const struct fi_msg_rma *message, bool has_context, int error) {
    struct entry entry = {.context = message->context,
                          .flags = FI_RMA | (kind == OP_READ ? FI_READ : FI_WRITE),
                          .source = FI_ADDR_NOTAVAIL,
                          .error = -error};

    if (error == -FI_EINVAL || error == -FI_EAGAIN || error == -FI_ENOMEM || !has_context)
        return error;
    report(ep, kind, true, &entry);
    return 0;
}

/* Takes the bytes of an injected write, so that the program may change them. */
static bool copy_buffers(struct op *op) {
    uint8_t *at = op->copy = malloc(op->total + 1);

    if (!at)
        return false;
    for (unsigned i = 0; i < op->iov_count; i++) {
        if (op->iov[i].iov_len > 0)
            memcpy(at, op->iov[i].iov_base, op->iov[i].iov_len);
        at += op->iov[i].iov_len;
    }
    op->iov[0] = (struct iovec){op->copy, op->total};
    op->iov_count = 1;
    return true;
}

ssize_t rma_start(struct endpoint *ep, enum op_kind kind, const struct fi_msg_rma *message, uint64_t flags, bool has_context) {
    struct connection *connection;
    struct op *op;
    size_t total;
    int error;

    if (!endpoint_works(ep))
        return -FI_EOPBADSTATE;
    if (message->iov_count > MOST_BUFFERS || message->rma_iov_count != 1 || flags & ~RMA_FLAGS || !(ep->caps & FI_RMA))
        return -FI_EINVAL;
    total = iov_total(message->msg_iov, message->iov_count);
    if (message->rma_iov[0].len != total || (flags & FI_INJECT && (kind == OP_READ || total > INJECT_BYTES)))
        return -FI_EINVAL;
    if (ep->sends >= MOST_SENDS) {
        domain_progress(ep->domain, false);
        return -FI_EAGAIN;
    }
    connection = endpoint_peer(ep, message->addr, &error);
    if (!connection)
        return start_failed(ep, kind, message, has_context, error);
    op = op_new(ep, kind);
    if (!op)
        return -FI_ENOMEM;
    op->context = message->context;
    op->flags = FI_RMA | (kind == OP_READ ? FI_READ : FI_WRITE);
    op->has_completion = has_context && (!ep->transmit_is_selective || flags & FI_COMPLETION);
    op->iov_count = (unsigned)message->iov_count;
    if (message->iov_count > 0)
        memcpy(op->iov, message->msg_iov, message->iov_count * sizeof(op->iov[0]));
    op->total = op->limit = total;
    op->address = message->rma_iov[0].addr;
    op->key = message->rma_iov[0].key;
    op->data = message->data;
    op->has_data = kind == OP_WRITE && flags & FI_REMOTE_CQ_DATA;
    if (flags & FI_INJECT && !copy_buffers(op)) {
        op_free(op);
        return -FI_ENOMEM;
    }
    op_attach(op, connection);
    open_remote(op);
    return 0;
}
