/* What ends in time: what another user may take of this process, endpoints that are closed with operations under way, forked children,
 * connections that cannot be greeted, reads of a region whose key passes to another one, and descriptors that are slow to close.
 *
 *     bounds MEMFERRY SOCKET
 *
 * Scenes with another user need root. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "../provider.h"

#include "peer.h"
#include "raw.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/resource.h>

#define CAPS (FI_MSG | FI_TAGGED | FI_RMA)
#define MODES (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define MIB (1 << 20)
#define REGION_BYTES (3 * MIB)
#define ANOTHER_USER 65534
#define A_STRANGER 65533

static void is_quiet(struct peer *peer) {
    struct fi_cq_tagged_entry entry;

    CHECK(fi_cq_read(peer->cq, &entry, 1) == -FI_EAGAIN);
}

static uint64_t now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* ---- What another user may take ---- */

#define CONNECTIONS 4
#define TRIED 8
/* Each message counts 4 KiB. Half of them may come by any connection. */
#define USER_BYTES "1048576"
#define MESSAGES 256
#define UNWANTED 666

struct flood {
    struct ring rings[CONNECTIONS];
    const struct head *theirs[CONNECTIONS];
};

/* Messages of a connection that the victim took out of its ring. */
static uint64_t taken_of(const struct flood *flood, int i) {
    return atomic_load(&((struct head *)(uintptr_t)flood->theirs[i])->consumed) / sizeof(struct record);
}

static uint64_t taken(const struct flood *flood) {
    uint64_t sum = 0;

    for (int i = 0; i < CONNECTIONS; i++)
        sum += taken_of(flood, i);
    return sum;
}

/* Fills the first rings with messages that nobody receives. Gives how many were sent by them in all. */
static uint64_t fill(struct flood *flood, int count) {
    const struct record message = {.kind = RECORD_EAGER, .flags = RECORD_TAGGED, .tag = UNWANTED};
    uint64_t sent = 0;

    for (int i = 0; i < count; i++) {
        struct ring *ring = &flood->rings[i];

        while (ring->produced / sizeof(message) - taken_of(flood, i) < RING_BYTES / sizeof(message))
            put(ring, &message);
        sent += ring->produced / sizeof(message);
    }
    return sent;
}

static void open_flood(struct flood *flood, const char *victim) {
    for (int i = 0; i < CONNECTIONS; i++) {
        flood->rings[i] = open_ring(victim);
        flood->theirs[i] = take_greeting(flood->rings[i].socket);
    }
}

static void close_flood(const struct flood *flood) {
    for (int i = 0; i < CONNECTIONS; i++)
        close(flood->rings[i].socket);
}

/* Whether a connection is taken. Else it is closed without a greeting. */
static bool is_taken(const char *victim) {
    struct timeval limit = {PATIENCE_SECONDS, 0};
    struct greeting answer;
    struct head *head;
    int one = connect_to(victim), memfd = make_ring(HEAD_BYTES + RING_BYTES, F_SEAL_SHRINK, &head);
    ssize_t got;

    (void)greet_if_open(one, &good, sizeof(good), memfd);
    CHECK(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    got = recv(one, &answer, sizeof(answer), 0);
    CHECK(got == (ssize_t)sizeof(answer) || got == 0 || (got < 0 && errno == ECONNRESET));
    close(memfd);
    close(one);
    munmap(head, HEAD_BYTES + RING_BYTES);
    return got > 0;
}

/* The other user: `line` leads to the friend, which says when it has worked with the victim. */
static void floods(int line, const char *victim) {
    struct flood flood;
    uint64_t before, sent;
    char here;

    CHECK(setgid(ANOTHER_USER) == 0 && setuid(ANOTHER_USER) == 0);
    snprintf(good.name, sizeof(good.name), "memferry://%u/00000000deadbeef", geteuid());
    open_flood(&flood, victim);
    for (int i = 0; i < TRIED; i++)
        CHECK(!is_taken(victim));
    do {
        before = taken(&flood);
        sent = fill(&flood, CONNECTIONS);
        CHECK(send(line, &sent, sizeof(sent), 0) == sizeof(sent) && recv(line, &here, 1, 0) == 1);
    } while (taken(&flood) != before);
    CHECK(before >= MESSAGES / 2 && before <= MESSAGES);
    sent = 0;
    CHECK(send(line, &sent, sizeof(sent), 0) == sizeof(sent));
    sent = fill(&flood, CONNECTIONS);
    CHECK(send(line, &sent, sizeof(sent), 0) == sizeof(sent) && recv(line, &here, 1, 0) == 1);
    CHECK(taken(&flood) == sent);
    /* All were received: by one connection it may send half as many again, and more than its equal part. */
    sent = taken_of(&flood, 0) + MESSAGES / 2;
    for (time_t since = time(NULL); taken_of(&flood, 0) < sent;) {
        fill(&flood, 1);
        patience(since);
    }
    /* It may connect anew when it has left. */
    close_flood(&flood);
    for (time_t since = time(NULL); !is_taken(victim);)
        patience(since);
    CHECK(send(line, &sent, sizeof(sent), 0) == sizeof(sent));
    _exit(0);
}

/* Starts a process that acts on the endpoint of the peer, which is named to it, and ends with this one. Gives the line to it. */
static pid_t start_beside(struct peer *peer, void (*act)(int line, const char *victim), int *line) {
    char victim[sizeof(peer->name)];
    size_t length = sizeof(victim);
    int lines[2];
    pid_t child;

    CHECK(fi_av_lookup(peer->av, peer->other, victim, &length) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        act(lines[1], victim);
    }
    close(lines[1]);
    *line = lines[0];
    return child;
}

/* A process of the owner's user, which is served while the other user floods. */
static void befriends(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char text[8];
    uint64_t sent;
    int line, status;
    pid_t child;

    open_peer(peer, CAPS, MODES);
    child = start_beside(peer, floods, &line);
    for (;;) {
        CHECK(recv(line, &sent, sizeof(sent), 0) == sizeof(sent));
        if (sent == 0)
            break;
        for (int i = 0; i < 300; i++) {
            CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, 2, 0, NULL) == 0);
            UNTIL_ROOM(peer, fi_tsend(peer->ep, "ping", 4, NULL, peer->other, 1, NULL));
            CHECK(next(peer, &entry) == 0 && next(peer, &entry) == 0);
        }
        CHECK(send(line, "", 1, 0) == 1);
    }
    UNTIL_ROOM(peer, fi_tinject(peer->ep, "stop", 4, peer->other, 1));
    CHECK(recv(line, &sent, sizeof(sent), 0) == sizeof(sent));
    tell(peer, &sent, sizeof(sent));
    hear(peer, text, 1);
    CHECK(send(line, "", 1, 0) == 1 && recv(line, &sent, sizeof(sent), 0) == sizeof(sent));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    meet(peer);
    close_peer(peer);
}

static void is_flooded(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char text[8] = "";
    uint64_t sent;

    setenv("FI_MEMFERRY_USERS", "65534", 1);
    setenv("FI_MEMFERRY_USER_CONNECTIONS", "4", 1);
    setenv("FI_MEMFERRY_USER_BYTES", USER_BYTES, 1);
    open_peer(peer, CAPS, MODES);
    for (;;) {
        CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, 1, 0, NULL) == 0);
        CHECK(next(peer, &entry) == 0 && entry.tag == 1);
        if (memcmp(text, "stop", 4) == 0)
            break;
        UNTIL_ROOM(peer, fi_tinject(peer->ep, "pong", 4, peer->other, 2));
    }
    hear(peer, &sent, sizeof(sent));
    for (uint64_t i = 0; i < sent; i++) {
        CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, UNWANTED, 0, NULL) == 0);
        CHECK(next(peer, &entry) == 0 && entry.tag == UNWANTED);
    }
    tell(peer, text, 1);
    meet(peer);
    close_peer(peer);
}

/* ---- Descriptors that are slow to close ---- */

/* More than wait until they are closed. */
#define STRANGERS 100

/* A TCP socket whose closing takes an hour, unless `ends` does: that end reads nothing. */
static int lingering(int *ends) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char bytes[65536];
    socklen_t length = sizeof(address);
    struct linger hour = {1, 3600};
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *ends = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(*ends, (struct sockaddr *)&address, length) == 0 && listen(*ends, 1) == 0);
    CHECK(getsockname(*ends, (struct sockaddr *)&address, &length) == 0);
    CHECK(connect(one, (struct sockaddr *)&address, length) == 0);
    while (send(one, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    CHECK(errno == EAGAIN && setsockopt(one, SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)) == 0);
    return one;
}

static void become(uid_t user) {
    CHECK(seteuid(0) == 0 && seteuid(user) == 0);
    snprintf(good.name, sizeof(good.name), "memferry://%u/00000000deadbeef", user);
}

/* Sends a message with a slow descriptor after others, and has no copy of it. The victim must not look before: the last copy is slow. */
static void sends_slow(int one, const void *bytes, size_t length, int before, int slow) {
    const int both[] = {before, slow};

    CHECK(send_with(one, bytes, length, before < 0 ? &slow : both, before < 0 ? 1 : 2));
    close(slow);
}

/* What a user who may connect can do: the descriptor comes in place of memory, beside it, and after it. */
static void lingers_as_a_guest(const char *victim, int guests[3], int ends[3]) {
    struct head *head;
    int memfd = make_ring(HEAD_BYTES + RING_BYTES, F_SEAL_SHRINK, &head);

    become(ANOTHER_USER);
    for (int i = 0; i < 3; i++)
        guests[i] = connect_to(victim);
    sends_slow(guests[0], &good, sizeof(good), -1, lingering(&ends[0]));
    sends_slow(guests[1], &good, sizeof(good), memfd, lingering(&ends[1]));
    CHECK(send_with(guests[2], &good, sizeof(good), &memfd, 1));
    sends_slow(guests[2], "", 1, -1, lingering(&ends[2]));
    close(memfd);
}

/* The first closing takes an hour; the others find no thread. */
static void crowd(const char *victim, int strangers[STRANGERS], int *end) {
    become(A_STRANGER);
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = connect_to(victim);
    sends_slow(strangers[0], "", 1, -1, lingering(end));
}

static void all_are_closed(const int *sockets, int count) {
    for (int i = 0; i < count; i++)
        is_closed(sockets[i]);
}

static void next_act(int line) { CHECK(send(line, "", 1, 0) == 1 && recv(line, &(char){0}, 1, 0) == 1); }

/* `line` leads to the friend. After each act it works with the victim, which did nothing before. */
static void lingers(int line, const char *victim) {
    int strangers[STRANGERS], guests[3], ends[3], end, refused = 0;

    lingers_as_a_guest(victim, guests, ends);
    crowd(victim, strangers, &end);
    next_act(line);
    all_are_closed(guests, 3);
    for (int i = 0; i < STRANGERS; i++)
        refused += recv(strangers[i], &(char){0}, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
    CHECK(refused > 0 && refused < STRANGERS);
    /* All are refused when closing is quick again. */
    for (int i = 0; i < 3; i++)
        close(ends[i]);
    close(end);
    all_are_closed(strangers, STRANGERS);
    next_act(line);
    crowd(victim, strangers, &end);
    next_act(line);
    /* The endpoint is closed. */
    close(end);
    all_are_closed(strangers, STRANGERS);
    CHECK(send(line, "", 1, 0) == 1);
    _exit(0);
}

/* Exchanges pings with the peer, which answers until a message ends it. */
static void works(struct peer *peer, int rounds) {
    struct fi_cq_tagged_entry entry;
    char text[8];

    wake_idle(peer);
    for (int i = 0; i < rounds; i++) {
        CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, 2, 0, NULL) == 0);
        UNTIL_ROOM(peer, fi_tsend(peer->ep, "ping", 4, NULL, peer->other, 1, NULL));
        CHECK(next(peer, &entry) == 0 && next(peer, &entry) == 0);
    }
}

static void stop(struct peer *peer) {
    UNTIL_ROOM(peer, fi_tinject(peer->ep, "stop", 4, peer->other, 1));
    hear(peer, &(char){0}, 1);
}

static void works_meanwhile(struct peer *peer) {
    char here;
    int line, status;
    pid_t child;

    open_peer(peer, CAPS, MODES);
    /* Those who are connected stay so. */
    works(peer, 1);
    stop(peer);
    child = start_beside(peer, lingers, &line);
    CHECK(recv(line, &here, 1, 0) == 1);
    works(peer, 300);
    next_act(line);
    stop(peer);
    next_act(line);
    works(peer, 300);
    stop(peer);
    next_act(line);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    wake_idle(peer);
    close_peer(peer);
}

static void serves(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char text[8];

    hear_idle(peer);
    for (;;) {
        CHECK(fi_trecv(peer->ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, 1, 0, NULL) == 0);
        CHECK(next(peer, &entry) == 0 && entry.tag == 1);
        if (memcmp(text, "stop", 4) == 0)
            return;
        UNTIL_ROOM(peer, fi_tinject(peer->ep, "pong", 4, peer->other, 2));
    }
}

static void is_besieged(struct peer *peer) {
    int status;
    pid_t child;

    /* A thread that waits for a descriptor hears this. */
    alarm(2 * PATIENCE_SECONDS);
    setenv("FI_MEMFERRY_USERS", "65534", 1);
    open_peer(peer, CAPS, MODES);
    for (int act = 0; act < 3; act++) {
        serves(peer);
        if (act < 2)
            wake_idle(peer);
    }
    /* A forked child has no thread that closes, nor does it wait for the parent's. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(PATIENCE_SECONDS);
        close_peer(peer);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close_peer(peer);
    wake_idle(peer);
    hear_idle(peer);
}

/* ---- Endpoints that are closed with operations under way ---- */

struct offer {
    uint64_t address;
    uint64_t key;
};

static struct fid_mr *offer_region(struct peer *peer, char *memory) {
    struct offer offer;
    struct fid_mr *mr;

    paint(memory, REGION_BYTES, 1);
    CHECK(fi_mr_reg(peer->domain, memory, REGION_BYTES, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == 0);
    offer = (struct offer){(uintptr_t)memory, fi_mr_key(mr)};
    tell(peer, &offer, sizeof(offer));
    return mr;
}

static void offers(struct peer *peer) {
    char *memory = memory_of(REGION_BYTES);
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    mr = offer_region(peer, memory);
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

/* Whether a thread of the service still runs. A signal to stop has reached all of them only after a while. */
static bool runs(const char *thread) {
    char path[300], text[300] = "";
    const char *end;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)service, thread);
    file = fopen(path, "re");
    CHECK(file && fgets(text, sizeof(text), file));
    fclose(file);
    end = strrchr(text, ')');
    return !end || strncmp(end, ") T", 3) != 0;
}

static void stop_for_a_while(void) {
    char path[64];
    time_t since = time(NULL);
    bool is_running = true;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)service);
    CHECK(kill(service, SIGSTOP) == 0);
    while (is_running) {
        DIR *threads = opendir(path);

        CHECK(threads);
        is_running = false;
        for (struct dirent *thread; (thread = readdir(threads));)
            is_running = is_running || (thread->d_name[0] != '.' && runs(thread->d_name));
        closedir(threads);
        patience(since);
    }
}

/* Opens the region, so that the next read is the engine's, then stops the service and reads. */
static char *reads_without_a_service(struct peer *peer, struct offer *offer) {
    char *memory = memory_of(REGION_BYTES);
    struct fi_cq_tagged_entry entry;

    hear(peer, offer, sizeof(*offer));
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, 8, NULL, peer->other, offer->address, offer->key, NULL));
    CHECK(next(peer, &entry) == 0);
    stop_for_a_while();
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, REGION_BYTES, NULL, peer->other, offer->address, offer->key, memory));
    return memory;
}

static void closes_while_it_reads(struct peer *peer) {
    struct offer offer;
    uint64_t start;
    int status;

    open_peer(peer, CAPS, MODES);
    (void)reads_without_a_service(peer, &offer);
    start = now();
    status = fi_close(&peer->ep->fid);
    CHECK(kill(service, SIGCONT) == 0);
    CHECK(status == -FI_EBUSY && now() - start < 30000);
    CHECK(fi_send(peer->ep, "", 1, NULL, peer->other, NULL) == -FI_EOPBADSTATE);
    start = now();
    while ((status = fi_close(&peer->ep->fid)) == -FI_EBUSY && now() - start < 30000)
        ;
    CHECK(status == 0);
    /* libfabric drops what an endpoint had under way. */
    is_quiet(peer);
    wake_idle(peer);
    hear(peer, &(char){0}, 1);
    CHECK(fi_close(&peer->cq->fid) == 0 && fi_close(&peer->av->fid) == 0 && fi_close(&peer->domain->fid) == 0);
}

/* A long message that nobody receives, a receive that nothing comes for, and a read that the owner does not answer. */
static void closes_while_all_waits(struct peer *peer) {
    char *memory = memory_of(MIB);

    open_peer(peer, CAPS, MODES);
    UNTIL_ROOM(peer, fi_tsend(peer->ep, memory, MIB, NULL, peer->other, 1, NULL));
    CHECK(fi_trecv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, 2, 0, NULL) == 0);
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, MIB, NULL, peer->other, 0, 1, NULL));
    CHECK(fi_close(&peer->ep->fid) == 0);
    is_quiet(peer);
    CHECK(fi_close(&peer->cq->fid) == 0 && fi_close(&peer->av->fid) == 0 && fi_close(&peer->domain->fid) == 0);
    wake_idle(peer);
}

static void is_left(struct peer *peer) {
    open_peer(peer, CAPS, MODES);
    hear_idle(peer);
    close_peer(peer);
}

static void cancels_a_read(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory, *other = memory_of(8);
    struct offer offer;

    open_peer(peer, CAPS, MODES);
    memory = reads_without_a_service(peer, &offer);
    CHECK(fi_cancel(&peer->ep->fid, memory) == 0 && fi_cancel(&peer->ep->fid, memory) == -FI_ENOENT);
    is_quiet(peer);
    CHECK(kill(service, SIGCONT) == 0);
    CHECK(next(peer, &entry) == FI_ECANCELED && entry.op_context == memory);
    /* One that waits for the owner, which does not know that key. */
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, 8, NULL, peer->other, 0, offer.key + 1, &other));
    CHECK(fi_cancel(&peer->ep->fid, &other) == 0 && next(peer, &entry) == FI_ECANCELED && entry.op_context == &other);
    UNTIL_ROOM(peer, fi_read(peer->ep, memory, REGION_BYTES, NULL, peer->other, offer.address, offer.key, memory));
    CHECK(next(peer, &entry) == 0 && is_painted(memory, 0, REGION_BYTES, 1));
    meet(peer);
    close_peer(peer);
}

/* ---- Forked children ---- */

/* Nothing of the parent works here, and nothing waits. */
static void lives_as_a_child(struct peer *peer, struct fid_mr *mr) {
    struct fi_cq_tagged_entry entry;
    struct fid_domain *domain;
    struct fid_mr *other;

    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    alarm(PATIENCE_SECONDS);
    CHECK(fi_send(peer->ep, "child", 5, NULL, peer->other, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_recv(peer->ep, &entry, 5, NULL, FI_ADDR_UNSPEC, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_read(peer->ep, &entry, 5, NULL, peer->other, 0, 0, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_cancel(&peer->ep->fid, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_cq_sread(peer->cq, &entry, 1, NULL, -1) == -FI_EOPBADSTATE);
    CHECK(fi_mr_reg(peer->domain, &entry, 8, FI_SEND, 0, 0, 0, &other, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_domain(peer->fabric, peer->info, &domain, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

/* A child of its own may begin anew. */
static void begins_anew(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    struct peer own = {.socket = -1};
    char text[8];

    (void)peer;
    open_domain(&own, CAPS, MODES);
    open_endpoint(&own);
    CHECK(fi_av_insert(own.av, own.name, 1, &own.other, 0, NULL) == 1);
    CHECK(fi_recv(own.ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, NULL) == 0);
    CHECK(fi_inject(own.ep, "myself", 6, own.other) == 0);
    CHECK(next(&own, &entry) == 0 && memcmp(text, "myself", 6) == 0);
    close_peer(&own);
}

static void forks_while_it_reads(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory, *own = memory_of(MIB);
    struct offer offer;
    struct fid_mr *mr;
    int status;
    pid_t child;

    open_peer(peer, CAPS, MODES);
    CHECK(fi_mr_reg(peer->domain, own, MIB, FI_READ, 0, 0, 0, &mr, NULL) == 0);
    memory = reads_without_a_service(peer, &offer);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        lives_as_a_child(peer, mr);
        CHECK(kill(service, SIGCONT) == 0);
        begins_anew(peer);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The parent has all that it had. */
    CHECK(next(peer, &entry) == 0 && entry.op_context == memory && is_painted(memory, 0, REGION_BYTES, 1));
    UNTIL_ROOM(peer, fi_read(peer->ep, own, MIB, NULL, peer->other, offer.address, offer.key, own));
    CHECK(next(peer, &entry) == 0 && entry.op_context == own && is_painted(own, 0, MIB, 1));
    UNTIL_ROOM(peer, fi_send(peer->ep, own, MIB, NULL, peer->other, NULL));
    CHECK(next(peer, &entry) == 0);
    CHECK(fi_close(&mr->fid) == 0);
    meet(peer);
    close_peer(peer);
}

static void offers_and_receives(struct peer *peer) {
    char *memory = memory_of(REGION_BYTES), *received = memory_of(MIB);
    struct fi_cq_tagged_entry entry;
    struct fid_mr *mr;

    open_peer(peer, CAPS, MODES);
    CHECK(fi_recv(peer->ep, received, MIB, NULL, FI_ADDR_UNSPEC, NULL) == 0);
    mr = offer_region(peer, memory);
    CHECK(next(peer, &entry) == 0 && entry.len == MIB && is_painted(received, 0, MIB, 1));
    meet(peer);
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

/* ---- Greetings ---- */

/* Descriptors in flight: with more than its limit, a user's processes send none. */
static int keep_in_flight(void) {
    struct rlimit limit;
    int descriptors[128], ends[2];
    struct iovec iov = {"", 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(descriptors))];
    } control = {.header = {CMSG_LEN(sizeof(descriptors)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++)
        descriptors[i] = 2;
    memcpy(CMSG_DATA(&control.header), descriptors, sizeof(descriptors));
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    close(ends[0]);
    return ends[1];
}

static void cannot_greet(struct peer *peer) {
    struct fi_info *hints = hints_for(CAPS, MODES), *info;
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    int in_flight;

    setenv("FI_MEMFERRY_USERS", "any", 1);
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    CHECK(setgid(ANOTHER_USER) == 0 && setuid(ANOTHER_USER) == 0);
    open_peer(peer, CAPS, MODES);
    /* What is lacking comes back in time. */
    in_flight = keep_in_flight();
    meet(peer);
    meet(peer);
    for (int i = 0; i < 1000; i++)
        progress(peer);
    close(in_flight);
    CHECK(fi_recv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, NULL) == 0 && next(peer, &entry) == 0);
    meet(peer);
    /* It does not come back. */
    in_flight = keep_in_flight();
    meet(peer);
    meet(peer);
    close(in_flight);
    meet(peer);
    CHECK(fi_recv(peer->ep, memory, MIB, NULL, FI_ADDR_UNSPEC, NULL) == 0 && next(peer, &entry) == 0);
    meet(peer);
    close_peer(peer);
}

/* Takes the socket of a peer's name out of its vector, so that the next message connects anew. */
static struct fid_ep *another_endpoint(struct peer *peer) {
    struct fid_ep *ep;

    CHECK(fi_endpoint(peer->domain, peer->info, &ep, NULL) == 0);
    CHECK(fi_ep_bind(ep, &peer->av->fid, 0) == 0 && fi_ep_bind(ep, &peer->cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    CHECK(fi_enable(ep) == 0);
    return ep;
}

static void is_not_greeted(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    char *memory = memory_of(MIB);
    struct fid_ep *ep;

    setenv("FI_MEMFERRY_USERS", "any", 1);
    open_peer(peer, CAPS, MODES);
    meet(peer);
    UNTIL_ROOM(peer, fi_send(peer->ep, memory, MIB, NULL, peer->other, memory));
    meet(peer);
    CHECK(next(peer, &entry) == 0);
    meet(peer);
    ep = another_endpoint(peer);
    meet(peer);
    UNTIL_ROOM(peer, fi_send(ep, memory, MIB, NULL, peer->other, ep));
    CHECK(next(peer, &entry) == FI_ECONNRESET && entry.op_context == ep);
    meet(peer);
    meet(peer);
    UNTIL_ROOM(peer, fi_send(ep, memory, MIB, NULL, peer->other, ep));
    CHECK(next(peer, &entry) == 0);
    meet(peer);
    CHECK(fi_close(&ep->fid) == 0);
    close_peer(peer);
}

/* One that connects and says nothing. */
static void says_nothing(struct peer *peer) {
    char name[sizeof(peer->name)];

    CHECK(recv(peer->socket, name, sizeof(name), 0) == (ssize_t)sizeof(name));
    is_closed(connect_to(name));
    tell(peer, "", 1);
}

static void waits_for_a_greeting(struct peer *peer) {
    open_domain(peer, CAPS, MODES);
    open_endpoint(peer);
    tell(peer, peer->name, sizeof(peer->name));
    hear(peer, &(char){0}, 1);
    close_peer(peer);
}

/* ---- A key that passes to another region ---- */

#define PASSES 60
#define KEY 7

static void passes_a_key(struct peer *peer) {
    char *memory = memory_of(REGION_BYTES);
    struct fid_mr *mr;

    open_peer(peer, CAPS, 0);
    paint(memory, REGION_BYTES, 1);
    CHECK(fi_mr_reg(peer->domain, memory, REGION_BYTES, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL) == 0);
    meet(peer);
    for (int i = 0; i < PASSES; i++) {
        hear_idle(peer);
        /* The owner's service refuses the reader before a message of the owner tells it why. */
        CHECK(fi_close(&mr->fid) == 0);
        CHECK(fi_mr_reg(peer->domain, memory, REGION_BYTES, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL) == 0);
        meet(peer);
    }
    CHECK(fi_close(&mr->fid) == 0);
    close_peer(peer);
}

static void reads_by_a_key(struct peer *peer) {
    char *memory = memory_of(REGION_BYTES);
    struct fi_cq_tagged_entry entry;

    open_peer(peer, CAPS, 0);
    meet(peer);
    for (int i = 0; i < PASSES; i++) {
        memset(memory, 0, REGION_BYTES);
        UNTIL_ROOM(peer, fi_read(peer->ep, memory, REGION_BYTES, NULL, peer->other, 0, KEY, NULL));
        wake_idle(peer);
        CHECK(next(peer, &entry) == 0 && is_painted(memory, 0, REGION_BYTES, 1));
        meet(peer);
    }
    close_peer(peer);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: %s MEMFERRY SOCKET\n", arguments[0]);
        return 2;
    }
    start_service(arguments[1], arguments[2]);
    play("an endpoint that is closed while all waits", closes_while_all_waits, is_left, 0);
    play("an endpoint that is closed while the engine copies", closes_while_it_reads, offers, 0);
    play("reads that are cancelled", cancels_a_read, offers, 0);
    play("a forked child that closes everything", forks_while_it_reads, offers_and_receives, 0);
    play("a key that passes to another region within reads", reads_by_a_key, passes_a_key, 0);
    play("a connection without a greeting", waits_for_a_greeting, says_nothing, 0);
    if (geteuid() == 0) {
        play("a user who floods another one's process", is_flooded, befriends, 0);
        play("descriptors that are slow to close", is_besieged, works_meanwhile, 0);
        play("a greeting that cannot be sent", is_not_greeted, cannot_greet, 0);
    } else {
        printf("left out: scenes with another user need root\n");
    }
    stop_service();
    printf("all scenes passed\n");
    return 0;
}
