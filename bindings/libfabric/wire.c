/* Connections to peers on this node.
 *
 *     socket (its name is the address)      greeting, memory of the ring, end of the peer
 *     ring of records, one each way         everything else
 *
 * Each side has memory that it writes and the other one maps read-only: the ring it sends by, and how far it has read the other
 * one's. So a peer can change only what it sends. It may do that at any time: a record is copied, and the copy is checked.
 *
 * Who sends to whom: a connection carries the messages of the side that connected, and answers. Two endpoints that send to each
 * other have two connections. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "provider.h"

#define SCHEME "memferry://"
#define MAGIC 0x6d666669u
#define VERSION 1
/* Of a ring: a power of two. */
#define RING_BYTES (256 * 1024)
#define LEAST_RING_BYTES (64 * 1024)
#define MOST_RING_BYTES (64 * 1024 * 1024)
#define HEAD_BYTES 4096
#define RECORD_BYTES sizeof(struct record)
/* Bytes of one record of a stream. */
#define PART_BYTES 16384
/* The longest record: a message with its pieces, and the rest of pages. */
#define MOST_PAYLOAD 32768
/* Records that are taken from one peer until the next one's turn. */
#define TURN_RECORDS 64
/* Records that wait for room. A peer that takes none has too many at some time. */
#define MOST_BACKLOG 65536
/* Of messages that nobody asked for, from one peer. The rest stays in its ring. */
#define MOST_UNEXPECTED ((size_t)1 << 30)
/* Completions that the program has not taken. With more than these, rings are not read. */
#define MOST_COMPLETIONS 65536
#define MOST_CONNECTIONS 4096
/* Connections that are taken at a time. */
#define MOST_ACCEPTS 64
/* Answers to another user that wait for room. With more than these, nothing is taken from that user. */
#define MOST_STREAMS_OF_OTHERS 1024
/* How long a peer that connected may take to greet, and this side to answer. */
#define GREETING_MS 2000
#define EVENTS 64
/* Headers before Linux 6.16 lack it. */
#if !defined(SO_PASSRIGHTS) && (defined(__x86_64__) || defined(__aarch64__))
#define SO_PASSRIGHTS 83
#endif

_Static_assert(RECORD_BYTES == 64, "records begin at multiples of their size");

/* The first page of a side's memory; the ring follows. */
struct shared {
    _Atomic uint64_t produced;
    uint8_t pad[56];
    _Atomic uint64_t consumed;
};

struct greeting {
    uint32_t magic;
    uint32_t version;
    uint64_t ring_bytes;
    uint64_t session;
    struct name name;
};

struct waiting_record {
    struct link link;
    struct record record;
    uint8_t bytes[];
};

static uint64_t padded(size_t length) { return (length + RECORD_BYTES - 1) & ~(uint64_t)(RECORD_BYTES - 1); }

/* ---- Names ---- */

void wire_name_make(struct name *name) {
    uint64_t number = 0;

    while (getrandom(&number, sizeof(number), 0) != sizeof(number))
        ;
    snprintf(name->text, sizeof(name->text), SCHEME "%u/%016" PRIx64, geteuid(), number);
}

bool wire_name_parse(const char *text, struct name *name, uid_t *user) {
    struct name again;
    unsigned number;
    uint64_t rest;

    if (sscanf(text, SCHEME "%10u/%16" SCNx64, &number, &rest) != 2)
        return false;
    memset(&again, 0, sizeof(again));
    snprintf(again.text, sizeof(again.text), SCHEME "%u/%016" PRIx64, number, rest);
    if (strncmp(again.text, text, sizeof(again.text)) != 0)
        return false;
    *name = again;
    *user = number;
    return true;
}

/* The socket of a name: an abstract one, so nothing is left behind. */
static socklen_t socket_of(const struct name *name, struct sockaddr_un *address) {
    size_t length = strlen(name->text);

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name->text, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* ---- Memory of a side ---- */

static const uint8_t *ring_of(const struct shared *shared) { return (const uint8_t *)shared + HEAD_BYTES; }

static int make_memory(struct connection *connection) {
    int descriptor = memfd_create("memferry-fi-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *mapped;

    if (descriptor < 0)
        return -errno;
    if (ftruncate(descriptor, HEAD_BYTES + RING_BYTES) == 0) {
        mapped = mmap(NULL, HEAD_BYTES + RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (mapped != MAP_FAILED) {
            connection->mine = mapped;
            connection->mine_bytes = RING_BYTES;
            /* The peer may map it to read, and can change nothing. */
            if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0)
                return descriptor;
        }
    }
    int error = errno;
    close(descriptor);
    return -error;
}

/* Maps what a peer sent, if it stays as long as it is. */
static bool map_memory(struct connection *connection, int descriptor, uint64_t bytes) {
    struct stat state;
    struct statfs system;
    int seals = fcntl(descriptor, F_GET_SEALS);
    void *mapped;

    /* Pages that another user has not written are this process's when it reads them. */
    if (bytes < LEAST_RING_BYTES || bytes > (connection->user == geteuid() ? MOST_RING_BYTES : RING_BYTES) || (bytes & (bytes - 1)) != 0)
        return false;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(descriptor, &state) < 0 || state.st_size != (off_t)(HEAD_BYTES + bytes))
        return false;
    /* Huge pages could be missing when they are touched. */
    if (fstatfs(descriptor, &system) < 0 || system.f_type != TMPFS_MAGIC)
        return false;
    mapped = mmap(NULL, HEAD_BYTES + bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED)
        return false;
    connection->theirs = mapped;
    connection->theirs_bytes = bytes;
    return true;
}

/* ---- Greetings ---- */

static bool send_greeting(struct connection *connection, int descriptor) {
    struct greeting greeting = {MAGIC, VERSION, RING_BYTES, process.session, connection->endpoint->name};
    struct iovec iov = {&greeting, sizeof(greeting)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};

    memset(&control, 0, sizeof(control));
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(descriptor));
    return sendmsg(connection->socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(greeting);
}

/* Whether peers may send descriptors. Before Linux 6.16 they always may. */
static void take_descriptors(int socket, int may) {
#ifdef SO_PASSRIGHTS
    (void)setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &may, sizeof(may));
#else
    (void)socket;
    (void)may;
#endif
}

/* Looks at the first message of a socket. Gives its length, or that of no greeting if it has more than one descriptor; and the descriptor or
 * -1. The message stays in the socket with all of them: nothing is closed here, which may take long. */
static ssize_t look_at_message(int socket, struct greeting *greeting, int *descriptor) {
    struct iovec iov = {greeting, sizeof(*greeting)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    /* Not CMSG_SPACE, which has room for two. */
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t length = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = length < 0 ? NULL : CMSG_FIRSTHDR(&message);

    *descriptor = -1;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(descriptor, CMSG_DATA(header), sizeof(*descriptor));
    return length > 0 && message.msg_flags & MSG_CTRUNC ? 1 : length;
}

static bool greeting_is_good(const struct connection *connection, const struct greeting *greeting, ssize_t length) {
    struct name name;
    uid_t user;

    if (length != (ssize_t)sizeof(*greeting) || greeting->magic != MAGIC || greeting->version != VERSION)
        return false;
    if (strnlen(greeting->name.text, NAME_BYTES) == NAME_BYTES || !wire_name_parse(greeting->name.text, &name, &user))
        return false;
    /* A name says whose it is, so that nobody takes that of another user. */
    if (user != connection->user)
        return false;
    return connection->is_new || strcmp(name.text, connection->name.text) == 0;
}

/* ---- Connections ---- */

/* Closes a socket, and a descriptor that came by it unless it is -1. Only processes of this user may make that slow. */
static void part_with(struct closing *closing, uid_t user, int socket, int received) {
    if (user != geteuid()) {
        closer_add(closing, socket, received);
        return;
    }
    close(socket);
    if (received >= 0)
        close(received);
    free(closing);
}

/* Gives the connection both, or null. */
static struct connection *connection_new(struct endpoint *ep, struct closing *closing, int socket, uid_t user) {
    struct connection *connection = calloc(1, sizeof(*connection));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};

    if (!connection)
        return NULL;
    connection->endpoint = ep;
    connection->socket = socket;
    connection->received = -1;
    connection->closing = closing;
    connection->user = user;
    connection->greeting = -1;
    connection->address = FI_ADDR_NOTAVAIL;
    link_init(&connection->backlog);
    link_init(&connection->streams);
    link_init(&connection->ops);
    link_init(&connection->remotes);
    link_init(&connection->accepted);
    if (epoll_ctl(ep->epoll, EPOLL_CTL_ADD, socket, &event) < 0) {
        free(connection);
        return NULL;
    }
    link_append(&ep->connections, &connection->link);
    return connection;
}

void stream_stop(struct connection *connection, struct stream *stream) {
    link_remove(&stream->link);
    connection->stream_count--;
    free(stream);
}

static void free_backlog(struct connection *connection) {
    FOR_EACH(item, following, &connection->backlog) {
        link_remove(item);
        free(CONTAINER(item, struct waiting_record, link));
    }
    FOR_EACH(item, following, &connection->streams) { stream_stop(connection, CONTAINER(item, struct stream, link)); }
    connection->backlog_count = 0;
}

bool wire_has_session(const struct domain *domain, uint64_t session) {
    FOR_EACH(one, after, &domain->endpoints) {
        const struct endpoint *ep = CONTAINER(one, struct endpoint, link);

        FOR_EACH(two, after_two, &ep->connections) {
            const struct connection *connection = CONTAINER(two, struct connection, link);

            if (!connection->is_dead && connection->session == session)
                return true;
        }
    }
    return false;
}

static bool is_session_of_any(uint64_t session) {
    FOR_EACH(item, following, &process.all_domains) {
        if (wire_has_session(CONTAINER(item, struct domain, link), session))
            return true;
    }
    return false;
}

/* The end of a dead connection's socket. False if it has to be kept until others are closed; its user's limit counts it meanwhile. */
static bool close_socket(struct connection *connection) {
    if (connection->socket >= 0 && connection->user != geteuid() && !closer_has_room())
        return false;
    if (connection->socket >= 0)
        part_with(connection->closing, connection->user, connection->socket, connection->received);
    connection->socket = -1;
    return true;
}

void wire_fail(struct connection *connection, const char *reason) {
    struct endpoint *ep = connection->endpoint;

    if (connection->is_dead)
        return;
    if (reason)
        WARN("%s: %s\n", connection->name.text[0] ? connection->name.text : "a peer without a name", reason);
    connection->is_dead = true;
    /* A forked child may have the socket too: it must neither hide this end from the peer nor cause events here. */
    (void)epoll_ctl(ep->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    (void)shutdown(connection->socket, SHUT_RDWR);
    (void)close_socket(connection);
    if (connection->greeting >= 0)
        close(connection->greeting);
    connection->greeting = -1;
    free_backlog(connection);
    for (size_t i = 0; i < ep->outgoing_count; i++) {
        if (ep->outgoing[i] == connection)
            ep->outgoing[i] = NULL;
    }
    message_drop(connection);
    rma_drop(connection);
    FOR_EACH(item, following, &connection->ops) { rma_fail(CONTAINER(item, struct op, link), FI_ECONNRESET, 0); }
    if (connection->session && !is_session_of_any(connection->session))
        memory_forget_session(connection->session);
}

static void connection_free(struct connection *connection) {
    link_remove(&connection->link);
    if (connection->socket >= 0)
        part_with(connection->closing, connection->user, connection->socket, connection->received);
    /* Not before: what it sent may wait for its receiver when it has left. */
    if (connection->account)
        account_close(connection->account);
    if (connection->mine)
        munmap(connection->mine, HEAD_BYTES + connection->mine_bytes);
    if (connection->theirs)
        munmap((void *)(uintptr_t)connection->theirs, HEAD_BYTES + connection->theirs_bytes);
    free(connection);
}

static bool user_of(int socket, uid_t *user) {
    struct ucred peer;
    socklen_t length = sizeof(peer);

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return false;
    *user = peer.uid;
    return true;
}

/* Makes a connection of a socket; closes the socket if that fails. */
static struct connection *greeted(struct endpoint *ep, struct closing *closing, int socket, const struct name *name, uid_t user,
                                  int *error) {
    struct connection *connection = connection_new(ep, closing, socket, user);
    int descriptor;

    *error = -FI_ENOMEM;
    if (!connection) {
        part_with(closing, user, socket, -1);
        return NULL;
    }
    connection->is_outgoing = true;
    connection->name = *name;
    connection->is_self = strcmp(name->text, ep->name.text) == 0;
    descriptor = make_memory(connection);
    *error = descriptor;
    if (descriptor >= 0) {
        bool is_sent = send_greeting(connection, descriptor);

        close(descriptor);
        if (is_sent)
            return connection;
        *error = -FI_ECONNREFUSED;
    }
    (void)epoll_ctl(ep->epoll, EPOLL_CTL_DEL, socket, NULL);
    connection_free(connection);
    return NULL;
}

/* Gives a socket that is connected to the owner of a name, or -1. */
static int socket_to(const struct name *name, struct closing *closing, uid_t *peer, int *error) {
    struct sockaddr_un address;
    socklen_t length = socket_of(name, &address);
    int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct name parsed;
    uid_t user;

    *error = -errno;
    *peer = (uid_t)-1;
    if (socket_fd < 0) {
        free(closing);
        return -1;
    }
    /* The name may be another user's now, who answers before it is known. */
    take_descriptors(socket_fd, false);
    if (connect(socket_fd, (struct sockaddr *)&address, length) < 0) {
        /* A full backlog: the peer has not looked yet. */
        *error = errno == EAGAIN ? -FI_EAGAIN : -FI_ECONNREFUSED;
        close(socket_fd);
        free(closing);
        return -1;
    }
    if (!wire_name_parse(name->text, &parsed, &user) || !user_of(socket_fd, peer) || *peer != user) {
        *error = -FI_EACCES;
        (void)shutdown(socket_fd, SHUT_RDWR);
        part_with(closing, *peer, socket_fd, -1);
        return -1;
    }
    take_descriptors(socket_fd, true);
    return socket_fd;
}

struct connection *wire_connect(struct endpoint *ep, const struct name *name, int *error) {
    struct closing *closing;
    uid_t user;
    int socket_fd;

    FOR_EACH(item, following, &ep->connections) {
        struct connection *connection = CONTAINER(item, struct connection, link);

        if (connection->is_outgoing && !connection->is_dead && strcmp(connection->name.text, name->text) == 0)
            return connection;
    }
    *error = -FI_EAGAIN;
    if (!closer_has_room())
        return NULL;
    *error = -FI_ENOMEM;
    closing = closing_new(false);
    if (!closing)
        return NULL;
    socket_fd = socket_to(name, closing, &user, error);
    return socket_fd < 0 ? NULL : greeted(ep, closing, socket_fd, name, user, error);
}

/* Takes a connection of a user who may connect; false if there are too many. */
static bool accept_one(struct endpoint *ep, struct closing *closing, int socket_fd, uid_t user) {
    bool is_other = user != geteuid();
    struct account *account = is_other ? account_open(user) : NULL;
    struct connection *connection = is_other && !account ? NULL : connection_new(ep, closing, socket_fd, user);

    if (connection) {
        connection->is_new = true;
        connection->account = account;
        connection->since = now_ms();
    } else if (account) {
        account_close(account);
    }
    return connection != NULL;
}

static void accept_some(struct endpoint *ep) {
    unsigned count = 0;

    FOR_EACH(item, following, &ep->connections) { count++; }
    /* Not all: others may connect faster than this process accepts. And none that could not be closed again. */
    for (unsigned i = 0; i < MOST_ACCEPTS && closer_has_room(); i++) {
        struct closing *closing = closing_new(false);
        int socket_fd = closing ? accept4(ep->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        uid_t user = (uid_t)-1;

        if (socket_fd < 0) {
            free(closing);
            return;
        }
        if (!user_of(socket_fd, &user) || !user_is_welcome(user)) {
            WARN("a connection of user %d is refused: see FI_MEMFERRY_USERS\n", (int)user);
        } else if (count == MOST_CONNECTIONS || !accept_one(ep, closing, socket_fd, user)) {
            WARN("a connection of user %d is refused: there are too many\n", (int)user);
        } else {
            count++;
            continue;
        }
        (void)shutdown(socket_fd, SHUT_RDWR);
        part_with(closing, user, socket_fd, -1);
    }
}

int wire_listen(struct endpoint *ep) {
    struct sockaddr_un address;
    socklen_t length = socket_of(&ep->name, &address);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    ep->closing = closing_new(true);
    if (!ep->closing)
        return -FI_ENOMEM;
    ep->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ep->epoll = ep->listener >= 0 ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (ep->epoll >= 0 && bind(ep->listener, (struct sockaddr *)&address, length) == 0 && listen(ep->listener, SOMAXCONN) == 0 &&
        epoll_ctl(ep->epoll, EPOLL_CTL_ADD, ep->listener, &event) == 0)
        return 0;
    int error = errno;
    free(ep->closing);
    if (ep->listener >= 0)
        close(ep->listener);
    if (ep->epoll >= 0)
        close(ep->epoll);
    return -error;
}

void wire_close(struct endpoint *ep) {
    FOR_EACH(item, following, &ep->connections) {
        struct connection *connection = CONTAINER(item, struct connection, link);

        wire_fail(connection, NULL);
        connection_free(connection);
    }
    /* Nobody can connect after this. The closer ends the connections that were not accepted, those of this user too. */
    (void)shutdown(ep->listener, SHUT_RDWR);
    closer_add(ep->closing, ep->listener, -1);
    close(ep->epoll);
}

void wire_abandon(struct endpoint *ep) {
    FOR_EACH(item, following, &ep->connections) {
        struct connection *connection = CONTAINER(item, struct connection, link);

        if (connection->greeting >= 0)
            close(connection->greeting);
        free_backlog(connection);
        connection_free(connection);
    }
    closer_add(ep->closing, ep->listener, -1);
    close(ep->epoll);
}

/* Sends this side's memory. What the system lacks may come back; in time the connection ends, so that the peer does not wait. */
static void answer_greeting(struct connection *connection) {
    bool is_sent = send_greeting(connection, connection->greeting), has_left, may_pass;
    int error = is_sent ? 0 : errno;

    has_left = error == EPIPE || error == ECONNRESET || error == ENOTCONN;
    may_pass = error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM || error == ETOOMANYREFS;
    if (may_pass && now_ms() - connection->since < GREETING_MS)
        return;
    close(connection->greeting);
    connection->greeting = -1;
    /* A peer may have left after it had sent everything: that is still in its ring. */
    if (!is_sent && !has_left) {
        WARN("no greeting: %s\n", strerror(error));
        wire_fail(connection, "its greeting cannot be answered");
    }
}

/* The memory of the peer has come: what was sent before is in the ring already. */
static void greet(struct connection *connection) {
    struct greeting greeting;
    int descriptor;
    ssize_t length = look_at_message(connection->socket, &greeting, &descriptor);

    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length <= 0 || descriptor < 0 || !greeting_is_good(connection, &greeting, length) ||
        !map_memory(connection, descriptor, greeting.ring_bytes)) {
        connection->received = descriptor;
        wire_fail(connection, length > 0 ? "its greeting is wrong" : "it left before its greeting");
        return;
    }
    /* Closes the message's descriptor and its copy. Both are of memory, which is mapped, so this takes no time. */
    (void)recv(connection->socket, &greeting, sizeof(greeting), MSG_DONTWAIT);
    close(descriptor);
    take_descriptors(connection->socket, false);
    connection->session = greeting.session;
    if (!connection->is_new)
        return;
    connection->name = greeting.name;
    connection->is_self = strcmp(connection->name.text, connection->endpoint->name.text) == 0;
    connection->is_new = false;
    connection->since = now_ms();
    connection->greeting = make_memory(connection);
    if (connection->greeting < 0)
        wire_fail(connection, "no memory for a ring");
    else
        answer_greeting(connection);
}

/* What has to be done in time. */
static void look_at_greetings(struct connection *connection) {
    if (connection->greeting >= 0)
        answer_greeting(connection);
    else if (connection->is_new && now_ms() - connection->since >= GREETING_MS) {
        /* It may have come while this process did something else. */
        greet(connection);
        if (connection->is_new)
            wire_fail(connection, "it does not greet");
    }
}

fi_addr_t wire_address(struct connection *connection) {
    struct av *av = connection->endpoint->av;

    if (connection->generation == av->generation)
        return connection->address;
    connection->generation = av->generation;
    connection->address = FI_ADDR_NOTAVAIL;
    for (size_t i = 0; i < av->count && connection->address == FI_ADDR_NOTAVAIL; i++) {
        if (av->entries[i].is_used && strcmp(av->entries[i].name.text, connection->name.text) == 0)
            connection->address = i;
    }
    return connection->address;
}

/* ---- Sending ---- */

/* Bytes of the ring that are free; all where the peer has not answered yet. */
static uint64_t free_bytes(struct connection *connection) {
    uint64_t consumed = connection->theirs ? atomic_load_explicit(&((struct shared *)(uintptr_t)connection->theirs)->consumed,
                                                                  memory_order_acquire)
                                           : 0;
    uint64_t used = connection->produced - consumed;

    if (used > connection->mine_bytes) {
        wire_fail(connection, "it claims to have read what was not sent");
        return 0;
    }
    return connection->mine_bytes - used;
}

static bool ring_has_room(struct connection *connection, size_t length) {
    return !connection->is_dead && connection->mine && RECORD_BYTES + padded(length) <= free_bytes(connection);
}

bool wire_has_room(struct connection *connection, size_t length) {
    return link_is_empty(&connection->backlog) && ring_has_room(connection, length);
}

static void ring_write(struct connection *connection, uint64_t place, const void *from, size_t length) {
    uint8_t *ring = (uint8_t *)connection->mine + HEAD_BYTES;
    size_t at = place & (connection->mine_bytes - 1);
    size_t first = connection->mine_bytes - at < length ? connection->mine_bytes - at : length;

    memcpy(ring + at, from, first);
    if (length > first)
        memcpy(ring, (const uint8_t *)from + first, length - first);
}

void wire_put(struct connection *connection, struct record *record, const struct iovec *iov, size_t count, size_t skip) {
    uint64_t place = connection->produced + RECORD_BYTES;
    size_t left = record->length;

    ring_write(connection, connection->produced, record, sizeof(*record));
    for (size_t i = 0; i < count && left > 0; i++) {
        size_t length;

        if (skip >= iov[i].iov_len) {
            skip -= iov[i].iov_len;
            continue;
        }
        length = iov[i].iov_len - skip < left ? iov[i].iov_len - skip : left;
        ring_write(connection, place, (const uint8_t *)iov[i].iov_base + skip, length);
        place += length;
        left -= length;
        skip = 0;
    }
    connection->produced += RECORD_BYTES + padded(record->length);
    atomic_store_explicit(&connection->mine->produced, connection->produced, memory_order_release);
}

void wire_queue(struct connection *connection, struct record *record, const void *payload) {
    struct iovec iov = {(void *)(uintptr_t)payload, record->length};
    struct waiting_record *waiting;

    if (connection->is_dead)
        return;
    if (wire_has_room(connection, record->length)) {
        wire_put(connection, record, &iov, 1, 0);
        return;
    }
    waiting = connection->is_dead ? NULL : malloc(sizeof(*waiting) + record->length);
    if (!waiting || ++connection->backlog_count > MOST_BACKLOG) {
        free(waiting);
        wire_fail(connection, "it does not read its answers");
        return;
    }
    waiting->record = *record;
    if (record->length > 0)
        memcpy(waiting->bytes, payload, record->length);
    link_append(&connection->backlog, &waiting->link);
}

static void send_backlog(struct connection *connection) {
    FOR_EACH(item, following, &connection->backlog) {
        struct waiting_record *waiting = CONTAINER(item, struct waiting_record, link);
        struct iovec iov = {waiting->bytes, waiting->record.length};

        if (!ring_has_room(connection, waiting->record.length))
            return;
        link_remove(item);
        connection->backlog_count--;
        wire_put(connection, &waiting->record, &iov, 1, 0);
        free(waiting);
    }
}

bool stream_start(struct connection *connection, const struct stream *model) {
    struct stream *stream = connection->stream_count < MOST_BACKLOG ? malloc(sizeof(*stream)) : NULL;

    if (!stream)
        return false;
    *stream = *model;
    connection->stream_count++;
    link_append(&connection->streams, &stream->link);
    return true;
}

/* Sends parts of the first stream, then of the next one. */
static void send_streams(struct connection *connection) {
    while (!connection->is_dead && !link_is_empty(&connection->streams) && link_is_empty(&connection->backlog)) {
        struct stream *stream = CONTAINER(connection->streams.next, struct stream, link);
        size_t length = stream->total - stream->sent < PART_BYTES ? stream->total - stream->sent : PART_BYTES;
        struct record record = {.kind = stream->kind, .length = (uint32_t)length, .id = stream->id, .key = stream->key};

        if (!ring_has_room(connection, length))
            return;
        record.address = stream->address + stream->sent;
        wire_put(connection, &record, stream->iov, stream->iov_count, stream->skip + stream->sent);
        stream->sent += length;
        if (stream->sent == stream->total) {
            struct op *op = stream->op;

            stream_stop(connection, stream);
            if (op && op->kind == OP_SEND && op->is_acknowledged)
                op->state = OP_SENT;
            else if (op && op->kind == OP_SEND)
                op_end(op, 0, 0);
        }
    }
}

/* ---- Receiving ---- */

void payload_copy(const struct payload *payload, size_t skip, void *to, size_t length) {
    if (skip < payload->first_length) {
        size_t part = payload->first_length - skip < length ? payload->first_length - skip : length;

        memcpy(to, payload->first + skip, part);
        to = (uint8_t *)to + part;
        length -= part;
        skip = 0;
    } else {
        skip -= payload->first_length;
    }
    if (length > 0)
        memcpy(to, payload->second + skip, length);
}

static struct payload ring_read(const struct connection *connection, uint64_t place, size_t length) {
    size_t at = place & (connection->theirs_bytes - 1);
    size_t first = connection->theirs_bytes - at < length ? connection->theirs_bytes - at : length;

    return (struct payload){ring_of(connection->theirs) + at, first, ring_of(connection->theirs), length - first};
}

static void dispatch(struct connection *connection, const struct record *record, const struct payload *payload) {
    /* Messages go to the side that was connected to, and answers back. */
    bool is_answer = connection->is_outgoing;

    switch (record->kind) {
    case RECORD_EAGER:
    case RECORD_LONG:
        if (is_answer)
            break;
        message_arrived(connection, record, payload);
        return;
    case RECORD_GO:
    case RECORD_DONE:
        if (!is_answer)
            break;
        message_answered(connection, record);
        return;
    case RECORD_DATA:
        message_data(connection, record, payload);
        return;
    case RECORD_FORGET:
        if (is_answer)
            break;
        message_forget(connection, record->key);
        return;
    case RECORD_OPENED:
    case RECORD_CLOSED:
        if (!is_answer)
            break;
        rma_record(connection, record, payload);
        return;
    case RECORD_OPEN:
    case RECORD_READ:
    case RECORD_WRITE:
    case RECORD_IMMEDIATE:
        if (is_answer)
            break;
        rma_record(connection, record, payload);
        return;
    default:
        break;
    }
    wire_fail(connection, "it sent a record that has no meaning here");
}

static bool may_receive(const struct connection *connection) {
    const struct cq *cq = connection->endpoint->receive_cq;

    return !connection->is_dead && connection->unexpected_bytes < MOST_UNEXPECTED && (!cq || cq->count < MOST_COMPLETIONS) &&
           (!connection->account || account_has_room(connection));
}

/* Whether another user asks for more than it takes. Its requests stay in its ring then. */
static bool is_behind(const struct connection *connection) {
    return connection->account &&
           (!link_is_empty(&connection->backlog) || connection->stream_count >= MOST_STREAMS_OF_OTHERS);
}

/* Takes records; gives how many. */
static unsigned receive(struct connection *connection, unsigned most) {
    const struct shared *theirs = connection->theirs;
    unsigned count = 0;

    while (count < most && may_receive(connection)) {
        uint64_t produced = atomic_load_explicit(&((struct shared *)(uintptr_t)theirs)->produced, memory_order_acquire);
        uint64_t available = produced - connection->consumed;
        struct payload head, payload;
        struct record record;

        if (available == 0)
            break;
        head = ring_read(connection, connection->consumed, RECORD_BYTES);
        memcpy(&record, head.first, sizeof(record));
        if (available > connection->theirs_bytes || available < RECORD_BYTES || record.length > MOST_PAYLOAD ||
            RECORD_BYTES + padded(record.length) > available) {
            wire_fail(connection, "its ring is wrong");
            break;
        }
        payload = ring_read(connection, connection->consumed + RECORD_BYTES, record.length);
        dispatch(connection, &record, &payload);
        connection->consumed += RECORD_BYTES + padded(record.length);
        if (connection->mine)
            atomic_store_explicit(&connection->mine->consumed, connection->consumed, memory_order_release);
        count++;
    }
    return count;
}

/* The peer has closed its socket. What it sent before that is in its ring; it cannot be more than fits. */
static void end(struct connection *connection) {
    if (connection->theirs)
        (void)receive(connection, (unsigned)(connection->theirs_bytes / RECORD_BYTES));
    if (may_receive(connection))
        wire_fail(connection, NULL);
}

static void look_at_sockets(struct endpoint *ep) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(ep->epoll, events, EVENTS, 0);

    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;

        if (!connection) {
            accept_some(ep);
            continue;
        }
        if (!connection->is_dead && !connection->theirs && events[i].events & EPOLLIN)
            greet(connection);
        else if (!connection->is_dead && events[i].events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
            end(connection);
        else if (!connection->is_dead && connection->theirs)
            wire_fail(connection, "it sent a second greeting");
    }
}

void wire_progress(struct endpoint *ep, bool thorough) {
    if (thorough)
        look_at_sockets(ep);
    FOR_EACH(item, following, &ep->connections) {
        struct connection *connection = CONTAINER(item, struct connection, link);

        if (thorough && !connection->is_dead && (connection->is_new || connection->greeting >= 0))
            look_at_greetings(connection);
        if (connection->theirs && !connection->is_dead && !is_behind(connection))
            (void)receive(connection, TURN_RECORDS);
        if (!connection->is_dead && !link_is_empty(&connection->backlog))
            send_backlog(connection);
        if (!connection->is_dead && !link_is_empty(&connection->streams))
            send_streams(connection);
        if (connection->is_dead && connection->references == 0 && close_socket(connection))
            connection_free(connection);
    }
}
