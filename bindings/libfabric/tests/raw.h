/* A peer without libfabric: it writes its greeting and its ring by itself, as wire.c has them. After provider.h and peer.h.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_FI_RAW_H
#define MEMFERRY_FI_RAW_H

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/un.h>

#define HEAD_BYTES 4096
#define RING_BYTES (64 * 1024)

struct head {
    _Atomic uint64_t produced;
    uint8_t pad[56];
    _Atomic uint64_t consumed;
};

struct greeting {
    uint32_t magic;
    uint32_t version;
    uint64_t ring_bytes;
    uint64_t session;
    char name[NAME_BYTES];
};

static struct greeting good = {0x6d666669, 1, RING_BYTES, 12345, ""};

static inline int connect_to(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path + 1, name, strlen(name));
    CHECK(one >= 0);
    CHECK(connect(one, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) == 0);
    return one;
}

static inline int make_ring(size_t bytes, int seals, struct head **head) {
    int memfd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(memfd >= 0 && ftruncate(memfd, (off_t)bytes) == 0 && fcntl(memfd, F_ADD_SEALS, seals) == 0);
    *head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    CHECK(*head != MAP_FAILED);
    return memfd;
}

#define MOST_SENT 2

/* Sends bytes with descriptors; false if the other side has closed the connection, or takes no descriptors. */
static inline bool send_with(int one, const void *bytes, size_t length, const int *descriptors, size_t count) {
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MOST_SENT * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    CHECK(count <= MOST_SENT);
    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
    }
    return sendmsg(one, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

/* Sends a greeting; false if the other side has closed the connection. */
static inline bool greet_if_open(int one, const void *greeting, size_t length, int memfd) {
    return send_with(one, greeting, length, &memfd, memfd >= 0);
}

static inline void greet(int one, const void *greeting, size_t length, int memfd) {
    CHECK(greet_if_open(one, greeting, length, memfd));
}

/* Waits until the other side has closed the connection; its greeting may come first. */
static inline void is_closed(int one) {
    struct timeval limit = {PATIENCE_SECONDS, 0};
    struct greeting answer;
    ssize_t got;

    CHECK(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    do
        got = recv(one, &answer, sizeof(answer), 0);
    while (got > 0);
    CHECK(got == 0 || errno == ECONNRESET);
    close(one);
}

struct ring {
    int socket;
    struct head *head;
    uint64_t produced;
};

static inline struct ring open_ring(const char *name) {
    struct ring ring = {.socket = connect_to(name)};
    int memfd = make_ring(HEAD_BYTES + RING_BYTES, F_SEAL_SHRINK, &ring.head);

    greet(ring.socket, &good, sizeof(good), memfd);
    close(memfd);
    return ring;
}

static inline void put(struct ring *ring, const struct record *record) {
    uint8_t *bytes = (uint8_t *)ring->head + HEAD_BYTES;

    memcpy(bytes + (ring->produced & (RING_BYTES - 1)), record, sizeof(*record));
    ring->produced += sizeof(*record) + ((record->length + 63) & ~63u);
    atomic_store(&ring->head->produced, ring->produced);
}

/* The memory that the other side sends by. */
static inline const struct head *take_greeting(int one) {
    struct timeval limit = {PATIENCE_SECONDS, 0};
    struct greeting answer;
    struct iovec iov = {&answer, sizeof(answer)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    void *mapped;
    int memfd;

    CHECK(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK(recvmsg(one, &message, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof(answer));
    CHECK(message.msg_controllen >= CMSG_LEN(sizeof(int)));
    memcpy(&memfd, CMSG_DATA(&control.header), sizeof(memfd));
    /* Not even a peer that knows the descriptor may write there. */
    CHECK(mmap(NULL, HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0) == MAP_FAILED);
    mapped = mmap(NULL, HEAD_BYTES + answer.ring_bytes, PROT_READ, MAP_SHARED, memfd, 0);
    CHECK(mapped != MAP_FAILED);
    close(memfd);
    return mapped;
}

#endif
