/* A peer that does not keep the rules: what it sends to a process with this provider, which has to go on.
 *
 *     hostile MEMFERRY SOCKET [ROUNDS]
 *
 * One process has an endpoint and also serves a good peer. The other one writes greetings and rings by itself, wrong in all ways that
 * are named here and in ROUNDS random ones. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "../provider.h"

#include "peer.h"
#include "raw.h"

#define REGION_BYTES 65536
#define CAPS (FI_MSG | FI_TAGGED | FI_RMA)
#define MODES (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)

static unsigned rounds = 2000;
static uint64_t state = 0x9e3779b97f4a7c15ULL;

static uint64_t chance(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void wrong_greetings(const char *name) {
    struct head *head;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    int memfd = make_ring(HEAD_BYTES + RING_BYTES, seals, &head);
    int unsealed = make_ring(HEAD_BYTES + RING_BYTES, 0, &head);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct greeting wrong[6] = {good, good, good, good, good, good};
    int one;

    wrong[0].magic++;
    wrong[1].version++;
    wrong[2].ring_bytes = RING_BYTES - 1;
    wrong[3].ring_bytes = 1ULL << 63;
    snprintf(wrong[4].name, sizeof(wrong[4].name), "memferry://%u/00000000deadbeef", geteuid() + 1);
    memset(wrong[5].name, 'm', sizeof(wrong[5].name));
    for (int i = 0; i < 6; i++) {
        one = connect_to(name);
        greet(one, &wrong[i], sizeof(good), memfd);
        is_closed(one);
    }
    const struct {
        size_t length;
        int descriptor;
    } others[] = {{sizeof(good) - 1, memfd}, {1, memfd}, {sizeof(good), -1}, {sizeof(good), unsealed}, {sizeof(good), file}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        one = connect_to(name);
        greet(one, &good, others[i].length, others[i].descriptor);
        is_closed(one);
    }
    close(connect_to(name));
    close(memfd);
    close(unsealed);
    close(file);
}

/* Each of these ends the connection. */
static void wrong_records(const char *name) {
    const struct record wrong[] = {
        {.kind = 0},
        {.kind = 99},
        {.kind = RECORD_GO, .id = 1},
        {.kind = RECORD_DONE},
        {.kind = RECORD_OPENED},
        {.kind = RECORD_CLOSED},
        {.kind = RECORD_EAGER, .length = 40000, .total = 40000},
        {.kind = RECORD_EAGER, .length = 64, .total = 65},
        {.kind = RECORD_EAGER, .length = UINT32_MAX, .total = UINT32_MAX},
        {.kind = RECORD_LONG, .total = UINT64_MAX},
        {.kind = RECORD_LONG, .total = 0},
    };
    struct ring ring;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ring = open_ring(name);
        put(&ring, &wrong[i]);
        is_closed(ring.socket);
        munmap(ring.head, HEAD_BYTES + RING_BYTES);
    }
    /* Counters beyond the ring. */
    const uint64_t counts[] = {1, 63, RING_BYTES + 64, UINT64_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        ring = open_ring(name);
        atomic_store(&ring.head->produced, counts[i]);
        is_closed(ring.socket);
        munmap(ring.head, HEAD_BYTES + RING_BYTES);
    }
    /* It says that it has read what nobody sent; the answer to this record finds that out. */
    ring = open_ring(name);
    atomic_store(&ring.head->consumed, 4096);
    put(&ring, &(struct record){.kind = RECORD_OPEN, .key = 1});
    is_closed(ring.socket);
    munmap(ring.head, HEAD_BYTES + RING_BYTES);
}

/* Asks for what a peer may not have. Each is refused, and the connection goes on. */
static void greedy_records(const char *name, uint64_t key, uint64_t address, uint64_t length) {
    const struct record greedy[] = {
        {.kind = RECORD_READ, .key = key, .address = address + length - 8, .total = 9},
        {.kind = RECORD_READ, .key = key, .address = address - 1, .total = 8},
        {.kind = RECORD_READ, .key = key, .address = address + length + 1, .total = 1},
        {.kind = RECORD_READ, .key = key, .address = UINT64_MAX, .total = 8},
        {.kind = RECORD_READ, .key = key, .address = address, .total = UINT64_MAX},
        {.kind = RECORD_READ, .key = key + 1, .address = address, .total = 8},
        /* It may only be read. */
        {.kind = RECORD_WRITE, .key = key, .address = address, .length = 8},
    };
    struct ring ring = open_ring(name);
    const struct head *theirs = take_greeting(ring.socket);
    time_t since = time(NULL);

    for (size_t i = 0; i < sizeof(greedy) / sizeof(greedy[0]); i++) {
        struct record answer;

        put(&ring, &greedy[i]);
        while (atomic_load(&((struct head *)(uintptr_t)theirs)->produced) < (i + 1) * sizeof(answer))
            patience(since);
        memcpy(&answer, (const uint8_t *)theirs + HEAD_BYTES + i * sizeof(answer), sizeof(answer));
        CHECK(answer.kind == RECORD_DONE && answer.tag != 0);
    }
    close(ring.socket);
}

/* Records that have a meaning, with numbers that may have none. */
static void random_records(const char *name, uint64_t key, uint64_t address) {
    static const uint8_t kinds[] = {RECORD_EAGER, RECORD_LONG, RECORD_OPEN, RECORD_READ, RECORD_WRITE, RECORD_IMMEDIATE, RECORD_FORGET, RECORD_DATA};

    for (unsigned round = 0; round < rounds; round++) {
        struct ring ring = open_ring(name);
        unsigned count = (unsigned)(chance() % 40) + 1;

        for (unsigned i = 0; i < count; i++) {
            struct record record = {.kind = kinds[chance() % sizeof(kinds)], .flags = (uint8_t)(chance() & 15)};

            record.length = (uint32_t)(chance() % 3 ? chance() % 512 : chance());
            if (record.length > 1024)
                record.length = 0;
            record.total = chance() % 2 ? record.length : chance() >> (chance() % 64);
            record.id = chance() >> (chance() % 64);
            record.address = chance() % 2 ? address + chance() % 70000 : chance() >> (chance() % 64);
            record.key = chance() % 2 ? key : chance();
            record.tag = 1000 + chance() % 100;
            put(&ring, &record);
        }
        if (round % 16 == 0)
            memset((uint8_t *)ring.head + HEAD_BYTES, (int)chance(), RING_BYTES);
        close(ring.socket);
        munmap(ring.head, HEAD_BYTES + RING_BYTES);
    }
}

struct offer {
    uint64_t address;
    uint64_t key;
};

/* A good peer beside the hostile one: it is the one that the victim answers. */
static void attacks(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    struct offer offer;
    char victim[sizeof(peer->name)];
    char text[8] = "";

    open_peer(peer, CAPS, MODES);
    size_t length = sizeof(victim);
    CHECK(fi_av_lookup(peer->av, peer->other, victim, &length) == 0);
    hear(peer, &offer, sizeof(offer));
    wrong_greetings(victim);
    wrong_records(victim);
    greedy_records(victim, offer.key, offer.address, REGION_BYTES);
    random_records(victim, offer.key, offer.address);
    /* The victim still answers. */
    UNTIL_ROOM(peer, fi_tsend(peer->ep, "ping", 4, NULL, peer->other, 1, NULL));
    CHECK(next(peer, &entry) == 0);
    CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, 2, 0, NULL) == 0);
    CHECK(next(peer, &entry) == 0 && entry.len == 4 && memcmp(text, "pong", 4) == 0);
    close_peer(peer);
}

static void endures(struct peer *peer) {
    char *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct fi_cq_tagged_entry entry;
    struct fid_mr *mr;
    struct offer offer;
    int error;

    CHECK(memory != MAP_FAILED);
    open_peer(peer, CAPS, MODES);
    /* What a peer may read, and nothing around it. */
    CHECK(fi_mr_reg(peer->domain, memory + 4096, REGION_BYTES, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == 0);
    offer = (struct offer){(uintptr_t)memory + 4096, fi_mr_key(mr)};
    tell(peer, &offer, sizeof(offer));
    CHECK(fi_trecv(peer->ep, memory, 4, NULL, FI_ADDR_UNSPEC, 1, 0, NULL) == 0);
    /* Random writes with data for the completion queue are completions too. */
    do
        error = next(peer, &entry);
    while (error == 0 && entry.tag != 1);
    CHECK(error == 0 && memcmp(memory, "ping", 4) == 0);
    for (size_t i = 4; i < 1 << 20; i++)
        CHECK(memory[i] == 0);
    UNTIL_ROOM(peer, fi_tsend(peer->ep, "pong", 4, NULL, peer->other, 2, NULL));
    do
        error = next(peer, &entry);
    while (error == 0 && !(entry.flags & FI_SEND));
    CHECK(error == 0);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

/* Takes the greeting of the side that connected, with its ring. */
static const struct record *first_record(int one) {
    struct greeting greeting;
    struct iovec iov = {&greeting, sizeof(greeting)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    const uint8_t *ring;
    int memfd;

    CHECK(recvmsg(one, &message, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof(greeting));
    memcpy(&memfd, CMSG_DATA(&control.header), sizeof(memfd));
    ring = mmap(NULL, HEAD_BYTES + greeting.ring_bytes, PROT_READ, MAP_SHARED, memfd, 0);
    CHECK(ring != MAP_FAILED);
    close(memfd);
    return (const struct record *)(const void *)(ring + HEAD_BYTES);
}

/* Asks for the bytes of a message that has brought them: the sender may use its buffer for something else. */
static void asks_again(struct peer *peer) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(good.name));
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const struct record *sent;
    struct ring ring = {.socket = -1};
    int memfd;

    memcpy(address.sun_path + 1, good.name, strlen(good.name));
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    tell(peer, "", 1);
    ring.socket = accept(listener, NULL, NULL);
    CHECK(ring.socket >= 0);
    hear(peer, &(char){0}, 1);
    sent = first_record(ring.socket);
    CHECK(sent->kind == RECORD_EAGER && sent->total == 8 && sent->flags & RECORD_ACKNOWLEDGE);
    memfd = make_ring(HEAD_BYTES + RING_BYTES, F_SEAL_SHRINK, &ring.head);
    greet(ring.socket, &good, sizeof(good), memfd);
    put(&ring, &(struct record){.kind = RECORD_GO, .id = sent->id, .total = 8});
    is_closed(ring.socket);
}

static void sends_once(struct peer *peer) {
    char text[8] = "injected";
    struct iovec iov = {text, sizeof(text)};
    struct fi_cq_tagged_entry entry;

    open_domain(peer, CAPS, MODES);
    open_endpoint(peer);
    hear(peer, &(char){0}, 1);
    CHECK(fi_av_insert(peer->av, good.name, 1, &peer->other, 0, NULL) == 1);
    struct fi_msg message = {&iov, NULL, 1, peer->other, NULL, 0};
    UNTIL_ROOM(peer, fi_sendmsg(peer->ep, &message, FI_INJECT | FI_DELIVERY_COMPLETE | FI_COMPLETION));
    tell(peer, "", 1);
    CHECK(next(peer, &entry) == FI_ECONNRESET);
    close_peer(peer);
}

int main(int count, char **arguments) {
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: %s MEMFERRY SOCKET [ROUNDS]\n", arguments[0]);
        return 2;
    }
    snprintf(good.name, sizeof(good.name), "memferry://%u/00000000deadbeef", geteuid());
    if (count == 4)
        rounds = (unsigned)atoi(arguments[3]);
    start_service(arguments[1], arguments[2]);
    play("a peer that does not keep the rules", attacks, endures, 0);
    play("a receiver that asks again for what it has", asks_again, sends_once, 0);
    stop_service();
    printf("all scenes passed\n");
    return 0;
}
