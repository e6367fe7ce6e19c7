/* What the provider does with messages, memory of peers, wrong requests, peers that die and a service that dies.
 *
 *     scenes MEMFERRY SOCKET
 *
 * MEMFERRY is the command, whose service this program starts at SOCKET. libfabric finds the provider by FI_PROVIDER_PATH. Prints a
 * line for each scene, and ends with 1 at the first mistake. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "peer.h"

#define CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE)
#define MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define MIB (1 << 20)
#define REGION_BYTES (3 * MIB)
/* Not at the start of a page, so that both ends are no frames. */
#define EDGE 100

static const size_t lengths[] = {0, 1, 63, 64, 65, 4096, 16384, 16385, 65536, 100001, 262144, 1048577, 3000000};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

/* ---- Messages ---- */

static void send_lengths(struct peer *peer, void *memory) {
    struct fi_cq_tagged_entry entry;

    for (size_t i = 0; i < LENGTHS; i++) {
        struct iovec iov[2] = {{memory, lengths[i] / 3}, {(char *)memory + lengths[i] / 3, lengths[i] - lengths[i] / 3}};
        int context;

        paint(memory, lengths[i], (unsigned)i);
        UNTIL_ROOM(peer, fi_tsendv(peer->ep, iov, NULL, 2, peer->other, i, &context));
        CHECK(next(peer, &entry) == 0 && entry.op_context == &context && entry.flags == (FI_SEND | FI_TAGGED));
    }
}

static void receive_lengths(struct peer *peer, void *memory) {
    struct fi_cq_tagged_entry entry;

    for (size_t i = 0; i < LENGTHS; i++) {
        int context;

        memset(memory, 0xee, lengths[i]);
        CHECK(fi_trecv(peer->ep, memory, REGION_BYTES, NULL, peer->other, 0, 0xff, &context) == 0);
        CHECK(next(peer, &entry) == 0 && entry.op_context == &context && entry.flags == (FI_RECV | FI_TAGGED));
        CHECK(entry.len == lengths[i] && entry.tag == i);
        CHECK(is_painted(memory, 0, lengths[i], (unsigned)i));
    }
}

static void send_most(struct peer *peer, bool is_same_user) {
    void *plain = memory_of(REGION_BYTES), *registered = memory_of(REGION_BYTES + 2 * EDGE);
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    CHECK(fi_mr_reg(peer->domain, (char *)registered + EDGE, REGION_BYTES, FI_SEND, 0, 0, 0, &mr, NULL) == 0);
    send_lengths(peer, plain);
    send_lengths(peer, (char *)registered + EDGE);
    send_lengths(peer, plain);
    send_lengths(peer, (char *)registered + EDGE);
    if (is_same_user) {
        /* Between processes of one user the engine moves it: this one has nothing to do. */
        paint((char *)registered + EDGE, MIB, 9);
        UNTIL_ROOM(peer, fi_send(peer->ep, (char *)registered + EDGE, MIB, NULL, peer->other, NULL));
        hear_idle(peer);
    }
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static void receive_most(struct peer *peer, bool is_same_user) {
    void *plain = memory_of(REGION_BYTES), *registered = memory_of(REGION_BYTES + 2 * EDGE);
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    CHECK(fi_mr_reg(peer->domain, (char *)registered + EDGE, REGION_BYTES, FI_RECV, 0, 0, 0, &mr, NULL) == 0);
    receive_lengths(peer, plain);
    receive_lengths(peer, (char *)registered + EDGE);
    receive_lengths(peer, (char *)registered + EDGE);
    receive_lengths(peer, plain);
    if (is_same_user) {
        struct fi_cq_tagged_entry entry;

        CHECK(fi_recv(peer->ep, (char *)registered + EDGE, MIB, NULL, peer->other, NULL) == 0);
        CHECK(next(peer, &entry) == 0 && is_painted((char *)registered + EDGE, 0, MIB, 9));
        wake_idle(peer);
    }
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static void send_all(struct peer *peer) { send_most(peer, true); }

static void receive_all(struct peer *peer) { receive_most(peer, true); }

/* Messages that nobody has asked for yet, in an order of tags. */
static void send_early(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);

    open_peer(peer, CAPS, MODES);
    for (unsigned i = 0; i < 4; i++) {
        paint(memory + i * 65536, 65536, i);
        UNTIL_ROOM(peer, fi_tsenddata(peer->ep, memory + i * 65536, i % 2 ? 20000 : 200, NULL, 7 + i, peer->other, i, NULL));
    }
    UNTIL_ROOM(peer, fi_inject(peer->ep, memory, 16, peer->other));
    /* One that is acknowledged: its completion comes when it is received. */
    struct iovec iov = {memory, 16};
    struct fi_msg message = {&iov, NULL, 1, peer->other, &entry, 0};
    UNTIL_ROOM(peer, fi_sendmsg(peer->ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    meet(peer);
    for (unsigned i = 0; i < 5; i++)
        CHECK(next(peer, &entry) == 0);
    meet(peer);
    close_peer(peer);
}

/* All of it fits into the ring, where the receiver does not take it yet. */
#define RING_FULL 100000

static void takes_its_time(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(RING_FULL);

    open_peer(peer, CAPS, MODES);
    meet(peer);
    /* The message is announced, so that the receive asks for its bytes at once. */
    for (int i = 0; i < 1000; i++)
        progress(peer);
    CHECK(fi_recv(peer->ep, memory, RING_FULL, NULL, FI_ADDR_UNSPEC, NULL) == 0);
    wake_idle(peer);
    hear_idle(peer);
    CHECK(next(peer, &entry) == 0 && is_painted(memory, 0, RING_FULL, 4));
    meet(peer);
    close_peer(peer);
}

static void waits_for_delivery(struct peer *peer) {
    char *memory = memory_of(RING_FULL);
    struct iovec iov = {memory, RING_FULL};
    struct fi_cq_tagged_entry entry;
    char here;

    open_peer(peer, CAPS, MODES);
    paint(memory, RING_FULL, 4);
    struct fi_msg message = {&iov, NULL, 1, peer->other, NULL, 0};
    UNTIL_ROOM(peer, fi_sendmsg(peer->ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    meet(peer);
    CHECK(recv(peer->socket, &here, 1, 0) == 1);
    for (int i = 0; i < 1000; i++)
        CHECK(fi_cq_read(peer->cq, &entry, 1) == -FI_EAGAIN);
    wake_idle(peer);
    CHECK(next(peer, &entry) == 0);
    meet(peer);
    close_peer(peer);
}

static void peek(struct peer *peer, uint64_t tag, uint64_t flags, void *context, size_t length) {
    struct fi_msg_tagged message = {.addr = peer->other, .tag = tag, .context = context};
    struct fi_cq_tagged_entry entry;

    time_t since = time(NULL);
    int error;

    /* The connection may not be there yet. */
    do {
        CHECK(fi_trecvmsg(peer->ep, &message, flags) == 0);
        error = next(peer, &entry);
        patience(since);
    } while (error == FI_ENOMSG);
    CHECK(error == 0 && entry.op_context == context && entry.len == length && entry.tag == tag);
    CHECK(entry.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA) && entry.data == 7 + tag);
}

static void receive_late(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    struct iovec iov = {memory, MIB};
    struct fi_msg_tagged claimed = {.msg_iov = &iov, .iov_count = 1, .context = &iov};
    struct fi_msg_tagged absent = {.addr = peer->other, .tag = 99, .context = &entry};
    fi_addr_t source;
    int lost;

    open_peer(peer, CAPS, MODES);
    meet(peer);
    peek(peer, 1, FI_PEEK, NULL, 20000);
    peek(peer, 1, FI_PEEK | FI_CLAIM, &iov, 20000);
    peek(peer, 2, FI_PEEK | FI_DISCARD, NULL, 200);
    CHECK(fi_trecvmsg(peer->ep, &absent, FI_PEEK) == 0 && next(peer, &entry) == FI_ENOMSG);
    CHECK(fi_trecvmsg(peer->ep, &claimed, FI_CLAIM) == 0);
    CHECK(next(peer, &entry) == 0 && entry.len == 20000 && is_painted(memory, 0, 20000, 1));
    CHECK(fi_trecvmsg(peer->ep, &claimed, FI_CLAIM) == -FI_EINVAL);
    /* Out of order, and one that is too long for its buffer. */
    CHECK(fi_trecv(peer->ep, memory, 19999, NULL, FI_ADDR_UNSPEC, 3, 0, NULL) == 0);
    CHECK(next(peer, &entry) == FI_ETRUNC && entry.data == 1 && is_painted(memory, 0, 19999, 3));
    CHECK(fi_trecv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, 0, 0, NULL) == 0);
    CHECK(fi_cq_readfrom(peer->cq, &entry, 1, &source) == 1 && source == peer->other && entry.len == 200);
    /* One that nobody sends. */
    CHECK(fi_trecv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, 99, 0, &lost) == 0);
    CHECK(fi_cancel(&peer->ep->fid, &lost) == 0 && next(peer, &entry) == FI_ECANCELED && entry.op_context == &lost);
    CHECK(fi_cancel(&peer->ep->fid, &lost) == -FI_ENOENT);
    for (int i = 0; i < 2; i++)
        CHECK(fi_recv(peer->ep, memory, MIB, NULL, peer->other, NULL) == 0 && next(peer, &entry) == 0 && entry.len == 16);
    meet(peer);
    close_peer(peer);
}

/* ---- Memory of peers ---- */

struct offer {
    uint64_t address;
    uint64_t key;
};

/* Registers memory for the peer's accesses, and tells it where that is. */
static struct fid_mr *offer_region(struct peer *peer, char *memory, uint64_t access) {
    struct offer offer;
    struct fid_mr *mr;

    CHECK(fi_mr_reg(peer->domain, memory, MIB, access, 0, 0, 0, &mr, NULL) == 0);
    offer = (struct offer){(uintptr_t)memory, fi_mr_key(mr)};
    tell(peer, &offer, sizeof(offer));
    return mr;
}

static const struct {
    size_t place;
    size_t length;
} ranges[] = {{0, 1}, {0, 5000}, {4000, 4096}, {100000, 1}, {70000, 300000}, {REGION_BYTES - 10, 10}, {0, REGION_BYTES}, {17, 0}};
#define RANGES (sizeof(ranges) / sizeof(ranges[0]))

/* jemalloc has this function. To the provider, this program uses jemalloc, so it moves memory only where FI_MEMFERRY_MOVE is set. */
int mallctl(void);
int mallctl(void) { return 0; }

/* Whether the memory at an address is a frame that the provider made of it. */
static bool is_moved(const void *address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long start, end;
    bool moved = false;
    char line[512];

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && (uintptr_t)address - start < end - start)
            moved = strstr(line, "memferry-fi") != NULL;
    fclose(maps);
    return moved;
}

static void owns(struct peer *peer, int mr_mode, bool is_frame) {
    char *memory = (char *)memory_of(REGION_BYTES + 2 * EDGE) + EDGE;
    uint64_t key = 0x1234, access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fi_cq_tagged_entry entry;
    struct fid_mr *mr;
    struct offer offer;

    if (!is_frame)
        unsetenv("FI_MEMFERRY_MOVE");
    open_peer(peer, CAPS, mr_mode);
    paint(memory, REGION_BYTES, 5);
    CHECK(fi_mr_reg(peer->domain, memory, REGION_BYTES, access, 0, key, 0, &mr, NULL) == 0);
    /* Registering moves the memory; its content stays. */
    CHECK(is_moved(memory + REGION_BYTES / 2) == is_frame);
    CHECK(is_painted(memory, 0, REGION_BYTES, 5));
    offer = (struct offer){mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0, fi_mr_key(mr)};
    CHECK(mr_mode & FI_MR_PROV_KEY || offer.key == key);
    tell(peer, &offer, sizeof(offer));
    for (size_t i = 0; i < RANGES; i++) {
        size_t place = ranges[i].place, length = ranges[i].length;

        meet(peer);
        CHECK(is_painted(memory + place, place, length, 6 + (unsigned)i));
        meet(peer);
    }
    if (is_frame)
        hear_idle(peer);
    CHECK(next(peer, &entry) == 0 && entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
    CHECK(entry.data == 77 && entry.len == 8 && memcmp(memory, "injected", 8) == 0);
    CHECK(fi_close(&mr->fid) == 0);
    meet(peer);
    /* With a key of the program's own there may be another region. */
    if (!(mr_mode & FI_MR_PROV_KEY)) {
        CHECK(fi_mr_reg(peer->domain, memory, 8, access, 0, key, 0, &mr, NULL) == 0);
        CHECK(fi_mr_reg(peer->domain, memory, 8, access, 0, key, 0, &mr, NULL) == -FI_ENOKEY);
        memcpy(memory, "renewed.", 8);
    }
    meet(peer);
    meet(peer);
    if (!(mr_mode & FI_MR_PROV_KEY))
        CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static int read_once(struct peer *peer, void *memory, size_t length, uint64_t address, uint64_t key) {
    struct fi_cq_tagged_entry entry;

    UNTIL_ROOM(peer, fi_read(peer->ep, memory, length, NULL, peer->other, address, key, memory));
    int error = next(peer, &entry);
    CHECK(entry.op_context == memory && entry.flags == (FI_RMA | FI_READ));
    return error;
}

static int write_once(struct peer *peer, const void *memory, size_t length, uint64_t address, uint64_t key) {
    struct fi_cq_tagged_entry entry;

    UNTIL_ROOM(peer, fi_write(peer->ep, memory, length, NULL, peer->other, address, key, NULL));
    return next(peer, &entry);
}

static void uses(struct peer *peer, int mr_mode, bool is_frame) {
    char *plain = memory_of(REGION_BYTES), *registered = memory_of(REGION_BYTES);
    struct fi_cntr_attr attr = {0};
    struct fid_cntr *counter;
    struct fid_mr *mr;
    struct offer offer;

    open_peer(peer, CAPS, mr_mode);
    CHECK(fi_cntr_open(peer->domain, &attr, &counter, NULL) == 0);
    CHECK(fi_ep_bind(peer->ep, &counter->fid, FI_WRITE) == -FI_EOPBADSTATE);
    CHECK(fi_mr_reg(peer->domain, registered, REGION_BYTES, FI_READ | FI_WRITE, 0, 1, 0, &mr, NULL) == 0);
    hear(peer, &offer, sizeof(offer));
    for (size_t i = 0; i < RANGES; i++) {
        size_t place = ranges[i].place, length = ranges[i].length;
        char *memory = i % 2 ? registered : plain;

        if (i == 0)
            CHECK(read_once(peer, plain, REGION_BYTES, offer.address, offer.key) == 0 && is_painted(plain, 0, REGION_BYTES, 5));
        for (size_t at = 0; at < length; at++)
            memory[at] = (char)((place + at) * 131 + ((place + at) >> 8) * 7 + 6 + i);
        CHECK(write_once(peer, memory, length, offer.address + place, offer.key) == 0);
        memset(plain, 0, REGION_BYTES);
        CHECK(read_once(peer, plain, length, offer.address + place, offer.key) == 0);
        CHECK(is_painted(plain, place, length, 6 + (unsigned)i));
        meet(peer);
        meet(peer);
    }
    if (is_frame) {
        /* The owner has nothing to do. */
        paint(plain, 2 * MIB, 3);
        CHECK(write_once(peer, plain, 2 * MIB, offer.address + 8192, offer.key) == 0);
        memset(plain, 0, MIB);
        CHECK(read_once(peer, plain, MIB, offer.address + 8192, offer.key) == 0 && is_painted(plain, 0, MIB, 3));
        wake_idle(peer);
    }
    /* Outside the region, and a key that nobody has. */
    CHECK(read_once(peer, plain, 2, offer.address + REGION_BYTES - 1, offer.key) == FI_EINVAL);
    CHECK(write_once(peer, plain, 1, offer.address - 1, offer.key) == FI_EINVAL);
    CHECK(write_once(peer, plain, REGION_BYTES, offer.address, offer.key + 1) == FI_EKEYREJECTED);
    UNTIL_ROOM(peer, fi_inject_writedata(peer->ep, "injected", 8, 77, peer->other, offer.address, offer.key));
    meet(peer);
    /* The region is closed. */
    meet(peer);
    int error = read_once(peer, plain, 8, offer.address, offer.key);
    if (mr_mode & FI_MR_PROV_KEY)
        CHECK(error == FI_EKEYREJECTED);
    else
        CHECK(error == 0 && memcmp(plain, "renewed.", 8) == 0);
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    CHECK(fi_close(&counter->fid) == 0);
    close_peer(peer);
}

static void owns_frames(struct peer *peer) { owns(peer, MODES, true); }

static void uses_frames(struct peer *peer) { uses(peer, MODES, true); }

static void owns_scalable(struct peer *peer) { owns(peer, 0, true); }

static void uses_scalable(struct peer *peer) { uses(peer, 0, true); }

static void owns_plain(struct peer *peer) { owns(peer, MODES, false); }

static void uses_plain(struct peer *peer) { uses(peer, MODES, false); }

static void become_another_user(void) {
    struct fi_info *hints = hints_for(CAPS, MODES), *info;

    /* The provider may be where only this user finds it. */
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
}

static void owns_for_another_user(struct peer *peer) {
    setenv("FI_MEMFERRY_USERS", "4,65534", 1);
    owns(peer, MODES, true);
}

static void uses_another_users(struct peer *peer) {
    setenv("FI_MEMFERRY_USERS", "any", 1);
    become_another_user();
    uses(peer, MODES, true);
}

static void sends_to_another_user(struct peer *peer) {
    setenv("FI_MEMFERRY_USERS", "any", 1);
    send_most(peer, false);
}

static void receives_from_another_user(struct peer *peer) {
    setenv("FI_MEMFERRY_USERS", "0", 1);
    become_another_user();
    receive_most(peer, false);
}

/* ---- Rights ---- */

static void owns_with_one_right(struct peer *peer) {
    char *memory = memory_of(MIB);
    struct offer offers[2];
    struct fid_mr *mr[2];

    open_peer(peer, CAPS, MODES);
    CHECK(fi_mr_reg(peer->domain, memory, MIB / 2, FI_REMOTE_READ, 0, 0, 0, &mr[0], NULL) == 0);
    CHECK(fi_mr_reg(peer->domain, memory + MIB / 2, MIB / 2, FI_SEND, 0, 0, 0, &mr[1], NULL) == 0);
    offers[0] = (struct offer){(uintptr_t)memory, fi_mr_key(mr[0])};
    offers[1] = (struct offer){(uintptr_t)memory + MIB / 2, fi_mr_key(mr[1])};
    tell(peer, offers, sizeof(offers));
    meet(peer);
    for (size_t i = 0; i < MIB; i++)
        CHECK(memory[i] == 0);
    CHECK(fi_close(&mr[0]->fid) == 0 && fi_close(&mr[1]->fid) == 0);
    close_peer(peer);
}

static void lacks_rights(struct peer *peer) {
    char *memory = memory_of(MIB);
    struct offer offers[2];

    open_peer(peer, CAPS, MODES);
    hear(peer, offers, sizeof(offers));
    memset(memory, 1, MIB);
    CHECK(write_once(peer, memory, 4096, offers[0].address, offers[0].key) == FI_EACCES);
    CHECK(write_once(peer, memory, 4096, offers[1].address, offers[1].key) == FI_EKEYREJECTED);
    CHECK(read_once(peer, memory, 4096, offers[1].address, offers[1].key) == FI_EKEYREJECTED);
    CHECK(read_once(peer, memory, 4096, offers[0].address, offers[0].key) == 0 && memory[0] == 0);
    meet(peer);
    close_peer(peer);
}

/* ---- Regions that end ---- */

static void owns_a_target(struct peer *peer) {
    char *memory = memory_of(MIB);
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    mr = offer_region(peer, memory, FI_REMOTE_WRITE);
    meet(peer);
    CHECK(is_painted(memory, 0, MIB, 8));
    meet(peer);
    meet(peer);
    CHECK(is_painted(memory, 0, MIB, 9));
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

/* A frame stays when its region is closed. A smaller region keeps it in use while the rest of its pages is replaced. */
static void writes_what_replaced_a_frame(struct peer *peer) {
    char *memory = memory_of(MIB), *rest = memory + 128 * 1024;
    size_t length = MIB - 128 * 1024;
    struct fid_mr *mr[3];
    struct offer offer;

    open_peer(peer, CAPS, MODES);
    hear(peer, &offer, sizeof(offer));
    CHECK(fi_mr_reg(peer->domain, memory, MIB, FI_WRITE, 0, 0, 0, &mr[0], NULL) == 0);
    CHECK(fi_mr_reg(peer->domain, memory, 128 * 1024, FI_WRITE, 0, 0, 0, &mr[1], NULL) == 0);
    CHECK(fi_close(&mr[0]->fid) == 0);
    CHECK(mmap(rest, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == rest);
    paint(memory, MIB, 8);
    CHECK(write_once(peer, memory, MIB, offer.address, offer.key) == 0);
    meet(peer);
    meet(peer);
    /* Registered too, it is still not what the frame holds. */
    CHECK(fi_mr_reg(peer->domain, rest, length, FI_WRITE, 0, 0, 0, &mr[2], NULL) == 0);
    paint(memory, MIB, 9);
    CHECK(write_once(peer, memory, MIB, offer.address, offer.key) == 0);
    meet(peer);
    CHECK(fi_close(&mr[1]->fid) == 0 && fi_close(&mr[2]->fid) == 0);
    close_peer(peer);
}

static void closes_within_a_read(struct peer *peer) {
    char *memory = memory_of(REGION_BYTES);
    struct offer offers[2];
    struct fid_mr *mr[2];

    open_peer(peer, CAPS, MODES);
    paint(memory, REGION_BYTES, 1);
    for (int i = 0; i < 2; i++) {
        CHECK(fi_mr_reg(peer->domain, memory, REGION_BYTES, FI_REMOTE_READ, 0, 0, 0, &mr[i], NULL) == 0);
        offers[i] = (struct offer){(uintptr_t)memory, fi_mr_key(mr[i])};
    }
    tell(peer, offers, sizeof(offers));
    hear(peer, offers, 1);
    CHECK(fi_close(&mr[0]->fid) == 0);
    wake_idle(peer);
    meet(peer);
    CHECK(fi_close(&mr[1]->fid) == 0);
    close_peer(peer);
}

/* Its plain memory needs more slots than there are, so a part of the read waits for one when the region is closed. */
static void reads_what_is_closed(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(REGION_BYTES);
    struct offer offers[2];

    open_peer(peer, CAPS, MODES);
    hear(peer, offers, sizeof(offers));
    CHECK(read_once(peer, memory, 8, offers[0].address, offers[0].key) == 0);
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, REGION_BYTES, NULL, peer->other, offers[0].address, offers[0].key, memory));
    wake_idle(peer);
    hear_idle(peer);
    CHECK(next(peer, &entry) == FI_EKEYREJECTED && entry.op_context == memory);
    CHECK(read_once(peer, memory, REGION_BYTES, offers[1].address, offers[1].key) == 0 && is_painted(memory, 0, REGION_BYTES, 1));
    meet(peer);
    close_peer(peer);
}

/* ---- Two endpoints, and children ---- */

/* A second endpoint, with a vector of its own; names are exchanged again. */
static struct fid_ep *second_endpoint(struct peer *peer, struct fid_av **av, fi_addr_t *other) {
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    char name[sizeof(peer->name)];
    size_t length = sizeof(name);
    struct fid_ep *ep;

    CHECK(fi_av_open(peer->domain, &attr, av, NULL) == 0);
    CHECK(fi_endpoint(peer->domain, peer->info, &ep, NULL) == 0);
    CHECK(fi_ep_bind(ep, &(*av)->fid, 0) == 0 && fi_ep_bind(ep, &peer->cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    CHECK(fi_enable(ep) == 0 && fi_getname(&ep->fid, name, &length) == 0);
    tell(peer, name, sizeof(name));
    hear(peer, name, sizeof(name));
    CHECK(fi_av_insert(*av, name, 1, other, 0, NULL) == 1);
    return ep;
}

static void owns_with_two_endpoints(struct peer *peer) {
    char *memory = memory_of(MIB);
    fi_addr_t other;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    ep = second_endpoint(peer, &av, &other);
    mr = offer_region(peer, memory, FI_REMOTE_READ);
    meet(peer);
    /* Sees that the other side closed one of its endpoints. */
    for (int i = 0; i < 1000; i++)
        progress(peer);
    meet(peer);
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0 && fi_close(&ep->fid) == 0 && fi_close(&av->fid) == 0);
    close_peer(peer);
}

static void reads_with_two_endpoints(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    fi_addr_t other;
    struct fid_av *av;
    struct fid_ep *ep;
    struct offer offer;

    open_peer(peer, CAPS, MODES);
    ep = second_endpoint(peer, &av, &other);
    hear(peer, &offer, sizeof(offer));
    CHECK(read_once(peer, memory, MIB, offer.address, offer.key) == 0);
    UNTIL_ROOM(peer, fi_read(ep, memory, MIB, NULL, other, offer.address, offer.key, NULL));
    CHECK(next(peer, &entry) == 0);
    CHECK(fi_close(&ep->fid) == 0 && fi_close(&av->fid) == 0);
    meet(peer);
    meet(peer);
    CHECK(read_once(peer, memory, MIB, offer.address, offer.key) == 0);
    meet(peer);
    close_peer(peer);
}

static void leaves_a_child(struct peer *peer) {
    pid_t child;

    open_peer(peer, CAPS, MODES);
    meet(peer);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        pause();
        _exit(0);
    }
    CHECK(fi_close(&peer->ep->fid) == 0);
    peer->ep = NULL;
    hear(peer, &(char){0}, 1);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void sends_to_what_a_child_has(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);

    open_peer(peer, CAPS, MODES);
    UNTIL_ROOM(peer, fi_send(peer->ep, memory, MIB, NULL, peer->other, NULL));
    meet(peer);
    CHECK(next(peer, &entry) == FI_ECONNRESET);
    tell(peer, "", 1);
    close_peer(peer);
}

/* ---- Ends ---- */

static void dies(struct peer *peer) {
    char *memory = memory_of(MIB);

    open_peer(peer, CAPS, MODES);
    (void)offer_region(peer, memory, FI_REMOTE_READ);
    meet(peer);
    raise(SIGKILL);
}

static void outlives(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    unsigned failed = 0;
    struct offer offer;
    ssize_t status;

    open_peer(peer, CAPS, MODES);
    hear(peer, &offer, sizeof(offer));
    CHECK(read_once(peer, memory, MIB, offer.address, offer.key) == 0);
    UNTIL_ROOM(peer, fi_send(peer->ep, memory, MIB, NULL, peer->other, &failed));
    CHECK(fi_recv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, &status) == 0);
    meet(peer);
    /* The message that nobody took, then what is sent to nobody. */
    CHECK(next(peer, &entry) == FI_ECONNRESET && entry.op_context == &failed);
    CHECK(fi_send(peer->ep, memory, 1, NULL, peer->other, &failed) == 0);
    CHECK(next(peer, &entry) == FI_ECONNREFUSED && entry.op_context == &failed);
    CHECK(read_once(peer, memory, 8, offer.address, offer.key) == FI_ECONNREFUSED);
    CHECK(fi_inject(peer->ep, memory, 1, peer->other) == -FI_ECONNREFUSED);
    /* A receive from anybody waits on. */
    CHECK(fi_cancel(&peer->ep->fid, &status) == 0 && next(peer, &entry) == FI_ECANCELED);
    close_peer(peer);
}

static void owns_while_the_service_dies(struct peer *peer) {
    char *memory = memory_of(MIB);
    struct fi_cq_tagged_entry entry;

    open_peer(peer, CAPS, MODES);
    (void)offer_region(peer, memory, FI_REMOTE_READ);
    CHECK(fi_recv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, NULL) == 0);
    CHECK(next(peer, &entry) == 0 && entry.len == MIB / 2);
    meet(peer);
}

static void reads_while_the_service_dies(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    struct offer offer;

    open_peer(peer, CAPS, MODES);
    hear(peer, &offer, sizeof(offer));
    CHECK(read_once(peer, memory, MIB, offer.address, offer.key) == 0);
    CHECK(kill(service, SIGKILL) == 0);
    CHECK(read_once(peer, memory, MIB, offer.address, offer.key) == FI_EIO);
    /* Messages need no service. */
    UNTIL_ROOM(peer, fi_send(peer->ep, memory, MIB / 2, NULL, peer->other, NULL));
    CHECK(next(peer, &entry) == 0);
    meet(peer);
}

/* ---- Wrong requests ---- */

static void refuses(const struct fi_info *hints) {
    struct fi_info *info;

    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == -FI_ENODATA);
}

static void asks_for_too_much(void) {
    struct fi_info *hints = hints_for(CAPS, MODES), *info;
    struct fi_info good = *hints;

    hints->caps = FI_ATOMIC;
    refuses(hints);
    hints->caps = FI_MSG | FI_REMOTE_COMM;
    refuses(hints);
    hints->caps = good.caps;
    hints->ep_attr->type = FI_EP_MSG;
    refuses(hints);
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->msg_order = FI_ORDER_RAW;
    refuses(hints);
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    refuses(hints);
    hints->domain_attr->data_progress = FI_PROGRESS_UNSPEC;
    hints->tx_attr->inject_size = 4097;
    refuses(hints);
    hints->tx_attr->inject_size = 4096;
    CHECK(fi_getinfo(FI_VERSION(1, 17), "no such node", NULL, 0, hints, &info) == -FI_ENODATA);
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void sends_nonsense(struct peer *peer) {
    struct iovec iov[5] = {{peer, 1}, {peer, 1}, {peer, 1}, {peer, 1}, {peer, 1}};
    struct fi_msg message = {.msg_iov = iov, .iov_count = 1, .addr = peer->other};
    char *memory = memory_of(MIB);

    CHECK(fi_send(peer->ep, memory, 1, NULL, 12345, NULL) == -FI_EINVAL);
    CHECK(fi_send(peer->ep, memory, 1, NULL, FI_ADDR_UNSPEC, NULL) == -FI_EINVAL);
    CHECK(fi_read(peer->ep, memory, 1, NULL, 12345, 0, 0, NULL) == -FI_EINVAL);
    CHECK(fi_recv(peer->ep, memory, 1, NULL, 12345, NULL) == -FI_EINVAL);
    CHECK(fi_sendv(peer->ep, iov, NULL, 5, peer->other, NULL) == -FI_EINVAL);
    CHECK(fi_recvv(peer->ep, iov, NULL, 5, peer->other, NULL) == -FI_EINVAL);
    CHECK(fi_readv(peer->ep, iov, NULL, 5, peer->other, 0, 0, NULL) == -FI_EINVAL);
    CHECK(fi_inject(peer->ep, memory, 4097, peer->other) == -FI_EMSGSIZE);
    CHECK(fi_inject_write(peer->ep, memory, 4097, peer->other, 0, 0) == -FI_EINVAL);
    CHECK(fi_sendmsg(peer->ep, &message, FI_FENCE) == -FI_EINVAL);
    CHECK(fi_recvmsg(peer->ep, &message, FI_MULTI_RECV) == -FI_EINVAL);
    CHECK(fi_recvmsg(peer->ep, &message, FI_PEEK) == -FI_EINVAL);
}

static void binds_what_is_elsewhere(struct peer *peer, struct fid_ep *ep) {
    struct fi_cntr_attr cntr_attr = {0};
    struct fi_cq_attr cq_attr = {0};
    struct fid_domain *domain;
    struct fid_cntr *counter;
    struct fid_cq *cq;

    CHECK(fi_domain(peer->fabric, peer->info, &domain, NULL) == 0);
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0 && fi_cntr_open(domain, &cntr_attr, &counter, NULL) == 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT) == -FI_EINVAL && fi_ep_bind(ep, &counter->fid, FI_SEND) == -FI_EINVAL);
    CHECK(fi_close(&counter->fid) == 0 && fi_close(&cq->fid) == 0 && fi_close(&domain->fid) == 0);
    CHECK(fi_accept(ep, NULL, 0) == -FI_ENOSYS);
}

static void makes_mistakes(struct peer *peer) {
    struct fi_cq_attr cq_attr = {.wait_obj = FI_WAIT_FD};
    const char *addresses = "memferry://0/0123456789abcdef\0memferry://0/0123456789ABCDEF\0memferry://x/1";
    struct fid_ep *ep;
    struct fid_mr *mr;
    struct fid_cq *cq;
    fi_addr_t found[3];

    asks_for_too_much();
    open_peer(peer, CAPS, MODES);
    CHECK(fi_av_insert(peer->av, addresses, 3, found, 0, NULL) == 1);
    CHECK(found[0] != FI_ADDR_NOTAVAIL && found[1] == FI_ADDR_NOTAVAIL && found[2] == FI_ADDR_NOTAVAIL);
    CHECK(fi_av_remove(peer->av, found, 1, 0) == 0 && fi_av_remove(peer->av, found, 1, 0) == -FI_EINVAL);
    sends_nonsense(peer);
    CHECK(fi_cq_open(peer->domain, &cq_attr, &cq, NULL) == -FI_ENOSYS);
    CHECK(fi_mr_reg(peer->domain, peer, 1, FI_MULTICAST, 0, 0, 0, &mr, NULL) == -FI_EINVAL);
    CHECK(fi_mr_reg(peer->domain, (void *)-8, 16, FI_READ, 0, 0, 0, &mr, NULL) == -FI_EINVAL);
    CHECK(fi_endpoint(peer->domain, peer->info, &ep, NULL) == 0);
    binds_what_is_elsewhere(peer, ep);
    CHECK(fi_enable(ep) == -FI_ENOAV);
    CHECK(fi_send(ep, peer, 1, NULL, peer->other, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_ep_bind(ep, &peer->av->fid, 0) == 0 && fi_enable(ep) == -FI_ENOCQ);
    CHECK(fi_ep_bind(ep, &peer->av->fid, 0) == -FI_EINVAL);
    CHECK(fi_ep_bind(ep, &peer->cq->fid, FI_READ) == -FI_EINVAL);
    CHECK(fi_close(&peer->cq->fid) == -FI_EBUSY && fi_close(&peer->av->fid) == -FI_EBUSY);
    CHECK(fi_close(&peer->domain->fid) == -FI_EBUSY && fi_close(&peer->fabric->fid) == -FI_EBUSY);
    CHECK(fi_close(&ep->fid) == 0);
    meet(peer);
    close_peer(peer);
}

static void waits(struct peer *peer) {
    open_peer(peer, CAPS, MODES);
    meet(peer);
    close_peer(peer);
}

static void sends_uninvited(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);

    become_another_user();
    open_peer(peer, CAPS, MODES);
    UNTIL_ROOM(peer, fi_send(peer->ep, memory, MIB, NULL, peer->other, NULL));
    /* It is turned away before or after its greeting. */
    int error = next(peer, &entry);
    CHECK(error == FI_ECONNRESET || error == FI_ECONNREFUSED);
    meet(peer);
    close_peer(peer);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: %s MEMFERRY SOCKET\n", arguments[0]);
        return 2;
    }
    start_service(arguments[1], arguments[2]);
    unsetenv("FI_MEMFERRY_CLAIM_REMOTE");
    setenv("FI_MEMFERRY_MOVE", "65536", 1);
    play("messages of many lengths, of plain and of registered memory", send_all, receive_all, 0);
    play("messages that come early: tags, peeks, claims, truncation, cancellation", send_early, receive_late, 0);
    play("memory of a peer, moved by the engine", owns_frames, uses_frames, 0);
    play("memory of a peer, with keys and offsets of the program", owns_scalable, uses_scalable, 0);
    play("memory of a peer that is no frame, as of a program with jemalloc", owns_plain, uses_plain, 0);
    play("rights of regions", owns_with_one_right, lacks_rights, 0);
    play("a region that is closed within a read", closes_within_a_read, reads_what_is_closed, 0);
    play("memory that took the place of a frame", owns_a_target, writes_what_replaced_a_frame, 0);
    play("two endpoints, one of which is closed", owns_with_two_endpoints, reads_with_two_endpoints, 0);
    play("an endpoint that ends while a child has its sockets", leaves_a_child, sends_to_what_a_child_has, 0);
    play("a long message that is acknowledged", takes_its_time, waits_for_delivery, 0);
    play("wrong requests", makes_mistakes, waits, 0);
    play("a peer that dies", outlives, dies, SIGKILL);
    if (geteuid() == 0) {
        play("memory of another user", owns_for_another_user, uses_another_users, 0);
        play("messages to another user", sends_to_another_user, receives_from_another_user, 0);
        play("a user who is not welcome", waits, sends_uninvited, 0);
    } else {
        printf("left out: scenes with another user need root\n");
    }
    play("a service that dies", owns_while_the_service_dies, reads_while_the_service_dies, 0);
    stop_service();
    printf("all scenes passed\n");
    return 0;
}
