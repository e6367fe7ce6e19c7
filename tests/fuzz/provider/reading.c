/* The second reading of all that the provider took and sent, and of its completions. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

struct world *world;

static bool has_pattern(const uint8_t *bytes, size_t length, uint64_t which, uint64_t at) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != pattern(which, at + i))
            return false;
    }
    return true;
}

static void copy_out(const struct head *head, uint64_t ring_bytes, uint64_t place, void *to, size_t length) {
    for (size_t i = 0; i < length; i++)
        ((uint8_t *)to)[i] = ((const uint8_t *)head)[HEAD_BYTES + ((place + i) & (ring_bytes - 1))];
}

/* ---- Posts ---- */

static bool is_post(const void *context) {
    for (size_t i = 0; i < POSTS; i++) {
        if (context && world->posts[i] == context)
            return true;
    }
    return false;
}

static struct post *post_of(uint64_t id) {
    for (size_t i = 0; i < POSTS; i++) {
        if (world->posts[i] && world->posts[i]->id == id)
            return world->posts[i];
    }
    return NULL;
}

struct post *new_post(enum sort sort, size_t length) {
    for (size_t i = 0; i < POSTS; i++) {
        if (!world->posts[i]) {
            struct post *post = calloc(1, sizeof(*post));

            world->posts[i] = post;
            post->sort = sort;
            post->number = ++world->next_number;
            post->id = UINT64_MAX;
            post->length = length;
            link_init(&post->link);
            return post;
        }
    }
    return NULL;
}

/* Frees the buffer too: the provider may touch it no more. */
void free_post(struct post *post) {
    for (size_t i = 0; i < POSTS; i++) {
        if (world->posts[i] == post)
            world->posts[i] = NULL;
    }
    link_remove(&post->link);
    if (post->is_in_frame)
        world->slots &= ~(1u << ((size_t)(post->buffer - played.memory) - SLOTS_AT) / SLOT_BYTES);
    else
        free(post->buffer);
    free(post->content);
    free(post);
}

/* The number that the provider gave the operation. It may have ended. */
void name_post(struct post *post) {
    const struct endpoint *ep = endpoint();

    for (size_t i = 0; i < ep->op_count; i++) {
        if (!ep->ops[i]->is_in_use || ep->ops[i]->context != post)
            continue;
        post->id = ep->ops[i]->id;
        /* No operation has the number of an earlier one, which a peer may still name. */
        CHECK(i >= 2 * POSTS || post->id >= world->next_ids[i]);
        if (i < 2 * POSTS)
            world->next_ids[i] = post->id + 1;
    }
}

void due(struct post *post, int error) {
    post->is_due = true;
    post->error = error;
}

/* ---- What the provider has to do with the records that it took ---- */

bool matches(const struct post *post, const struct peer *peer, const struct record *record) {
    bool is_from = post->source == FI_ADDR_UNSPEC || strcmp(peer->name.text, world->listener_name.text) == 0;

    return ((post->tag ^ record->tag) & ~post->ignore) == 0 && is_from;
}

void deliver(struct post *post, struct peer *peer, const struct record *record, const uint8_t *bytes) {
    link_remove(&post->link);
    post->peer = peer;
    post->message = *record;
    post->limit = record->total < post->length ? record->total : post->length;
    post->content = calloc(1, post->limit + 1);
    if (record->kind == RECORD_EAGER) {
        memcpy(post->content, bytes, post->limit);
        due(post, record->total > post->length ? FI_ETRUNC : 0);
        return;
    }
    /* Its pieces may be taken, or else the bytes are asked for. */
    post->is_vague = record->flags & RECORD_HAS_PIECES && !played.is_other;
    if (post->limit == 0 && !post->is_vague)
        due(post, record->total > post->length ? FI_ETRUNC : 0);
}

static void arrived(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    int list = record->flags & RECORD_TAGGED ? 1 : 0;
    struct message *message;

    if (record->kind == RECORD_EAGER ? record->total != record->length : record->total == 0 || record->total > MOST_MESSAGE) {
        peer->must_end = true;
        return;
    }
    if (record->kind == RECORD_LONG || record->flags & RECORD_ACKNOWLEDGE)
        peer->owed++;
    FOR_EACH(item, following, &world->posted[list]) {
        struct post *post = CONTAINER(item, struct post, link);

        if (matches(post, peer, record)) {
            deliver(post, peer, record, bytes);
            return;
        }
    }
    message = malloc(sizeof(*message) + record->length);
    *message = (struct message){.peer = peer, .record = *record};
    memcpy(message->bytes, bytes, record->length);
    link_append(&world->unexpected[list], &message->link);
}

static void got_bytes(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    struct post *post = post_of(record->id);

    if (!post || post->is_due || post->peer != peer || post->sort != RECEIVE)
        return;
    if (post->is_vague) {
        peer->may_end = true;
        return;
    }
    if (record->address != post->done || record->length > post->limit - post->done || record->length == 0) {
        peer->must_end = true;
        return;
    }
    memcpy(post->content + post->done, bytes, record->length);
    post->done += record->length;
    if (post->done == post->limit)
        due(post, post->message.total > post->length ? FI_ETRUNC : 0);
}

static void answered(struct peer *peer, const struct record *record) {
    struct post *post = post_of(record->id);

    peer->may_end = true;
    if (!post || post->sort != SEND)
        return;
    post->is_answered |= record->kind == RECORD_DONE;
    if (record->kind == RECORD_GO && peer->asked_count < POSTS && record->total <= post->length)
        peer->asked[peer->asked_count++] = (struct asked){record->key, record->total, 0, post->number};
}

static bool is_range(const struct fid_mr *mr, uint64_t key, const struct record *record, uint64_t length, uint8_t **at) {
    const struct region_handle *region = mr ? CONTAINER(mr, struct region_handle, fid) : NULL;

    if (!region || region->fid.key != key || record->key != key || record->address > region->length ||
        length > region->length - record->address)
        return false;
    *at = region->start + record->address;
    return true;
}

/* Requests that only a side that connected may make. */
static void requested(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    uint8_t *at;

    switch (record->kind) {
    case RECORD_OPEN:
        peer->opens++;
        break;
    case RECORD_READ:
        if (record->total > 0 && is_range(world->readable, READABLE_KEY, record, record->total, &at) && peer->wanted_count < POSTS)
            peer->wanted[peer->wanted_count++] = (struct wanted){record->id, record->tag, record->total, 0, at};
        /* Refused, or cut off when the region is closed. */
        peer->owed++;
        break;
    case RECORD_WRITE:
        if (is_range(world->writable, WRITABLE_KEY, record, record->length, &at))
            memcpy(world->shadow + (at - played.memory), bytes, record->length);
        peer->owed++;
        break;
    case RECORD_IMMEDIATE:
        if (world->immediate_count == 4 * POSTS)
            world->is_over = true;
        else
            world->immediates[world->immediate_count++] = (struct immediate){record->total, record->data};
        break;
    case RECORD_FORGET:
        break;
    default:
        peer->must_end = true;
    }
}

static void took(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    switch (record->kind) {
    case RECORD_DATA:
        if (peer->is_receiver)
            peer->may_end = true;
        else
            got_bytes(peer, record, bytes);
        break;
    case RECORD_GO:
    case RECORD_DONE:
        if (peer->is_receiver)
            answered(peer, record);
        else
            peer->must_end = true;
        break;
    case RECORD_OPENED:
    case RECORD_CLOSED:
        peer->may_end = true;
        peer->must_end = !peer->is_receiver;
        break;
    default:
        if (peer->is_receiver)
            peer->must_end = true;
        else if (record->kind == RECORD_EAGER || record->kind == RECORD_LONG)
            arrived(peer, record, bytes);
        else
            requested(peer, record, bytes);
    }
}

/* Reads what the provider took of a peer's ring. */
static void read_taken(struct peer *peer) {
    static uint8_t bytes[MOST_PAYLOAD];
    uint64_t consumed = atomic_load(&((struct head *)(uintptr_t)peer->theirs)->consumed);
    uint64_t produced = atomic_load(&peer->head->produced);
    struct record record;

    while (peer->taken != consumed) {
        /* Nothing is taken after the record that broke a rule, and none that is not there. */
        CHECK(!peer->must_end && produced - peer->taken <= OWN_RING_BYTES && produced - peer->taken >= RECORD_BYTES);
        copy_out(peer->head, OWN_RING_BYTES, peer->taken, &record, sizeof(record));
        CHECK(record.length <= MOST_PAYLOAD && RECORD_BYTES + padded(record.length) <= produced - peer->taken);
        copy_out(peer->head, OWN_RING_BYTES, peer->taken + RECORD_BYTES, bytes, record.length);
        took(peer, &record, bytes);
        peer->taken += RECORD_BYTES + padded(record.length);
        CHECK(consumed - peer->taken <= OWN_RING_BYTES);
    }
    if (produced != peer->taken && produced - peer->taken >= RECORD_BYTES) {
        copy_out(peer->head, OWN_RING_BYTES, peer->taken, &record, sizeof(record));
        if (produced - peer->taken > OWN_RING_BYTES || record.length > MOST_PAYLOAD ||
            RECORD_BYTES + padded(record.length) > produced - peer->taken)
            peer->may_end = true;
    }
}

/* ---- What the provider says ---- */

static void read_answer(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    struct wanted *wanted = &peer->wanted[0];
    struct post *post;

    switch (record->kind) {
    case RECORD_GO:
        post = post_of(record->key);
        /* The peer may read it after the operation has ended. */
        if (post && post->sort == RECEIVE && post->peer == peer)
            CHECK(record->id == post->message.id && record->total == post->limit && record->total > 0);
        CHECK(peer->owed > 0);
        break;
    case RECORD_DONE:
        CHECK(peer->owed-- > 0);
        if (peer->wanted_count > 0 && wanted->id == record->id && record->tag == FI_EKEYREJECTED &&
            record->total == wanted->total - wanted->sent && !world->readable)
            memmove(wanted, wanted + 1, --peer->wanted_count * sizeof(*wanted));
        break;
    case RECORD_DATA:
        CHECK(peer->wanted_count > 0 && record->id == wanted->id && record->address == wanted->tag + wanted->sent);
        CHECK(record->length > 0 && record->length <= PART_BYTES && record->length <= wanted->total - wanted->sent);
        CHECK(memcmp(bytes, wanted->bytes + wanted->sent, record->length) == 0);
        wanted->sent += record->length;
        if (wanted->sent == wanted->total)
            memmove(wanted, wanted + 1, --peer->wanted_count * sizeof(*wanted));
        break;
    case RECORD_OPENED: {
        uint64_t total = 0;

        CHECK(peer->opens-- > 0);
        CHECK(record->tag != 0 || record->key == READABLE_KEY || record->key == WRITABLE_KEY);
        CHECK(record->tag == 0 || record->length == 0);
        for (size_t i = 0; i < record->length / 16; i++) {
            uint64_t piece[2];

            memcpy(piece, bytes + i * 16, sizeof(piece));
            total += piece[1];
            CHECK(piece[0] == 0 || played_granted(piece[0], peer->session));
        }
        CHECK(record->length % 16 == 0 && (record->tag != 0 || total == record->total));
        break;
    }
    case RECORD_CLOSED:
        CHECK(record->key == READABLE_KEY || record->key == WRITABLE_KEY);
        break;
    default:
        CHECK(!"a record that is no answer");
    }
}

/* Bytes of a long message that the peer asked for. */
static bool read_asked(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    for (size_t i = 0; i < peer->asked_count; i++) {
        struct asked *asked = &peer->asked[i];

        if (asked->key == record->id && asked->sent == record->address && record->length <= asked->total - asked->sent &&
            has_pattern(bytes, record->length, asked->number, asked->sent)) {
            asked->sent += record->length;
            for (size_t post = 0; post < POSTS; post++) {
                if (world->posts[post] && world->posts[post]->number == asked->number)
                    world->posts[post]->is_sent |= asked->sent == asked->total;
            }
            return true;
        }
    }
    return false;
}

static struct sent *sent_of(enum sort sort, const struct peer *peer, const struct record *record) {
    for (size_t i = 0; i < world->sent_count; i++) {
        struct sent *sent = &world->sents[i];

        if (sent->sort != sort || sent->ordinal != peer->ordinal)
            continue;
        if (sort == SEND ? !sent->is_seen : sent->key == record->key && sent->id == record->id)
            return sent;
    }
    return NULL;
}

static void read_request(struct peer *peer, const struct record *record, const uint8_t *bytes) {
    bool is_message = record->kind == RECORD_EAGER || record->kind == RECORD_LONG;
    struct sent *sent = sent_of(is_message ? SEND : MOVE, peer, record);
    bool is_known = false;

    switch (record->kind) {
    case RECORD_EAGER:
    case RECORD_LONG:
        /* In the order in which they were posted, and each once. */
        CHECK(sent && record->total == sent->length && record->tag == sent->tag);
        CHECK(!(record->flags & RECORD_TAGGED) == !sent->is_tagged);
        sent->is_seen = true;
        if (record->kind == RECORD_EAGER)
            CHECK(record->length == sent->length && has_pattern(bytes, record->length, sent->number, 0));
        break;
    case RECORD_DATA:
        CHECK(record->length > 0 && record->length <= PART_BYTES && read_asked(peer, record, bytes));
        break;
    case RECORD_OPEN:
        for (size_t i = 0; i < world->sent_count; i++)
            is_known |= world->sents[i].sort == MOVE && world->sents[i].key == record->key;
        CHECK(is_known);
        break;
    case RECORD_READ:
        CHECK(sent && sent->kind == OP_READ && record->address - sent->address == record->tag);
        CHECK(record->tag <= sent->length && record->total <= sent->length - record->tag && record->total > 0);
        break;
    case RECORD_WRITE:
        CHECK(sent && sent->kind == OP_WRITE && record->address - sent->address <= sent->length);
        CHECK(record->length <= sent->length - (record->address - sent->address));
        CHECK(has_pattern(bytes, record->length, sent->number, record->address - sent->address));
        break;
    case RECORD_IMMEDIATE:
    case RECORD_FORGET:
        break;
    default:
        CHECK(!"a record that is no request");
    }
}

/* The provider's end of a connection that lives, or null. */
static const struct connection *connection_of(const struct peer *peer) {
    const struct endpoint *ep = endpoint();
    const struct connection *last = ep->outgoing_count > 0 ? ep->outgoing[0] : NULL;

    if (peer->is_receiver)
        return peer->ordinal == played.connects && last && !last->is_dead ? last : NULL;
    FOR_EACH(item, following, &ep->connections) {
        const struct connection *connection = CONTAINER(item, struct connection, link);

        if (!connection->is_outgoing && !connection->is_dead && strcmp(connection->name.text, peer->name.text) == 0)
            return connection;
    }
    return NULL;
}

/* Reads what the provider wrote. */
static void read_sent(struct peer *peer) {
    static uint8_t bytes[MOST_PAYLOAD];
    uint64_t produced = atomic_load(&((struct head *)(uintptr_t)peer->theirs)->produced);
    struct record record;

    const struct connection *connection = connection_of(peer);
    uint64_t consumed = connection && !connection->theirs ? 0 : atomic_load(&peer->head->consumed);

    /* It overwrites nothing that the peer did not say to have read, and believes no count of what was not sent. */
    if (produced != peer->read && connection)
        CHECK(peer->read - consumed <= THEIR_RING_BYTES && produced - consumed <= THEIR_RING_BYTES);
    while (peer->read != produced) {
        CHECK(produced - peer->read >= RECORD_BYTES);
        copy_out(peer->theirs, THEIR_RING_BYTES, peer->read, &record, sizeof(record));
        CHECK(record.length <= MOST_PAYLOAD && RECORD_BYTES + padded(record.length) <= produced - peer->read);
        copy_out(peer->theirs, THEIR_RING_BYTES, peer->read + RECORD_BYTES, bytes, record.length);
        if (peer->is_receiver)
            read_request(peer, &record, bytes);
        else
            read_answer(peer, &record, bytes);
        peer->read += RECORD_BYTES + padded(record.length);
    }
}

/* ---- Connections ---- */

/* The provider's memory comes with its greeting. */
void take_greeting(struct peer *peer) {
    struct greeting greeting;
    struct iovec iov = {&greeting, sizeof(greeting)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    void *mapped;
    int memfd;

    if (recvmsg(peer->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(greeting))
        return;
    CHECK(message.msg_controllen >= CMSG_LEN(sizeof(int)));
    memcpy(&memfd, CMSG_DATA(&control.header), sizeof(memfd));
    CHECK(greeting.magic == MAGIC && greeting.ring_bytes == THEIR_RING_BYTES);
    CHECK(strcmp(greeting.name.text, endpoint()->name.text) == 0);
    CHECK(mmap(NULL, HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0) == MAP_FAILED);
    mapped = mmap(NULL, HEAD_BYTES + THEIR_RING_BYTES, PROT_READ, MAP_SHARED, memfd, 0);
    CHECK(mapped != MAP_FAILED);
    peer->theirs = mapped;
    close(memfd);
}


/* A connection is lost: what waits for its bytes has failed, and its long messages are gone. */
static void lose(struct peer *peer) {
    peer->is_dead = true;
    for (size_t i = 0; i < POSTS; i++) {
        struct post *post = world->posts[i];

        if (post && post->peer == peer && !post->is_due && !post->is_vague)
            due(post, FI_ECONNRESET);
    }
    for (int i = 0; i < 3; i++) {
        FOR_EACH(item, following, i < 2 ? &world->unexpected[i] : &world->claimed) {
            struct message *message = CONTAINER(item, struct message, link);

            if (message->peer == peer && message->record.kind == RECORD_LONG) {
                link_remove(item);
                free(message);
            }
        }
    }
}

void look_at(struct peer *peer) {
    if (!peer->theirs)
        take_greeting(peer);
    if (!peer->theirs || peer->is_dead)
        return;
    read_taken(peer);
    read_sent(peer);
    if (peer->has_greeted && !connection_of(peer)) {
        CHECK(peer->must_end || peer->may_end);
        lose(peer);
    }
    CHECK(!peer->must_end || peer->is_dead);
}

/* ---- Completions ---- */

static void check_receive(const struct post *post, const struct fi_cq_tagged_entry *entry, int error, fi_addr_t source) {
    bool is_known = post->peer && strcmp(post->peer->name.text, world->listener_name.text) == 0;

    CHECK(post->is_due || post->is_vague);
    if (post->is_due)
        CHECK(error == post->error);
    if (error != 0 && error != FI_ETRUNC)
        return;
    CHECK(entry->len == post->limit && entry->tag == post->message.tag && entry->data == post->message.data);
    CHECK(!(entry->flags & FI_REMOTE_CQ_DATA) == !(post->message.flags & RECORD_HAS_DATA));
    CHECK(!(entry->flags & FI_TAGGED) == !post->is_tagged);
    if (!post->is_vague)
        CHECK(memcmp(post->buffer, post->content, post->limit) == 0);
    if (error == 0)
        CHECK(source == (is_known ? 0 : FI_ADDR_NOTAVAIL));
}

static void completed(const struct fi_cq_tagged_entry *entry, int error, fi_addr_t source) {
    const struct immediate *immediate = &world->immediates[world->immediate_seen];
    struct post *post = entry->op_context;

    if (!post) {
        CHECK(world->immediate_seen++ < world->immediate_count && error == 0);
        CHECK(entry->len == immediate->length && entry->data == immediate->data);
        return;
    }
    if ((uint8_t *)post >= world->peeks && (uint8_t *)post < world->peeks + sizeof(world->peeks)) {
        CHECK(!world->has_peeked);
        world->has_peeked = true;
        world->peeked = *entry;
        world->peeked.flags = (uint64_t)error;
        return;
    }
    /* Not a second time. */
    CHECK(is_post(post));
    if (post->sort == RECEIVE)
        check_receive(post, entry, error, source);
    else if (post->sort == SEND && error == 0 && (post->length > EAGER_BYTES || post->is_acknowledged))
        CHECK(post->is_answered || (post->is_sent && !post->is_acknowledged));
    free_post(post);
}

static void take_completions(void) {
    const struct cq *cq = CONTAINER(world->cq, struct cq, fid);
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry failed;
    fi_addr_t source;

    /* With a completion there, reading makes no progress. */
    while (cq->count > 0) {
        ssize_t taken = fi_cq_readfrom(world->cq, &entry, 1, &source);

        if (taken == 1) {
            completed(&entry, 0, source);
            continue;
        }
        CHECK(taken == -FI_EAVAIL && fi_cq_readerr(world->cq, &failed, 0) == 1);
        entry = (struct fi_cq_tagged_entry){failed.op_context, failed.flags, failed.len, failed.buf, failed.data, failed.tag};
        completed(&entry, failed.err, FI_ADDR_NOTAVAIL);
    }
    for (size_t i = 0; i < POSTS; i++)
        CHECK(!world->posts[i] || !world->posts[i]->is_due);
    CHECK(world->immediate_seen == world->immediate_count);
}

static void check_left(void) {
    size_t left = 0;

    for (int i = 0; i < 2; i++) {
        FOR_EACH(item, following, &world->unexpected[i]) {
            size_t length = CONTAINER(item, struct message, link)->record.length;

            left += length < 4096 ? 4096 : length;
        }
    }
    CHECK(!played.is_other || left <= MOST_LEFT);
}

/* Compares what the provider did with what it had to do. */
void settle(void) {
    played_run_thread();
    for (size_t i = 0; i < world->peer_count; i++)
        look_at(&world->peers[i]);
    take_completions();
    check_left();
}
