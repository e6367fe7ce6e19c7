/* Processes with an endpoint each, for the tests. A scene is played by two processes, which this header starts and connects by a
 * socket. SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_FI_PEER_H
#define MEMFERRY_FI_PEER_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define PATIENCE_SECONDS 60

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #condition);                                                    \
            _exit(1);                                                                                                          \
        }                                                                                                                      \
    } while (0)

struct peer {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t other;
    char name[64];
    /* To the other process. */
    int socket;
};

static inline void patience(time_t since) { CHECK(time(NULL) - since < PATIENCE_SECONDS); }

static inline struct fi_info *hints_for(uint64_t caps, int mr_mode) {
    struct fi_info *hints = fi_allocinfo();

    CHECK(hints);
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup("memferry");
    return hints;
}

static inline void open_domain(struct peer *peer, uint64_t caps, int mr_mode) {
    struct fi_info *hints = hints_for(caps, mr_mode);
    time_t since = time(NULL);

    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &peer->info) == 0);
    fi_freeinfo(hints);
    CHECK(fi_fabric(peer->info->fabric_attr, &peer->fabric, NULL) == 0);
    /* The service's socket exists a moment before it listens. */
    while (fi_domain(peer->fabric, peer->info, &peer->domain, NULL) != 0)
        patience(since);
}

static inline void open_endpoint(struct peer *peer) {
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    size_t length = sizeof(peer->name);

    CHECK(fi_cq_open(peer->domain, &cq_attr, &peer->cq, NULL) == 0);
    CHECK(fi_av_open(peer->domain, &av_attr, &peer->av, NULL) == 0);
    CHECK(fi_endpoint(peer->domain, peer->info, &peer->ep, NULL) == 0);
    CHECK(fi_ep_bind(peer->ep, &peer->av->fid, 0) == 0);
    CHECK(fi_ep_bind(peer->ep, &peer->cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    CHECK(fi_enable(peer->ep) == 0);
    CHECK(fi_getname(&peer->ep->fid, peer->name, &length) == 0 && length == strlen(peer->name) + 1);
}

static inline void tell(const struct peer *peer, const void *bytes, size_t length) {
    CHECK(send(peer->socket, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
}

static inline void progress(const struct peer *peer) { CHECK(fi_cq_read(peer->cq, NULL, 0) <= 0); }

/* Waits for the other process, and lets libfabric work meanwhile. */
static inline void hear(const struct peer *peer, void *bytes, size_t length) {
    time_t since = time(NULL);

    for (;;) {
        ssize_t got = recv(peer->socket, bytes, length, MSG_DONTWAIT);

        if (got == (ssize_t)length)
            return;
        CHECK(got < 0 && errno == EAGAIN);
        if (peer->cq)
            progress(peer);
        patience(since);
    }
}

/* Both processes are here. */
static inline void meet(const struct peer *peer) {
    char here = 1;

    tell(peer, &here, 1);
    hear(peer, &here, 1);
}

static inline void open_peer(struct peer *peer, uint64_t caps, int mr_mode) {
    char name[sizeof(peer->name)];

    open_domain(peer, caps, mr_mode);
    open_endpoint(peer);
    tell(peer, peer->name, sizeof(peer->name));
    hear(peer, name, sizeof(name));
    CHECK(fi_av_insert(peer->av, name, 1, &peer->other, 0, NULL) == 1);
}

static inline void close_peer(struct peer *peer) {
    CHECK(fi_close(&peer->ep->fid) == 0);
    CHECK(fi_close(&peer->cq->fid) == 0);
    CHECK(fi_close(&peer->av->fid) == 0);
    CHECK(fi_close(&peer->domain->fid) == 0);
    CHECK(fi_close(&peer->fabric->fid) == 0);
    fi_freeinfo(peer->info);
}

/* Waits for the next completion. Gives 0, or the error of a failed one. */
static inline int next(const struct peer *peer, struct fi_cq_tagged_entry *entry) {
    struct fi_cq_err_entry error = {0};
    time_t since = time(NULL);

    for (;;) {
        ssize_t got = fi_cq_read(peer->cq, entry, 1);

        if (got == 1)
            return 0;
        if (got == -FI_EAVAIL) {
            CHECK(fi_cq_readerr(peer->cq, &error, 0) == 1);
            CHECK(error.err > 0);
            *entry = (struct fi_cq_tagged_entry){error.op_context, error.flags, error.len, error.buf, error.olen, error.tag};
            return error.err;
        }
        CHECK(got == -FI_EAGAIN);
        patience(since);
    }
}

/* Repeats a call while it has no room. */
#define UNTIL_ROOM(peer, call)                                                                                                 \
    do {                                                                                                                       \
        time_t since_ = time(NULL);                                                                                            \
        ssize_t status_;                                                                                                       \
        while ((status_ = (call)) == -FI_EAGAIN) {                                                                             \
            progress(peer);                                                                                                    \
            patience(since_);                                                                                                  \
        }                                                                                                                      \
        CHECK(status_ == 0);                                                                                                   \
    } while (0)

/* Bytes that differ from place to place and from message to message. */
static inline void paint(void *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(i * 131 + (i >> 8) * 7 + seed);
}

static inline bool is_painted(const void *bytes, size_t place, size_t length, unsigned seed) {
    for (size_t i = place; i < place + length; i++) {
        if (((const uint8_t *)bytes)[i - place] != (uint8_t)(i * 131 + (i >> 8) * 7 + seed))
            return false;
    }
    return true;
}

/* Plays one scene with two processes. `end` of the second: 0, or the signal that it dies by. */
static inline void play(const char *title, void (*first)(struct peer *), void (*second)(struct peer *), int end) {
    void (*roles[2])(struct peer *) = {first, second};
    pid_t processes[2];
    int sockets[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    for (int i = 0; i < 2; i++) {
        processes[i] = fork();
        CHECK(processes[i] >= 0);
        if (processes[i] == 0) {
            struct peer peer = {.socket = sockets[i]};

            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            close(sockets[1 - i]);
            roles[i](&peer);
            _exit(0);
        }
    }
    close(sockets[0]);
    close(sockets[1]);
    for (int i = 0; i < 2; i++) {
        int status;

        CHECK(waitpid(processes[i], &status, 0) == processes[i]);
        if (i == 1 && end)
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == end);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    printf("ok: %s\n", title);
    fflush(stdout);
}

static inline void *memory_of(size_t length) {
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Waits without a call of libfabric, so that nothing here makes progress. */
static inline void hear_idle(const struct peer *peer) { CHECK(recv(peer->socket, &(char){0}, 1, 0) == 1); }

static inline void wake_idle(const struct peer *peer) { tell(peer, "", 1); }

static pid_t service;

static inline void start_service(const char *command, const char *socket) {
    time_t since = time(NULL);

    unlink(socket);
    service = fork();
    CHECK(service >= 0);
    if (service == 0) {
        /* Also when this program ends at a mistake. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(126);
        execl(command, command, "serve", "--socket", socket, (char *)NULL);
        _exit(127);
    }
    while (access(socket, F_OK) != 0) {
        CHECK(waitpid(service, NULL, WNOHANG) == 0);
        patience(since);
        usleep(1000);
    }
    setenv("FI_MEMFERRY_SOCKET", socket, 1);
}

static inline void stop_service(void) {
    kill(service, SIGTERM);
    waitpid(service, NULL, 0);
}

#endif
