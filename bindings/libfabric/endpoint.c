/* Endpoints: what a program posts, and the operations that have not ended. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define GENERATION (1ULL << 32)

/* ---- Buffers ---- */

size_t iov_total(const struct iovec *iov, size_t count) {
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += iov[i].iov_len;
    return total;
}

void iov_write(const struct iovec *iov, size_t count, size_t place, const struct payload *payload, size_t skip, size_t length) {
    for (size_t i = 0; i < count && length > 0; i++) {
        size_t part;

        if (place >= iov[i].iov_len) {
            place -= iov[i].iov_len;
            continue;
        }
        part = iov[i].iov_len - place < length ? iov[i].iov_len - place : length;
        payload_copy(payload, skip, (uint8_t *)iov[i].iov_base + place, part);
        skip += part;
        length -= part;
        place = 0;
    }
}

/* ---- Operations ---- */

/* A peer names an operation by its number, which no later operation has. */
static struct op *op_make(struct endpoint *ep) {
    struct op *op = calloc(1, sizeof(*op));
    struct op **larger = NULL;

    if (op)
        larger = realloc(ep->ops, (ep->op_count + 1) * sizeof(struct op *));
    if (!larger) {
        free(op);
        return NULL;
    }
    ep->ops = larger;
    op->id = ep->op_count;
    ep->ops[ep->op_count++] = op;
    return op;
}

struct op *op_new(struct endpoint *ep, enum op_kind kind) {
    struct op *op;
    uint64_t id;

    if (link_is_empty(&ep->free_ops)) {
        op = op_make(ep);
        if (!op)
            return NULL;
    } else {
        op = CONTAINER(ep->free_ops.next, struct op, link);
        link_remove(&op->link);
    }
    id = op->id;
    memset(op, 0, sizeof(*op));
    op->id = id;
    op->endpoint = ep;
    op->is_in_use = true;
    op->kind = kind;
    op->source = FI_ADDR_UNSPEC;
    link_init(&op->link);
    link_init(&op->waiting);
    if (kind != OP_RECEIVE)
        ep->sends++;
    return op;
}

void op_free(struct op *op) {
    struct connection *connection = op->connection;
    struct endpoint *ep = op->endpoint;

    if (connection) {
        connection->references--;
        FOR_EACH(item, following, &connection->streams) {
            struct stream *stream = CONTAINER(item, struct stream, link);

            if (stream->op == op)
                stream_stop(connection, stream);
        }
    }
    op->connection = NULL;
    op->is_in_use = false;
    link_remove(&op->waiting);
    link_remove(&op->link);
    free(op->own_pieces);
    free(op->copy);
    op->own_pieces = NULL;
    op->copy = NULL;
    if (op->kind != OP_RECEIVE)
        ep->sends--;
    op->id += GENERATION;
    link_append(&ep->free_ops, &op->link);
}

struct op *op_find(const struct connection *connection, uint64_t id) {
    const struct endpoint *ep = connection->endpoint;
    uint64_t index = id & (GENERATION - 1);
    struct op *op = index < ep->op_count ? ep->ops[index] : NULL;

    return op && op->id == id && op->connection == connection ? op : NULL;
}

void op_attach(struct op *op, struct connection *connection) {
    op->connection = connection;
    connection->references++;
    link_append(&connection->ops, &op->link);
}

void report(struct endpoint *ep, enum op_kind kind, bool has_completion, const struct entry *entry) {
    static const int counts[] = {
        [OP_SEND] = COUNT_SEND, [OP_RECEIVE] = COUNT_RECEIVE, [OP_READ] = COUNT_READ, [OP_WRITE] = COUNT_WRITE};
    struct cq *cq = kind == OP_RECEIVE ? ep->receive_cq : ep->transmit_cq;
    struct cntr *counter = ep->counters[counts[kind]];

    if (cq && (has_completion || entry->error))
        cq_add(cq, entry);
    if (counter)
        *(entry->error ? &counter->errors : &counter->value) += 1;
}

void op_end(struct op *op, int error, int provider_error) {
    struct entry entry = {
        .context = op->context,
        .flags = op->flags,
        .source = FI_ADDR_NOTAVAIL,
        .error = error,
        .provider_error = provider_error,
    };

    if (op->kind == OP_RECEIVE) {
        entry.length = op->limit;
        entry.buffer = op->iov_count > 0 ? op->iov[0].iov_base : NULL;
        entry.tag = op->tag;
        entry.data = op->data;
        if (op->has_data)
            entry.flags |= FI_REMOTE_CQ_DATA;
        if (op->connection && op->endpoint->caps & FI_SOURCE)
            entry.source = wire_address(op->connection);
        if (error == FI_ETRUNC)
            entry.overflow = op->message - op->total;
    }
    report(op->endpoint, op->kind, op->has_completion, &entry);
    op_free(op);
}

struct connection *endpoint_peer(struct endpoint *ep, fi_addr_t address, int *error) {
    const struct av_entry *entry = av_entry(ep->av, address);

    *error = -FI_EINVAL;
    if (!entry)
        return NULL;
    if (address >= ep->outgoing_count) {
        struct connection **larger = realloc(ep->outgoing, ep->av->capacity * sizeof(*larger));

        *error = -FI_ENOMEM;
        if (!larger)
            return NULL;
        memset(larger + ep->outgoing_count, 0, (ep->av->capacity - ep->outgoing_count) * sizeof(*larger));
        ep->outgoing = larger;
        ep->outgoing_count = ep->av->capacity;
    }
    if (!ep->outgoing[address])
        ep->outgoing[address] = wire_connect(ep, &entry->name, error);
    return ep->outgoing[address];
}

/* ---- Messages ---- */

static ssize_t send_it(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags, bool is_tagged, bool has_context) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid);
    ssize_t status;

    pthread_mutex_lock(&process.lock);
    status = message_send(ep, message, flags, is_tagged, has_context);
    pthread_mutex_unlock(&process.lock);
    return status;
}

static ssize_t receive_it(struct fid_ep *fid, const struct fi_msg_tagged *message, uint64_t flags, bool is_tagged) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid);
    ssize_t status;

    pthread_mutex_lock(&process.lock);
    status = message_receive(ep, message, flags, is_tagged);
    pthread_mutex_unlock(&process.lock);
    return status;
}

static uint64_t transmit_flags(struct fid_ep *fid) { return CONTAINER(fid, struct endpoint, fid)->transmit_flags; }

static uint64_t receive_flags(struct fid_ep *fid) { return CONTAINER(fid, struct endpoint, fid)->receive_flags; }

#define UNUSED(name) (void)(name)

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t source, uint64_t tag,
                            uint64_t ignore, void *context) {
    struct fi_msg_tagged message = {iov, desc, count, source, tag, ignore, context, 0};

    return receive_it(ep, &message, receive_flags(ep), true);
}

static ssize_t tagged_recv(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t source, uint64_t tag,
                           uint64_t ignore, void *context) {
    struct iovec iov = {buffer, length};

    UNUSED(desc);
    return tagged_recvv(ep, &iov, NULL, 1, source, tag, ignore, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *message, uint64_t flags) {
    return receive_it(ep, message, flags, true);
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, uint64_t tag,
                            void *context) {
    struct fi_msg_tagged message = {iov, desc, count, to, tag, 0, context, 0};

    return send_it(ep, &message, transmit_flags(ep), true, true);
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t to, uint64_t tag,
                           void *context) {
    struct iovec iov = {(void *)(uintptr_t)buffer, length};

    UNUSED(desc);
    return tagged_sendv(ep, &iov, NULL, 1, to, tag, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *message, uint64_t flags) {
    return send_it(ep, message, flags, true, true);
}

static ssize_t send_simple(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to, uint64_t tag,
                           void *context, uint64_t flags, bool is_tagged, bool has_context) {
    struct iovec iov = {(void *)(uintptr_t)buffer, length};
    struct fi_msg_tagged message = {&iov, NULL, 1, to, tag, 0, context, data};

    return send_it(ep, &message, flags, is_tagged, has_context);
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t to, uint64_t tag) {
    return send_simple(ep, buffer, length, 0, to, tag, NULL, FI_INJECT, true, false);
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t to,
                               uint64_t tag, void *context) {
    UNUSED(desc);
    return send_simple(ep, buffer, length, data, to, tag, context, transmit_flags(ep) | FI_REMOTE_CQ_DATA, true, true);
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to, uint64_t tag) {
    return send_simple(ep, buffer, length, data, to, tag, NULL, FI_INJECT | FI_REMOTE_CQ_DATA, true, false);
}

static struct fi_ops_tagged tagged_ops = {
    .size = sizeof(struct fi_ops_tagged),
    .recv = tagged_recv,
    .recvv = tagged_recvv,
    .recvmsg = tagged_recvmsg,
    .send = tagged_send,
    .sendv = tagged_sendv,
    .sendmsg = tagged_sendmsg,
    .inject = tagged_inject,
    .senddata = tagged_senddata,
    .injectdata = tagged_injectdata,
};

static ssize_t msg_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t source, void *context) {
    struct fi_msg_tagged message = {iov, desc, count, source, 0, 0, context, 0};

    return receive_it(ep, &message, receive_flags(ep), false);
}

static ssize_t msg_recv(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t source, void *context) {
    struct iovec iov = {buffer, length};

    UNUSED(desc);
    return msg_recvv(ep, &iov, NULL, 1, source, context);
}

static ssize_t msg_recvmsg(struct fid_ep *ep, const struct fi_msg *plain, uint64_t flags) {
    struct fi_msg_tagged message = {plain->msg_iov, plain->desc, plain->iov_count, plain->addr, 0, 0, plain->context, plain->data};

    return receive_it(ep, &message, flags, false);
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, void *context) {
    struct fi_msg_tagged message = {iov, desc, count, to, 0, 0, context, 0};

    return send_it(ep, &message, transmit_flags(ep), false, true);
}

static ssize_t msg_send(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t to, void *context) {
    UNUSED(desc);
    return send_simple(ep, buffer, length, 0, to, 0, context, transmit_flags(ep), false, true);
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *plain, uint64_t flags) {
    struct fi_msg_tagged message = {plain->msg_iov, plain->desc, plain->iov_count, plain->addr, 0, 0, plain->context, plain->data};

    return send_it(ep, &message, flags, false, true);
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t to) {
    return send_simple(ep, buffer, length, 0, to, 0, NULL, FI_INJECT, false, false);
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t to,
                            void *context) {
    UNUSED(desc);
    return send_simple(ep, buffer, length, data, to, 0, context, transmit_flags(ep) | FI_REMOTE_CQ_DATA, false, true);
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to) {
    return send_simple(ep, buffer, length, data, to, 0, NULL, FI_INJECT | FI_REMOTE_CQ_DATA, false, false);
}

static struct fi_ops_msg msg_ops = {
    .size = sizeof(struct fi_ops_msg),
    .recv = msg_recv,
    .recvv = msg_recvv,
    .recvmsg = msg_recvmsg,
    .send = msg_send,
    .sendv = msg_sendv,
    .sendmsg = msg_sendmsg,
    .inject = msg_inject,
    .senddata = msg_senddata,
    .injectdata = msg_injectdata,
};

/* ---- Reads and writes ---- */

static ssize_t move_it(struct fid_ep *fid, enum op_kind kind, const struct fi_msg_rma *message, uint64_t flags, bool has_context) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid);
    ssize_t status;

    pthread_mutex_lock(&process.lock);
    status = rma_start(ep, kind, message, flags, has_context);
    pthread_mutex_unlock(&process.lock);
    return status;
}

static ssize_t move_vector(struct fid_ep *ep, enum op_kind kind, const struct iovec *iov, size_t count, fi_addr_t peer,
                           uint64_t address, uint64_t key, uint64_t data, void *context, uint64_t flags, bool has_context) {
    struct fi_rma_iov remote = {address, count <= MOST_BUFFERS ? iov_total(iov, count) : 0, key};
    struct fi_msg_rma message = {iov, NULL, count, peer, &remote, 1, context, data};

    return move_it(ep, kind, &message, flags, has_context);
}

static ssize_t rma_readv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t address,
                         uint64_t key, void *context) {
    UNUSED(desc);
    return move_vector(ep, OP_READ, iov, count, peer, address, key, 0, context, transmit_flags(ep) & ~FI_INJECT, true);
}

static ssize_t rma_read(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t peer, uint64_t address, uint64_t key,
                        void *context) {
    struct iovec iov = {buffer, length};

    UNUSED(desc);
    return rma_readv(ep, &iov, NULL, 1, peer, address, key, context);
}

static ssize_t rma_readmsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags) {
    return move_it(ep, OP_READ, message, flags, true);
}

static ssize_t rma_writev(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t peer, uint64_t address,
                          uint64_t key, void *context) {
    UNUSED(desc);
    return move_vector(ep, OP_WRITE, iov, count, peer, address, key, 0, context, transmit_flags(ep), true);
}

static ssize_t write_simple(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t peer, uint64_t address,
                            uint64_t key, void *context, uint64_t flags, bool has_context) {
    struct iovec iov = {(void *)(uintptr_t)buffer, length};

    return move_vector(ep, OP_WRITE, &iov, 1, peer, address, key, data, context, flags, has_context);
}

static ssize_t rma_write(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t peer, uint64_t address,
                         uint64_t key, void *context) {
    UNUSED(desc);
    return write_simple(ep, buffer, length, 0, peer, address, key, context, transmit_flags(ep), true);
}

static ssize_t rma_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags) {
    return move_it(ep, OP_WRITE, message, flags, true);
}

static ssize_t rma_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t peer, uint64_t address, uint64_t key) {
    return write_simple(ep, buffer, length, 0, peer, address, key, NULL, FI_INJECT, false);
}

static ssize_t rma_writedata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t peer,
                             uint64_t address, uint64_t key, void *context) {
    UNUSED(desc);
    return write_simple(ep, buffer, length, data, peer, address, key, context, transmit_flags(ep) | FI_REMOTE_CQ_DATA, true);
}

static ssize_t rma_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t peer, uint64_t address,
                              uint64_t key) {
    return write_simple(ep, buffer, length, data, peer, address, key, NULL, FI_INJECT | FI_REMOTE_CQ_DATA, false);
}

static struct fi_ops_rma rma_ops = {
    .size = sizeof(struct fi_ops_rma),
    .read = rma_read,
    .readv = rma_readv,
    .readmsg = rma_readmsg,
    .write = rma_write,
    .writev = rma_writev,
    .writemsg = rma_writemsg,
    .inject = rma_inject,
    .writedata = rma_writedata,
    .injectdata = rma_injectdata,
};

/* ---- The endpoint itself ---- */

static bool cancel_move(struct endpoint *ep, const void *context) {
    for (size_t i = 0; i < ep->op_count; i++) {
        struct op *op = ep->ops[i];

        if (op->is_in_use && (op->kind == OP_READ || op->kind == OP_WRITE) && op->context == context && !op->error) {
            rma_cancel(op);
            return true;
        }
    }
    return false;
}

static ssize_t ep_cancel(fid_t fid, void *context) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid.fid);
    ssize_t status = -FI_EOPBADSTATE;

    pthread_mutex_lock(&process.lock);
    if (endpoint_works(ep))
        status = message_cancel(ep, context) || cancel_move(ep, context) ? 0 : -FI_ENOENT;
    pthread_mutex_unlock(&process.lock);
    return status;
}

static int no_getopt(fid_t fid, int level, int name, void *value, size_t *length) {
    UNUSED(fid);
    UNUSED(level);
    UNUSED(name);
    UNUSED(value);
    UNUSED(length);
    return -FI_ENOPROTOOPT;
}

static int no_setopt(fid_t fid, int level, int name, const void *value, size_t length) {
    UNUSED(fid);
    UNUSED(level);
    UNUSED(name);
    UNUSED(value);
    UNUSED(length);
    return -FI_ENOPROTOOPT;
}

static int no_tx_ctx(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **made, void *context) {
    UNUSED(ep);
    UNUSED(index);
    UNUSED(attr);
    UNUSED(made);
    UNUSED(context);
    return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **made, void *context) {
    UNUSED(ep);
    UNUSED(index);
    UNUSED(attr);
    UNUSED(made);
    UNUSED(context);
    return -FI_ENOSYS;
}

static ssize_t rx_size_left(struct fid_ep *ep) {
    UNUSED(ep);
    return MOST_SENDS;
}

static ssize_t tx_size_left(struct fid_ep *fid) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid);

    return ep->is_enabled ? MOST_SENDS - (ssize_t)ep->sends : -FI_EOPBADSTATE;
}

static struct fi_ops_ep ep_ops = {
    .size = sizeof(struct fi_ops_ep),
    .cancel = ep_cancel,
    .getopt = no_getopt,
    .setopt = no_setopt,
    .tx_ctx = no_tx_ctx,
    .rx_ctx = no_rx_ctx,
    .rx_size_left = rx_size_left,
    .tx_size_left = tx_size_left,
};

static int no_setname(fid_t fid, void *address, size_t length) {
    UNUSED(fid);
    UNUSED(address);
    UNUSED(length);
    return -FI_ENOSYS;
}

static int ep_getname(fid_t fid, void *address, size_t *length) {
    const struct endpoint *ep = CONTAINER(fid, struct endpoint, fid.fid);
    size_t bytes = strlen(ep->name.text) + 1, room = *length;

    *length = bytes;
    if (!address || room < bytes)
        return -FI_ETOOSMALL;
    memcpy(address, ep->name.text, bytes);
    return 0;
}

static int no_getpeer(struct fid_ep *ep, void *address, size_t *length) {
    UNUSED(ep);
    UNUSED(address);
    UNUSED(length);
    return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *address, const void *parameter, size_t length) {
    UNUSED(ep);
    UNUSED(address);
    UNUSED(parameter);
    UNUSED(length);
    return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *parameter, size_t length) {
    UNUSED(ep);
    UNUSED(parameter);
    UNUSED(length);
    return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags) {
    UNUSED(ep);
    UNUSED(flags);
    return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep) {
    UNUSED(pep);
    return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *parameter, size_t length) {
    UNUSED(pep);
    UNUSED(handle);
    UNUSED(parameter);
    UNUSED(length);
    return -FI_ENOSYS;
}

static struct fi_ops_cm cm_ops = {
    .size = offsetof(struct fi_ops_cm, join),
    .setname = no_setname,
    .getname = ep_getname,
    .getpeer = no_getpeer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
};

static int bind_cq(struct endpoint *ep, struct cq *cq, uint64_t flags) {
    bool is_selective = flags & FI_SELECTIVE_COMPLETION;

    if (cq->domain != ep->domain || flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) || !(flags & (FI_TRANSMIT | FI_RECV)))
        return -FI_EINVAL;
    if ((flags & FI_TRANSMIT && ep->transmit_cq) || (flags & FI_RECV && ep->receive_cq))
        return -FI_EINVAL;
    if (flags & FI_TRANSMIT) {
        ep->transmit_cq = cq;
        ep->transmit_is_selective = is_selective;
        cq->references++;
    }
    if (flags & FI_RECV) {
        ep->receive_cq = cq;
        ep->receive_is_selective = is_selective;
        cq->references++;
    }
    return 0;
}

static int bind_cntr(struct endpoint *ep, struct cntr *cntr, uint64_t flags) {
    static const uint64_t kinds[COUNTERS] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE};

    /* What peers read and write is not counted: the engine does not tell. */
    if (flags & (FI_REMOTE_READ | FI_REMOTE_WRITE))
        return -FI_ENOSYS;
    if (cntr->domain != ep->domain || flags & ~(FI_SEND | FI_RECV | FI_READ | FI_WRITE) || flags == 0)
        return -FI_EINVAL;
    for (int i = 0; i < COUNTERS; i++) {
        if (flags & kinds[i] && ep->counters[i])
            return -FI_EINVAL;
    }
    for (int i = 0; i < COUNTERS; i++) {
        if (flags & kinds[i]) {
            ep->counters[i] = cntr;
            cntr->references++;
        }
    }
    return 0;
}

static int bind_it(struct endpoint *ep, struct fid *other, uint64_t flags) {
    struct av *av;

    if (ep->is_enabled)
        return -FI_EOPBADSTATE;
    switch (other->fclass) {
    case FI_CLASS_AV:
        av = CONTAINER(other, struct av, fid.fid);
        if (ep->av || av->domain != ep->domain)
            return -FI_EINVAL;
        ep->av = av;
        av->references++;
        return 0;
    case FI_CLASS_CQ:
        return bind_cq(ep, CONTAINER(other, struct cq, fid.fid), flags);
    case FI_CLASS_CNTR:
        return bind_cntr(ep, CONTAINER(other, struct cntr, fid.fid), flags);
    case FI_CLASS_EQ:
        return 0;
    default:
        return -FI_EINVAL;
    }
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    int status;

    pthread_mutex_lock(&process.lock);
    status = bind_it(CONTAINER(fid, struct endpoint, fid.fid), other, flags);
    pthread_mutex_unlock(&process.lock);
    return status;
}

static int enable(struct endpoint *ep) {
    bool sends = ep->transmit_cq || ep->counters[COUNT_SEND] || ep->counters[COUNT_READ] || ep->counters[COUNT_WRITE];
    int status;

    if (ep->is_enabled || ep->is_closing || process.is_child)
        return -FI_EOPBADSTATE;
    if (!ep->av)
        return -FI_ENOAV;
    if (!sends && !ep->receive_cq && !ep->counters[COUNT_RECEIVE])
        return -FI_ENOCQ;
    status = wire_listen(ep);
    ep->is_enabled = ep->has_sockets = status == 0;
    return status;
}

static int ep_control(struct fid *fid, int command, void *argument) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid.fid);
    int status = -FI_ENOSYS;

    pthread_mutex_lock(&process.lock);
    if (command == FI_ENABLE)
        status = enable(ep);
    if (command == FI_GETOPSFLAG && argument) {
        *(uint64_t *)argument = *(uint64_t *)argument & FI_RECV ? ep->receive_flags : ep->transmit_flags;
        status = 0;
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

static void free_unexpected(struct link *list) {
    FOR_EACH(item, following, list) {
        struct unexpected *message = CONTAINER(item, struct unexpected, link);

        link_remove(item);
        message->connection->references--;
        account_drop(message->connection, sizeof(*message) + message->record.length);
        free(message);
    }
}

/* Takes all operations out of what uses them. libfabric drops them without completions. */
static void discard_all(struct endpoint *ep) {
    for (size_t i = 0; i < ep->op_count; i++) {
        struct op *op = ep->ops[i];

        if (op->connection)
            op->connection->references--;
        op->connection = NULL;
        op->remote = NULL;
        op->is_discarded = true;
        link_remove(&op->waiting);
        link_remove(&op->link);
    }
}

static void free_all(struct endpoint *ep) {
    for (size_t i = 0; i < ep->op_count; i++) {
        free(ep->ops[i]->own_pieces);
        free(ep->ops[i]->copy);
        free(ep->ops[i]);
    }
    free(ep->ops);
    free(ep->outgoing);
    if (ep->av)
        ep->av->references--;
    if (ep->transmit_cq)
        ep->transmit_cq->references--;
    if (ep->receive_cq)
        ep->receive_cq->references--;
    for (int i = 0; i < COUNTERS; i++) {
        if (ep->counters[i])
            ep->counters[i]->references--;
    }
    ep->domain->references--;
}

static int ep_close(struct fid *fid) {
    struct endpoint *ep = CONTAINER(fid, struct endpoint, fid.fid);
    bool is_settled = true;

    pthread_mutex_lock(&process.lock);
    if (process.is_torn) {
        /* Nothing of it can be freed. */
        ep->domain->references--;
        pthread_mutex_unlock(&process.lock);
        return 0;
    }
    /* What it sent is in memory that peers have. */
    link_remove(&ep->link);
    ep->is_enabled = false;
    if (!ep->is_closing)
        discard_all(ep);
    ep->is_closing = true;
    if (!process.is_child)
        is_settled = rma_settle(ep);
    if (!is_settled) {
        pthread_mutex_unlock(&process.lock);
        WARN("the engine still uses memory of an endpoint that is being closed: does the service run?\n");
        return -FI_EBUSY;
    }
    for (int i = 0; i < 2; i++)
        free_unexpected(&ep->unexpected[i]);
    free_unexpected(&ep->claimed);
    if (ep->has_sockets && process.is_child)
        wire_abandon(ep);
    else if (ep->has_sockets)
        wire_close(ep);
    free_all(ep);
    pthread_mutex_unlock(&process.lock);
    free(ep);
    return 0;
}

static struct fi_ops ep_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = ep_close,
    .bind = ep_bind,
    .control = ep_control,
    .ops_open = no_ops_open,
};

int endpoint_open(struct fid_domain *domain_fid, struct fi_info *info, struct fid_ep **fid, void *context) {
    struct domain *domain = CONTAINER(domain_fid, struct domain, fid);
    struct endpoint *ep;

    if (!info || !info->ep_attr || info->ep_attr->type != FI_EP_RDM || info->ep_attr->tx_ctx_cnt > 1 ||
        info->ep_attr->rx_ctx_cnt > 1)
        return -FI_EINVAL;
    ep = calloc(1, sizeof(*ep));
    if (!ep)
        return -FI_ENOMEM;
    ep->domain = domain;
    ep->caps = info->caps;
    ep->transmit_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    ep->receive_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
    wire_name_make(&ep->name);
    link_init(&ep->connections);
    for (int i = 0; i < 2; i++) {
        link_init(&ep->posted[i]);
        link_init(&ep->unexpected[i]);
    }
    link_init(&ep->claimed);
    link_init(&ep->free_ops);
    ep->fid = (struct fid_ep){
        .fid = {FI_CLASS_EP, context, &ep_fid_ops}, .ops = &ep_ops, .cm = &cm_ops, .msg = &msg_ops, .rma = &rma_ops, .tagged = &tagged_ops,
        .atomic = &unoffered_atomic_ops, .collective = &unoffered_collective_ops};
    pthread_mutex_lock(&process.lock);
    link_append(&domain->endpoints, &ep->link);
    domain->references++;
    pthread_mutex_unlock(&process.lock);
    *fid = &ep->fid;
    return 0;
}
