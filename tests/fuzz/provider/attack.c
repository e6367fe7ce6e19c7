/* Hostile peers of an endpoint, which one input plays. Every byte that the provider took or sent is read a second time.
 *
 *     input ──► greetings, records, scribbles ──► ring of a peer ──► provider ──► completions   as the second reading has them, each once
 *           ──► posts, closes, peeks ───────────────────────────────►    │
 *           ──► ends of the engine's copies ────────────────────────►    └──────► ring to the peer: what was asked for, of the right bytes
 *
 * Nothing else runs meanwhile, so what a peer wrote is what the provider has read. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "world.h"

/* ---- The input: numbers, zeros beyond its end ---- */

static const uint8_t *input;
static size_t input_left;

static uint64_t take(size_t bytes) {
    uint64_t number = 0;
    size_t length = bytes < input_left ? bytes : input_left;

    memcpy(&number, input, length);
    input += length;
    input_left -= length;
    return number;
}

static uint8_t byte(void) { return (uint8_t)take(1); }

/* A number that may mean something. */
static uint64_t number(void) {
    uint8_t what = byte();

    switch (what % 8) {
    case 0:
    case 1:
        return byte();
    case 2: {
        const struct post *post = world->posts[byte() % POSTS];

        return post ? post->id : 0;
    }
    case 3:
        return THIRD_BYTES >> (what >> 5);
    case 4:
        return (uint64_t)0 - byte();
    case 5:
        return take(2);
    case 6:
        return (uint64_t)1 << (what >> 2);
    default:
        return take(8);
    }
}

/* ---- Steps of the program ---- */

static void progress(bool thorough) {
    if (thorough) {
        pthread_mutex_lock(&process.lock);
        domain_progress(CONTAINER(world->domain, struct domain, fid), true);
        pthread_mutex_unlock(&process.lock);
    } else {
        (void)fi_cq_read(world->cq, NULL, 0);
    }
}

static size_t any_length(void) {
    uint8_t what = byte();

    return what < 128 ? what : what < 200 ? take(2) % 20000 : (size_t)EAGER_BYTES - 1 + what % 3;
}

static bool find_message(struct post *post) {
    FOR_EACH(item, following, &world->unexpected[post->is_tagged]) {
        struct message *message = CONTAINER(item, struct message, link);

        if (matches(post, message->peer, &message->record)) {
            deliver(post, message->peer, &message->record, message->bytes);
            link_remove(item);
            free(message);
            return true;
        }
    }
    return false;
}

static void receive(void) {
    uint8_t what = byte();
    struct post *post = new_post(RECEIVE, any_length());
    struct iovec iov[2];
    struct fi_msg_tagged message = {.msg_iov = iov, .iov_count = 2, .addr = FI_ADDR_UNSPEC};
    size_t first;

    if (!post)
        return;
    if (what & 1 && world->slots != (1u << SLOTS) - 1) {
        unsigned slot = (unsigned)__builtin_ctz(~world->slots);

        world->slots |= 1u << slot;
        post->is_in_frame = true;
        post->length %= SLOT_BYTES + 1;
        post->buffer = played.memory + SLOTS_AT + slot * SLOT_BYTES;
    } else {
        post->buffer = malloc(post->length);
    }
    post->is_tagged = what & 2;
    post->source = what & 4 ? 0 : FI_ADDR_UNSPEC;
    if (post->is_tagged) {
        post->tag = byte() % 4;
        post->ignore = what & 8 ? UINT64_MAX : 0;
    }
    first = post->length / (1 + (what >> 6));
    iov[0] = (struct iovec){post->buffer, first};
    iov[1] = (struct iovec){post->buffer + first, post->length - first};
    message.addr = post->source;
    message.tag = post->tag;
    message.ignore = post->ignore;
    message.context = post;
    if (post->is_tagged) {
        CHECK(fi_trecvmsg(world->ep, &message, FI_COMPLETION) == 0);
    } else {
        struct fi_msg plain = {iov, NULL, 2, message.addr, post, 0};

        /* One without a tag matches any number there. */
        post->ignore = 0;
        CHECK(fi_recvmsg(world->ep, &plain, FI_COMPLETION) == 0);
    }
    name_post(post);
    if (!find_message(post))
        link_append(&world->posted[post->is_tagged], &post->link);
}

/* Notes what went to the peer that is connected. */
static void note_sent(const struct post *post, struct sent sent) {
    const struct endpoint *ep = endpoint();

    if (ep->outgoing_count == 0 || !ep->outgoing[0])
        return;
    if (world->sent_count == 4 * POSTS) {
        world->is_over = true;
        return;
    }
    sent.sort = post->sort;
    sent.ordinal = played.connects;
    sent.number = post->number;
    sent.id = post->id;
    sent.length = post->length;
    sent.is_tagged = post->is_tagged;
    world->sents[world->sent_count++] = sent;
}

static void fill(struct post *post) {
    post->buffer = malloc(post->length);
    for (size_t i = 0; i < post->length; i++)
        post->buffer[i] = pattern(post->number, i);
}

static void send_one(void) {
    uint8_t what = byte();
    struct post *post = new_post(SEND, any_length());
    struct iovec iov;
    struct fi_msg_tagged message = {.msg_iov = &iov, .iov_count = 1, .context = post};
    ssize_t status;

    if (!post)
        return;
    fill(post);
    iov = (struct iovec){post->buffer, post->length};
    post->is_tagged = true;
    post->is_acknowledged = what & 1;
    message.tag = post->tag = post->number;
    status = fi_tsendmsg(world->ep, &message, FI_COMPLETION | (post->is_acknowledged ? FI_DELIVERY_COMPLETE : 0));
    if (status < 0) {
        free_post(post);
        return;
    }
    name_post(post);
    note_sent(post, (struct sent){.tag = post->tag});
}

static void move(void) {
    uint8_t what = byte();
    struct post *post = new_post(MOVE, any_length());
    struct iovec iov;
    struct fi_rma_iov remote;
    struct fi_msg_rma message = {&iov, NULL, 1, 0, &remote, 1, post, what};
    ssize_t status;

    if (!post)
        return;
    fill(post);
    iov = (struct iovec){post->buffer, post->length};
    remote = (struct fi_rma_iov){number(), post->length, byte() % 3};
    if (what & 1)
        status = fi_writemsg(world->ep, &message, FI_COMPLETION | (what & 2 ? FI_REMOTE_CQ_DATA : 0));
    else
        status = fi_readmsg(world->ep, &message, FI_COMPLETION);
    if (status < 0) {
        free_post(post);
        return;
    }
    name_post(post);
    note_sent(post, (struct sent){.kind = what & 1 ? OP_WRITE : OP_READ, .address = remote.addr, .key = remote.key});
}

static struct message *peeked_message(uint64_t tag, uint64_t ignore) {
    FOR_EACH(item, following, &world->unexpected[1]) {
        struct message *message = CONTAINER(item, struct message, link);

        if (((message->record.tag ^ tag) & ~ignore) == 0)
            return message;
    }
    return NULL;
}

static void peek(void) {
    uint8_t what = byte();
    void *context = &world->peeks[what >> 6];
    uint64_t flags = FI_PEEK | (what & 1 ? FI_CLAIM : what & 2 ? FI_DISCARD : 0);
    struct fi_msg_tagged wanted = {
        .addr = FI_ADDR_UNSPEC, .tag = what >> 2 & 3, .ignore = what & 16 ? UINT64_MAX : 0, .context = context};
    struct message *message;

    world->has_peeked = false;
    CHECK(fi_trecvmsg(world->ep, &wanted, flags) == 0);
    settle();
    CHECK(world->has_peeked);
    message = peeked_message(wanted.tag, wanted.ignore);
    if (!message != (world->peeked.flags == FI_ENOMSG)) {
        /* The answer to it may have ended its connection. */
        CHECK(flags & FI_DISCARD);
        world->is_over = true;
        return;
    }
    if (!message)
        return;
    CHECK(world->peeked.len == message->record.total && world->peeked.tag == message->record.tag);
    if (flags & (FI_DISCARD | FI_CLAIM))
        link_remove(&message->link);
    if (flags & FI_DISCARD) {
        free(message);
    } else if (flags & FI_CLAIM) {
        message->claimer = context;
        link_append(&world->claimed, &message->link);
    }
}

/* Takes what was claimed under one of the names, or lets it go. */
static void take_claimed(void) {
    uint8_t what = byte();
    void *context = &world->peeks[what & 3];
    struct iovec iov = {NULL, 0};
    struct fi_msg_tagged wanted = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context};

    world->has_peeked = false;
    FOR_EACH(item, following, &world->claimed) {
        struct message *message = CONTAINER(item, struct message, link);

        if (message->claimer != context)
            continue;
        /* Of a long one the bytes come later: none fit into this receive. */
        CHECK(fi_trecvmsg(world->ep, &wanted, FI_CLAIM | (what & 4 ? FI_DISCARD : 0)) == 0);
        link_remove(item);
        free(message);
        return;
    }
    CHECK(fi_trecvmsg(world->ep, &wanted, FI_CLAIM | FI_DISCARD) == -FI_EINVAL);
}

static void cancel(void) {
    struct post *post = world->posts[byte() % POSTS];
    int status;

    if (!post)
        return;
    status = (int)fi_cancel(&world->ep->fid, post);
    if (post->sort == RECEIVE) {
        bool is_posted = !post->peer;

        CHECK(is_posted ? status == 0 : status == -FI_ENOENT);
        if (is_posted)
            due(post, FI_ECANCELED);
        link_remove(&post->link);
    }
}

static struct fid_mr *open_region(size_t at, size_t length, uint64_t access, uint64_t key) {
    struct fid_mr *mr;

    CHECK(fi_mr_reg(world->domain, played.memory + at, length, access, 0, key, 0, &mr, NULL) == 0);
    return mr;
}

static void open_regions(void) {
    world->readable = open_region(THIRD_BYTES - 3000, 6000, FI_REMOTE_READ, READABLE_KEY);
    world->writable = open_region(2 * THIRD_BYTES - 2000, 4000, FI_REMOTE_WRITE, WRITABLE_KEY);
}

static void close_regions(void) {
    struct fid_mr *readable = world->readable, *writable = world->writable;

    world->readable = world->writable = NULL;
    if (readable)
        CHECK(fi_close(&readable->fid) == 0 && fi_close(&writable->fid) == 0);
    CHECK(played.grants == 0);
}

/* ---- Steps of peers ---- */

static int ring_memory(struct peer *peer, size_t bytes, int seals) {
    int memfd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(memfd >= 0 && ftruncate(memfd, (off_t)bytes) == 0 && fcntl(memfd, F_ADD_SEALS, seals) == 0);
    peer->head = mmap(NULL, HEAD_BYTES + OWN_RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    CHECK(peer->head != MAP_FAILED);
    return memfd;
}

static void send_packet(int socket, const void *bytes, size_t length, const int *descriptors, size_t count) {
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
    }
    (void)sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Greets. Returns whether the greeting is one to take. */
static bool greet(struct peer *peer) {
    uint8_t what = byte();
    struct greeting greeting = {MAGIC, 1, OWN_RING_BYTES, peer->session, peer->name};
    size_t length = sizeof(greeting), bytes = HEAD_BYTES + OWN_RING_BYTES, count = 1;
    int seals = F_SEAL_SHRINK, memfd, descriptors[2];
    bool is_good = false;

    switch (what % 16) {
    case 0:
        greeting.magic ^= 1u << (what >> 4);
        break;
    case 1:
        greeting.version += 1 + (what >> 4);
        break;
    case 2:
        greeting.ring_bytes = number();
        break;
    case 3:
        memset(greeting.name.text, 'm', sizeof(greeting.name.text));
        break;
    case 4:
        greeting.name.text[byte() % 12] ^= 1;
        break;
    case 5:
        length = what >> 4;
        break;
    case 6:
        count = 2 * (what >> 4 & 1);
        break;
    case 7:
        bytes -= 1 + (what >> 4);
        break;
    case 8:
        seals = 0;
        break;
    default:
        is_good = true;
    }
    memfd = ring_memory(peer, bytes, seals);
    is_good |= what % 16 == 2 && greeting.ring_bytes == OWN_RING_BYTES;
    descriptors[0] = descriptors[1] = memfd;
    send_packet(peer->socket, &greeting, length, descriptors, count);
    close(memfd);
    return is_good;
}

static struct peer *new_peer(int socket) {
    struct peer *peer = &world->peers[world->peer_count++];

    *peer = (struct peer){.socket = socket, .session = byte() % SESSIONS + 1};
    return peer;
}

static socklen_t address_of(const struct name *name, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name->text, strlen(name->text));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name->text));
}

static bool is_closed(int socket) {
    char one;
    ssize_t got = recv(socket, &one, 1, MSG_DONTWAIT | MSG_PEEK);

    return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* A peer connects and greets. The first one has the name that the program knows, too. */
static void connect_peer(void) {
    struct sockaddr_un address;
    socklen_t length = address_of(&endpoint()->name, &address);
    bool is_first = true, is_good;
    struct peer *peer;
    int one;

    if (world->peer_count == PEERS)
        return;
    for (size_t i = 0; i < world->peer_count; i++)
        is_first &= world->peers[i].is_receiver;
    one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(one >= 0 && connect(one, (struct sockaddr *)&address, length) == 0);
    peer = new_peer(one);
    peer->name = world->listener_name;
    if (!is_first)
        snprintf(peer->name.text, sizeof(peer->name.text), "memferry://%u/%016zx", geteuid(), world->peer_count);
    is_good = greet(peer);
    /* One round accepts it, and the next one takes its greeting. */
    progress(true);
    settle();
    progress(true);
    settle();
    peer->has_greeted = peer->theirs != NULL;
    played.sessions |= is_good ? 1u << peer->session : 0;
    CHECK(peer->has_greeted == is_good && is_closed(one) == !is_good);
    peer->is_dead |= !is_good;
}

/* A peer that the endpoint connected to answers. */
static void accept_peer(void) {
    struct peer *peer;
    unsigned ordinal = 1;
    bool is_good;
    int one;

    if (world->peer_count == PEERS)
        return;
    one = accept4(world->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (one < 0)
        return;
    for (size_t i = 0; i < world->peer_count; i++)
        ordinal += world->peers[i].is_receiver;
    peer = new_peer(one);
    peer->is_receiver = true;
    peer->ordinal = ordinal;
    peer->name = world->listener_name;
    is_good = greet(peer);
    take_greeting(peer);
    peer->has_greeted = true;
    peer->may_end = !is_good;
    played.sessions |= is_good ? 1u << peer->session : 0;
    if (peer->theirs)
        look_at(peer);
}

static struct peer *any_peer(void) {
    struct peer *peer = world->peer_count > 0 ? &world->peers[byte() % world->peer_count] : NULL;

    return peer && peer->head && peer->theirs ? peer : NULL;
}

/* The provider empties the ring of a peer that hangs up before it looks at the others, and promises no order between peers. So while
 * one hangs up, no other one has anything to be taken. */
static bool may_send(const struct peer *peer) {
    for (size_t i = 0; i < world->peer_count; i++) {
        const struct peer *other = &world->peers[i];

        if (other != peer && other->hangs_up && !other->is_dead)
            return false;
    }
    return true;
}

static bool may_hang_up(const struct peer *peer) {
    for (size_t i = 0; i < world->peer_count; i++) {
        const struct peer *other = &world->peers[i];

        if (other != peer && !other->is_dead && other->taken != other->produced)
            return false;
    }
    return true;
}

static void put(struct peer *peer, const struct record *record, const uint8_t *bytes, size_t length) {
    uint64_t at = peer->produced;

    for (size_t i = 0; i < RECORD_BYTES + length; i++) {
        uint8_t one = i < RECORD_BYTES ? ((const uint8_t *)record)[i] : bytes[i - RECORD_BYTES];

        ((uint8_t *)peer->head)[HEAD_BYTES + ((at + i) & (OWN_RING_BYTES - 1))] = one;
    }
    peer->produced += RECORD_BYTES + padded(length);
    atomic_store(&peer->head->produced, peer->produced);
}

static bool has_room(const struct peer *peer, size_t length) {
    return peer->produced - peer->taken + RECORD_BYTES + padded(length) <= OWN_RING_BYTES;
}

static void any_record(void) {
    static uint8_t bytes[MOST_PAYLOAD + 64];
    struct peer *peer = any_peer();
    uint8_t what = byte(), fields = byte();
    struct record record = {.kind = what % 14, .flags = (uint8_t)(fields & 15)};

    if (!peer)
        return;
    record.length = what & 128 ? (uint32_t)(byte() % 7 * 16) : (uint32_t)any_length();
    record.tag = what & 64 ? number() : byte() % 4;
    record.data = byte();
    record.total = fields & 16 ? number() : record.length;
    record.id = number();
    record.address = number();
    record.key = fields & 32 ? number() : READABLE_KEY + (uint64_t)(byte() % 2);
    if (!may_send(peer) || !has_room(peer, record.length))
        return;
    for (size_t i = 0; i < record.length; i++)
        bytes[i] = pattern(peer->produced, i);
    /* Pieces of a message or of a region. */
    if (fields & 64) {
        for (size_t i = 0; i + 8 <= record.length && i < 96; i += 8) {
            uint64_t word = number();

            memcpy(bytes + i, &word, sizeof(word));
        }
    }
    /* Its length may be a lie. */
    size_t length = record.length;
    if (fields & 128)
        record.length = (uint32_t)number();
    put(peer, &record, bytes, length);
}

/* What a peer that keeps the rules would send next. */
static void right_record(void) {
    static uint8_t bytes[PART_BYTES];
    struct peer *peer = any_peer();
    struct post *post = world->posts[byte() % POSTS];
    uint8_t what = byte();
    struct record record = {.id = post ? post->id : 0, .total = post ? post->length : 0};

    if (!peer || !post || !may_send(peer) || !has_room(peer, PART_BYTES))
        return;
    if (!peer->is_receiver) {
        size_t left = post->limit - post->done;

        if (post->sort != RECEIVE || post->peer != peer || post->is_vague)
            return;
        record.kind = RECORD_DATA;
        record.address = post->done;
        record.length = (uint32_t)(left < PART_BYTES ? left : PART_BYTES);
        for (size_t i = 0; i < record.length; i++)
            bytes[i] = pattern(peer->produced, i);
        put(peer, &record, bytes, record.length);
        return;
    }
    switch (what % 4) {
    case 0:
        record.kind = RECORD_GO;
        record.key = what;
        break;
    case 1:
        record.kind = RECORD_DONE;
        break;
    case 2: {
        uint64_t piece[2] = {what >> 4 & 7, FOREIGN_BYTES};

        record.kind = RECORD_OPENED;
        record.key = what >> 2 & 3;
        record.total = FOREIGN_BYTES;
        record.data = FI_REMOTE_READ | FI_REMOTE_WRITE;
        record.length = sizeof(piece);
        memcpy(bytes, piece, sizeof(piece));
        break;
    }
    default:
        record.kind = RECORD_DATA;
        record.length = (uint32_t)(post->length < PART_BYTES ? post->length : PART_BYTES);
    }
    put(peer, &record, bytes, record.length);
}

static void scribble(void) {
    struct peer *peer = any_peer();
    uint8_t what = byte();

    if (!peer || !may_send(peer))
        return;
    peer->may_end = true;
    if (what & 1)
        atomic_store(&peer->head->consumed, number());
    else if (what & 2)
        atomic_store(&peer->head->produced, peer->produced += number());
    else
        memset((uint8_t *)peer->head + HEAD_BYTES + take(2) % (OWN_RING_BYTES - 256), byte(), byte());
}

static void misuse_socket(void) {
    struct peer *peer = any_peer();
    uint8_t what = byte();

    if (!peer || (!(what & 1) && !may_hang_up(peer)))
        return;
    peer->may_end = true;
    if (what & 1) {
        int descriptor = dup(peer->socket);

        send_packet(peer->socket, "more", 4, &descriptor, what >> 1 & 1);
        close(descriptor);
    } else {
        peer->hangs_up = true;
        (void)shutdown(peer->socket, what & 2 ? SHUT_RDWR : SHUT_WR);
    }
}

/* ---- The whole ---- */

static void step(void) {
    struct peer *peer;

    switch (byte() % 18) {
    case 0:
    case 1:
        receive();
        break;
    case 2:
        send_one();
        break;
    case 3:
        move();
        break;
    case 4:
        progress(false);
        break;
    case 5:
        progress(true);
        break;
    case 6:
    case 7:
        any_record();
        break;
    case 8:
        right_record();
        break;
    case 9:
        peer = any_peer();
        if (peer)
            atomic_store(&peer->head->consumed, peer->read);
        break;
    case 10:
        scribble();
        break;
    case 11:
        connect_peer();
        break;
    case 12:
        accept_peer();
        break;
    case 13:
        misuse_socket();
        break;
    case 14:
        if (byte() & 1)
            peek();
        else
            take_claimed();
        break;
    case 15:
        cancel();
        break;
    case 16:
        played.ends = byte() % 8;
        played.error = byte() & 1 ? MF_ERROR_REVOKED : MF_ERROR_NONE;
        break;
    default:
        played.now_ms += byte() * 16;
        if (world->readable)
            close_regions();
        else
            open_regions();
    }
    /* What was sent when there was no room to note it cannot be judged. */
    if (!world->is_over)
        settle();
}

/* In a fuzzer, where nothing else opens any. */
static int lowest_descriptor(void) {
#ifdef IS_FUZZED
    int one = dup(0);

    CHECK(one >= 0);
    close(one);
    return one;
#else
    return 0;
#endif
}

static void open_world(void) {
    struct fi_domain_attr domain_attr = {.mr_mode = 0};
    struct fi_ep_attr ep_attr = {.type = FI_EP_RDM};
    struct fi_info info = {
        .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV, .domain_attr = &domain_attr, .ep_attr = &ep_attr};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    struct sockaddr_un address;
    socklen_t length;

    memcpy(world->shadow, played.memory, MEMORY_BYTES);
    for (int i = 0; i < 2; i++) {
        link_init(&world->posted[i]);
        link_init(&world->unexpected[i]);
    }
    link_init(&world->claimed);
    snprintf(world->listener_name.text, sizeof(world->listener_name.text), "memferry://%u/%016x", geteuid(), getpid());
    length = address_of(&world->listener_name, &address);
    world->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(world->listener, (struct sockaddr *)&address, length) == 0 && listen(world->listener, 8) == 0);
    CHECK(fcntl(world->listener, F_SETFL, O_NONBLOCK) == 0);
    CHECK(domain_open(&world->fabric.fid, &info, &world->domain, NULL) == 0);
    CHECK(fi_av_open(world->domain, NULL, &world->av, NULL) == 0);
    CHECK(cq_open(world->domain, &cq_attr, &world->cq, NULL) == 0);
    CHECK(endpoint_open(world->domain, &info, &world->ep, NULL) == 0);
    CHECK(fi_ep_bind(world->ep, &world->av->fid, 0) == 0);
    CHECK(fi_ep_bind(world->ep, &world->cq->fid, FI_TRANSMIT | FI_RECV) == 0 && fi_enable(world->ep) == 0);
    CHECK(fi_av_insert(world->av, world->listener_name.text, 1, NULL, 0, NULL) == 1);
    open_regions();
}

static void close_world(void) {
    played.is_closing = true;
    close_regions();
    CHECK(fi_close(&world->ep->fid) == 0);
    CHECK(fi_close(&world->cq->fid) == 0 && fi_close(&world->av->fid) == 0 && fi_close(&world->domain->fid) == 0);
    played_run_thread();
    /* Frames and grants were given back. */
    CHECK(played.frames == 0 && played.grants == 0);
    for (size_t i = 0; i < MEMORY_BYTES; i++)
        CHECK(played.memory[i] == world->shadow[i] || (i >= SLOTS_AT && i < SLOTS_AT + SLOTS * SLOT_BYTES));
    close(world->listener);
    for (size_t i = 0; i < world->peer_count; i++) {
        struct peer *peer = &world->peers[i];

        close(peer->socket);
        munmap(peer->head, HEAD_BYTES + OWN_RING_BYTES);
        if (peer->theirs)
            munmap((void *)(uintptr_t)peer->theirs, HEAD_BYTES + THEIR_RING_BYTES);
    }
    for (size_t i = 0; i < POSTS; i++) {
        if (world->posts[i])
            free_post(world->posts[i]);
    }
    for (int i = 0; i < 3; i++) {
        FOR_EACH(item, following, i < 2 ? &world->unexpected[i] : &world->claimed) { free(CONTAINER(item, struct message, link)); }
    }
}

/* Input: a byte that says whether the provider's user is another one than its peers', then steps of a byte and its operands. */
void attack_provider(const uint8_t *bytes, size_t length);
void attack_provider(const uint8_t *bytes, size_t length) {
    int lowest = lowest_descriptor();

    input = bytes;
    input_left = length;
    played_reset();
    played.is_other = byte() & 1;
    world = calloc(1, sizeof(*world));
    CHECK(world);
    open_world();
    for (unsigned i = 0; i < MOST_STEPS && input_left > 0 && !world->is_over; i++)
        step();
    close_world();
    free(world);
    /* So were descriptors. */
    CHECK(lowest_descriptor() == lowest);
}
