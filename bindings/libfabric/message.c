/* Messages.
 *
 *     up to EAGER_BYTES       EAGER with the bytes ──► matched by the receiver
 *     longer                  LONG ──► matched ──► GO ──► DATA, DATA, ...        through the ring: two copies by CPUs
 *                             LONG with pieces ──► matched ──► (engine) ──► DONE  both sides' memory is registered, same user
 *
 * Messages of one peer are matched in the order in which they were sent. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

/* From this length on the engine moves a message whose memory is registered. */
#define PULL_BYTES 65536
#define MOST_PIECES 16
/* Bytes of a message that are in no frame and go with its pieces; bytes of a receive that the engine does not reach. */
#define MOST_LOOSE 8192
#define MOST_LOOSE_RECEIVE 16384

#define SEND_FLAGS                                                                                                             \
    (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE |         \
     FI_REMOTE_CQ_DATA | FI_MORE)
#define RECEIVE_FLAGS (FI_COMPLETION | FI_MORE)

/* A piece of a message, as it goes through the ring. Bytes of a piece without a token follow the last piece. */
struct wire_piece {
    uint64_t token;
    uint64_t offset;
    uint64_t length;
};

struct accepted {
    struct link link;
    uint64_t token;
    mf_frame frame;
};

/* ---- Sending ---- */

struct pieces {
    struct wire_piece pieces[MOST_PIECES];
    size_t count;
    /* The pieces and the loose bytes. */
    struct iovec iov[MOST_PIECES + 1];
    size_t iov_count;
    size_t bytes;
};

static bool add_piece(struct pieces *pieces, struct connection *connection, uint8_t *at, size_t left, size_t *taken) {
    struct wire_piece piece = {0, 0, 0};
    mf_range range;

    if (pieces->count == MOST_PIECES)
        return false;
    if (memory_find(at, left, &range)) {
        piece.token = memory_token(&range, connection->session, &piece.offset);
        if (piece.token == 0)
            return false;
    } else {
        pieces->iov[pieces->iov_count++] = (struct iovec){at, range.length};
        pieces->bytes += range.length;
        if (pieces->bytes > MOST_LOOSE)
            return false;
    }
    piece.length = range.length;
    pieces->pieces[pieces->count++] = piece;
    *taken = range.length;
    return true;
}

/* Finds the frames of a message. A grant for messages covers a whole frame, so only processes of the same user get one. */
static bool find_pieces(struct pieces *pieces, struct connection *connection, const struct iovec *iov, size_t count, size_t total) {
    pieces->count = pieces->bytes = 0;
    pieces->iov_count = 1;
    if (total < PULL_BYTES || connection->is_self || !connection->session || connection->user != geteuid())
        return false;
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0, taken = 0; at < iov[i].iov_len; at += taken) {
            if (!add_piece(pieces, connection, (uint8_t *)iov[i].iov_base + at, iov[i].iov_len - at, &taken))
                return false;
        }
    }
    pieces->iov[0] = (struct iovec){pieces->pieces, pieces->count * sizeof(pieces->pieces[0])};
    pieces->bytes += pieces->iov[0].iov_len;
    return true;
}

static uint64_t completion_flags(bool is_tagged, uint64_t direction) { return direction | (is_tagged ? FI_TAGGED : FI_MSG); }

static ssize_t send_failed(struct endpoint *ep, const struct fi_msg_tagged *message, bool is_tagged, bool has_context, int error) {
    struct entry entry = {
        .context = message->context,
        .flags = completion_flags(is_tagged, FI_SEND),
        .source = FI_ADDR_NOTAVAIL,
        .error = -error,
    };

    /* A bad address is the program's mistake; a peer that left is not. */
    if (error == -FI_EINVAL || error == -FI_EAGAIN || error == -FI_ENOMEM || !has_context)
        return error;
    report(ep, OP_SEND, true, &entry);
    return 0;
}

static struct op *send_op(struct endpoint *ep, struct connection *connection, const struct fi_msg_tagged *message, bool is_tagged,
                          bool has_completion) {
    struct op *op = op_new(ep, OP_SEND);

    if (!op)
        return NULL;
    op->state = OP_WAITING;
    op->context = message->context;
    op->flags = completion_flags(is_tagged, FI_SEND);
    op->has_completion = has_completion;
    op->iov_count = (unsigned)message->iov_count;
    if (message->iov_count > 0)
        memcpy(op->iov, message->msg_iov, message->iov_count * sizeof(op->iov[0]));
    op->total = iov_total(message->msg_iov, message->iov_count);
    op_attach(op, connection);
    return op;
}

static ssize_t put_eager(struct connection *connection, struct record *record, const struct fi_msg_tagged *message, bool is_tagged,
                         bool has_completion, bool is_acknowledged) {
    struct endpoint *ep = connection->endpoint;
    struct entry entry = {
        .context = message->context, .flags = completion_flags(is_tagged, FI_SEND), .source = FI_ADDR_NOTAVAIL};

    record->kind = RECORD_EAGER;
    record->length = (uint32_t)record->total;
    if (is_acknowledged) {
        struct op *op = send_op(ep, connection, message, is_tagged, has_completion);

        if (!op)
            return -FI_ENOMEM;
        record->flags |= RECORD_ACKNOWLEDGE;
        record->id = op->id;
    }
    wire_put(connection, record, message->msg_iov, message->iov_count, 0);
    /* The peer has it, whatever happens to this process. */
    if (!is_acknowledged)
        report(ep, OP_SEND, has_completion, &entry);
    return 0;
}

static ssize_t put_long(struct connection *connection, struct record *record, const struct fi_msg_tagged *message, bool is_tagged,
                        bool has_completion, bool is_acknowledged) {
    struct pieces pieces;
    struct op *op;

    record->kind = RECORD_LONG;
    if (find_pieces(&pieces, connection, message->msg_iov, message->iov_count, record->total)) {
        record->flags |= RECORD_HAS_PIECES;
        record->address = pieces.count;
        record->length = (uint32_t)pieces.bytes;
    }
    /* Making tokens may have put records into the ring. */
    if (!wire_has_room(connection, record->length))
        return -FI_EAGAIN;
    op = send_op(connection->endpoint, connection, message, is_tagged, has_completion);
    if (!op)
        return -FI_ENOMEM;
    op->is_acknowledged = is_acknowledged;
    record->flags |= is_acknowledged ? RECORD_ACKNOWLEDGE : 0;
    record->id = op->id;
    wire_put(connection, record, pieces.iov, record->length > 0 ? pieces.iov_count : 0, 0);
    return 0;
}

ssize_t message_send(struct endpoint *ep, const struct fi_msg_tagged *message, uint64_t flags, bool is_tagged, bool has_context) {
    struct record record = {.tag = message->tag, .data = message->data};
    bool has_completion = has_context && (!ep->transmit_is_selective || flags & FI_COMPLETION);
    bool is_acknowledged = flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE);
    struct connection *connection;
    int error;

    if (!endpoint_works(ep))
        return -FI_EOPBADSTATE;
    if (message->iov_count > MOST_BUFFERS || flags & ~SEND_FLAGS)
        return -FI_EINVAL;
    record.total = iov_total(message->msg_iov, message->iov_count);
    if (record.total > MOST_MESSAGE || (flags & FI_INJECT && record.total > INJECT_BYTES))
        return -FI_EMSGSIZE;
    connection = endpoint_peer(ep, message->addr, &error);
    if (!connection)
        return send_failed(ep, message, is_tagged, has_context, error);
    if (ep->sends >= MOST_SENDS || !wire_has_room(connection, record.total <= EAGER_BYTES ? record.total : 0)) {
        domain_progress(ep->domain, false);
        if (connection != ep->outgoing[message->addr] || ep->sends >= MOST_SENDS ||
            !wire_has_room(connection, record.total <= EAGER_BYTES ? record.total : 0))
            return -FI_EAGAIN;
    }
    record.flags = (is_tagged ? RECORD_TAGGED : 0) | (flags & FI_REMOTE_CQ_DATA ? RECORD_HAS_DATA : 0);
    if (record.total <= EAGER_BYTES)
        return put_eager(connection, &record, message, is_tagged, has_completion, is_acknowledged);
    return put_long(connection, &record, message, is_tagged, has_completion, is_acknowledged);
}

void message_answered(struct connection *connection, const struct record *record) {
    struct op *op = op_find(connection, record->id);
    struct stream stream = {.kind = RECORD_DATA, .id = record->key, .total = record->total};

    /* It may have failed here meanwhile. */
    if (!op)
        return;
    if (op->kind != OP_SEND) {
        rma_answered(op, record);
        return;
    }
    if (record->kind == RECORD_DONE && op->state == OP_SENT) {
        op_end(op, record->tag ? FI_EIO : 0, 0);
        return;
    }
    /* The bytes of a short message came with it, and its buffer may be the program's again. */
    if (op->state != OP_WAITING ||
        (record->kind == RECORD_GO && (op->total <= EAGER_BYTES || record->total == 0 || record->total > op->total))) {
        wire_fail(connection, "it answers what was not asked");
        return;
    }
    if (record->kind == RECORD_DONE) {
        op_end(op, record->tag ? FI_EIO : 0, 0);
        return;
    }
    op->state = OP_STREAMING;
    memcpy(stream.iov, op->iov, sizeof(stream.iov));
    stream.iov_count = op->iov_count;
    stream.op = op;
    if (!stream_start(connection, &stream))
        op_end(op, FI_ENOMEM, 0);
}

/* ---- Receiving ---- */

static void acknowledge(struct connection *connection, uint64_t id, uint64_t error) {
    struct record record = {.kind = RECORD_DONE, .id = id, .tag = error};

    wire_queue(connection, &record, NULL);
}

static void end_receive(struct op *op) { op_end(op, op->message > op->total ? FI_ETRUNC : 0, 0); }

/* Ends a receive and tells the sender. In this order: a connection that breaks meanwhile ends the operations that it still has. */
static void end_acknowledged(struct op *op) {
    struct connection *connection = op->connection;
    uint64_t sender = op->sender;

    end_receive(op);
    acknowledge(connection, sender, 0);
}

/* Asks for the bytes through the ring. */
static void ask(struct op *op) {
    struct record record = {.kind = RECORD_GO, .id = op->sender, .key = op->id, .total = op->limit};
    struct connection *connection = op->connection;

    if (op->limit == 0) {
        end_acknowledged(op);
        return;
    }
    op->state = OP_STREAMING;
    op->done = 0;
    wire_queue(connection, &record, NULL);
}

/* The frame of a token, which the peer must have granted itself. */
static bool accept_token(struct connection *connection, uint64_t token, mf_frame *frame) {
    struct accepted *accepted;
    uint64_t grantor;

    FOR_EACH(item, following, &connection->accepted) {
        accepted = CONTAINER(item, struct accepted, link);
        if (accepted->token == token) {
            *frame = accepted->frame;
            return true;
        }
    }
    accepted = malloc(sizeof(*accepted));
    if (!accepted)
        return false;
    if (mf_accept(process.client, (mf_grant_token){token}, frame) != MF_ERROR_NONE) {
        free(accepted);
        return false;
    }
    if (mf_frame_grantor(*frame, &grantor) != MF_ERROR_NONE || grantor != connection->session) {
        (void)mf_frame_free(*frame);
        free(accepted);
        return false;
    }
    *accepted = (struct accepted){.token = token, .frame = *frame};
    link_append(&connection->accepted, &accepted->link);
    return true;
}

void message_forget(struct connection *connection, uint64_t token) {
    FOR_EACH(item, following, &connection->accepted) {
        struct accepted *accepted = CONTAINER(item, struct accepted, link);

        if (accepted->token == token) {
            link_remove(item);
            (void)mf_frame_free(accepted->frame);
            free(accepted);
            return;
        }
    }
}

/* Whether the engine reaches the buffers of a receive, but for a few bytes. */
static bool is_reachable(const struct op *op) {
    size_t loose = 0, left = op->limit;

    for (unsigned i = 0; i < op->iov_count && left > 0; i++) {
        size_t length = op->iov[i].iov_len < left ? op->iov[i].iov_len : left;

        for (size_t at = 0; at < length;) {
            mf_range range;

            if (!memory_find((uint8_t *)op->iov[i].iov_base + at, length - at, &range))
                loose += range.length;
            at += range.length;
        }
        left -= length;
    }
    return loose <= MOST_LOOSE_RECEIVE;
}

/* Takes the pieces of a message, and its loose bytes. False if they are not as they should be, or a token is refused. */
static bool take_pieces(struct op *op, const struct record *record, const struct payload *payload) {
    struct wire_piece wire[MOST_PIECES];
    size_t count = record->address, loose, place = 0;

    if (count > MOST_PIECES || count * sizeof(wire[0]) > record->length)
        return false;
    loose = count * sizeof(wire[0]);
    payload_copy(payload, 0, wire, loose);
    op->own_pieces = calloc(count + 1, sizeof(*op->own_pieces));
    if (!op->own_pieces)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct piece *piece = &op->own_pieces[i];

        if (wire[i].length > op->message - place || (wire[i].token == 0 && wire[i].length > record->length - loose))
            return false;
        *piece = (struct piece){.length = wire[i].length, .offset = wire[i].offset};
        if (wire[i].token == 0) {
            size_t wanted = op->limit > place ? op->limit - place : 0;

            piece->is_here = true;
            iov_write(op->iov, op->iov_count, place, payload, loose, wire[i].length < wanted ? wire[i].length : wanted);
            loose += wire[i].length;
        } else if (!accept_token(op->connection, wire[i].token, &piece->frame)) {
            return false;
        } else {
            piece->has_frame = true;
        }
        place += wire[i].length;
    }
    op->pieces = op->own_pieces;
    op->piece_count = count;
    return place == op->message;
}

static void deliver(struct op *op, struct connection *connection, const struct record *record, const struct payload *payload) {
    op->message = record->total;
    op->limit = op->message < op->total ? op->message : op->total;
    op->tag = record->tag;
    op->data = record->data;
    op->has_data = record->flags & RECORD_HAS_DATA;
    op->sender = record->id;
    op->is_acknowledged = record->flags & RECORD_ACKNOWLEDGE;
    op_attach(op, connection);
    if (record->kind == RECORD_EAGER) {
        iov_write(op->iov, op->iov_count, 0, payload, 0, op->limit);
        if (op->is_acknowledged)
            end_acknowledged(op);
        else
            end_receive(op);
        return;
    }
    if (connection->is_dead) {
        op_end(op, FI_ECONNRESET, 0);
        return;
    }
    /* Frames that it accepts are counted as this user's. */
    if (record->flags & RECORD_HAS_PIECES && connection->user == geteuid() && is_reachable(op) &&
        take_pieces(op, record, payload)) {
        op->state = OP_MOVING;
        rma_advance(op);
        return;
    }
    ask(op);
}

/* The engine has moved the bytes, or could not. */
void message_ended(struct op *op) {
    struct connection *connection = op->connection;

    if (op->error && connection->is_dead) {
        op_end(op, FI_ECONNRESET, op->provider_error);
        return;
    }
    if (op->error) {
        /* The sender still has them. */
        op->error = 0;
        ask(op);
        return;
    }
    end_acknowledged(op);
}

void message_data(struct connection *connection, const struct record *record, const struct payload *payload) {
    struct op *op = op_find(connection, record->id);

    /* A receive may have failed here meanwhile. */
    if (!op)
        return;
    if (op->kind == OP_READ) {
        rma_data(op, record, payload);
        return;
    }
    if (op->kind != OP_RECEIVE || op->state != OP_STREAMING || record->address != op->done ||
        record->length > op->limit - op->done || record->length == 0) {
        wire_fail(connection, "it sent bytes that were not asked for");
        return;
    }
    iov_write(op->iov, op->iov_count, op->done, payload, 0, record->length);
    op->done += record->length;
    if (op->done < op->limit)
        return;
    if (op->is_acknowledged)
        end_acknowledged(op);
    else
        end_receive(op);
}

/* ---- Matching ---- */

static bool is_from(const struct endpoint *ep, fi_addr_t source, const struct connection *connection) {
    const struct av_entry *entry;

    if (source == FI_ADDR_UNSPEC)
        return true;
    entry = av_entry(ep->av, source);
    return entry && strcmp(entry->name.text, connection->name.text) == 0;
}

static bool matches(const struct endpoint *ep, fi_addr_t source, uint64_t tag, uint64_t ignore, const struct connection *connection,
                    const struct record *record) {
    return ((record->tag ^ tag) & ~ignore) == 0 && is_from(ep, source, connection);
}

void message_arrived(struct connection *connection, const struct record *record, const struct payload *payload) {
    struct endpoint *ep = connection->endpoint;
    int list = record->flags & RECORD_TAGGED ? 1 : 0;
    struct unexpected *message;

    if (record->kind == RECORD_EAGER ? record->total != record->length : record->total == 0 || record->total > MOST_MESSAGE) {
        wire_fail(connection, "it sent a message of a wrong length");
        return;
    }
    FOR_EACH(item, following, &ep->posted[list]) {
        struct op *op = CONTAINER(item, struct op, link);

        if (matches(ep, op->source, op->tag, op->ignore, connection, record)) {
            link_remove(item);
            deliver(op, connection, record, payload);
            return;
        }
    }
    message = malloc(sizeof(*message) + record->length);
    if (!message) {
        wire_fail(connection, "no memory for its messages");
        return;
    }
    *message = (struct unexpected){.connection = connection, .record = *record};
    payload_copy(payload, 0, message->bytes, record->length);
    connection->references++;
    account_keep(connection, sizeof(*message) + record->length);
    link_append(&ep->unexpected[list], &message->link);
}

static void free_message(struct unexpected *message) {
    link_remove(&message->link);
    message->connection->references--;
    account_drop(message->connection, sizeof(*message) + message->record.length);
    free(message);
}

static void drop_long(struct link *list, const struct connection *connection) {
    FOR_EACH(item, following, list) {
        struct unexpected *message = CONTAINER(item, struct unexpected, link);

        if (message->connection == connection && message->record.kind == RECORD_LONG)
            free_message(message);
    }
}

void message_drop(struct connection *connection) {
    struct endpoint *ep = connection->endpoint;

    for (int i = 0; i < 2; i++)
        drop_long(&ep->unexpected[i], connection);
    drop_long(&ep->claimed, connection);
    FOR_EACH(item, following, &connection->accepted) {
        struct accepted *accepted = CONTAINER(item, struct accepted, link);

        link_remove(item);
        (void)mf_frame_free(accepted->frame);
        free(accepted);
    }
}

static struct unexpected *find_unexpected(struct endpoint *ep, const struct fi_msg_tagged *wanted, bool is_tagged) {
    fi_addr_t source = ep->caps & FI_DIRECTED_RECV ? wanted->addr : FI_ADDR_UNSPEC;

    FOR_EACH(item, following, &ep->unexpected[is_tagged]) {
        struct unexpected *message = CONTAINER(item, struct unexpected, link);

        if (matches(ep, source, wanted->tag, wanted->ignore, message->connection, &message->record))
            return message;
    }
    return NULL;
}

static void deliver_unexpected(struct op *op, struct unexpected *message) {
    struct payload payload = {message->bytes, message->record.length, NULL, 0};

    /* A connection that breaks meanwhile drops the messages that are listed. */
    link_remove(&message->link);
    deliver(op, message->connection, &message->record, &payload);
    free_message(message);
}

static void discard(struct unexpected *message) {
    bool is_awaited = message->record.kind == RECORD_LONG || message->record.flags & RECORD_ACKNOWLEDGE;
    struct connection *connection = message->connection;
    uint64_t sender = message->record.id;

    free_message(message);
    if (is_awaited)
        acknowledge(connection, sender, 0);
}

/* Looks for a message, and tells about it in the completion queue. */
static ssize_t peek(struct endpoint *ep, const struct fi_msg_tagged *wanted, uint64_t flags) {
    struct entry entry = {.context = wanted->context, .flags = FI_RECV | FI_TAGGED, .source = FI_ADDR_NOTAVAIL};
    struct unexpected *message;

    domain_progress(ep->domain, false);
    message = find_unexpected(ep, wanted, true);
    if (!message) {
        entry.error = FI_ENOMSG;
        entry.tag = wanted->tag;
        report(ep, OP_RECEIVE, true, &entry);
        return 0;
    }
    entry.length = message->record.total;
    entry.tag = message->record.tag;
    entry.data = message->record.data;
    if (message->record.flags & RECORD_HAS_DATA)
        entry.flags |= FI_REMOTE_CQ_DATA;
    if (ep->caps & FI_SOURCE)
        entry.source = wire_address(message->connection);
    if (flags & FI_DISCARD) {
        discard(message);
    } else if (flags & FI_CLAIM) {
        message->claimer = wanted->context;
        link_remove(&message->link);
        link_append(&ep->claimed, &message->link);
    }
    report(ep, OP_RECEIVE, true, &entry);
    return 0;
}

static struct op *receive_op(struct endpoint *ep, const struct fi_msg_tagged *wanted, uint64_t flags, bool is_tagged) {
    struct op *op = op_new(ep, OP_RECEIVE);

    if (!op)
        return NULL;
    op->state = OP_POSTED;
    op->context = wanted->context;
    op->flags = completion_flags(is_tagged, FI_RECV);
    op->has_completion = !ep->receive_is_selective || flags & FI_COMPLETION;
    op->is_tagged = is_tagged;
    op->iov_count = (unsigned)wanted->iov_count;
    if (wanted->iov_count > 0)
        memcpy(op->iov, wanted->msg_iov, wanted->iov_count * sizeof(op->iov[0]));
    op->total = iov_total(wanted->msg_iov, wanted->iov_count);
    op->source = ep->caps & FI_DIRECTED_RECV ? wanted->addr : FI_ADDR_UNSPEC;
    op->tag = wanted->tag;
    op->ignore = wanted->ignore;
    return op;
}

/* Takes the message that an earlier peek claimed. */
static ssize_t take_claimed(struct endpoint *ep, const struct fi_msg_tagged *wanted, uint64_t flags) {
    FOR_EACH(item, following, &ep->claimed) {
        struct unexpected *message = CONTAINER(item, struct unexpected, link);
        struct op *op;

        if (message->claimer != wanted->context)
            continue;
        op = receive_op(ep, wanted, flags, true);
        if (!op)
            return -FI_ENOMEM;
        if (flags & FI_DISCARD) {
            discard(message);
            op_end(op, 0, 0);
        } else {
            deliver_unexpected(op, message);
        }
        return 0;
    }
    return -FI_EINVAL;
}

ssize_t message_receive(struct endpoint *ep, const struct fi_msg_tagged *wanted, uint64_t flags, bool is_tagged) {
    uint64_t special = is_tagged ? FI_PEEK | FI_CLAIM | FI_DISCARD : 0;
    struct unexpected *message;
    struct op *op;

    if (!endpoint_works(ep))
        return -FI_EOPBADSTATE;
    if (wanted->iov_count > MOST_BUFFERS || flags & ~(RECEIVE_FLAGS | special))
        return -FI_EINVAL;
    if (ep->caps & FI_DIRECTED_RECV && wanted->addr != FI_ADDR_UNSPEC && !av_entry(ep->av, wanted->addr))
        return -FI_EINVAL;
    if (flags & special & FI_PEEK)
        return peek(ep, wanted, flags);
    if (flags & special & FI_CLAIM)
        return take_claimed(ep, wanted, flags);
    if (flags & special)
        return -FI_EINVAL;
    op = receive_op(ep, wanted, flags, is_tagged);
    if (!op)
        return -FI_ENOMEM;
    message = find_unexpected(ep, wanted, is_tagged);
    if (message)
        deliver_unexpected(op, message);
    else
        link_append(&ep->posted[is_tagged], &op->link);
    return 0;
}

bool message_cancel(struct endpoint *ep, void *context) {
    for (int i = 0; i < 2; i++) {
        FOR_EACH(item, following, &ep->posted[i]) {
            struct op *op = CONTAINER(item, struct op, link);

            if (op->context == context) {
                op_end(op, FI_ECANCELED, 0);
                return true;
            }
        }
    }
    return false;
}
