/* The provider's objects. One lock guards all of them: a process has one session with the service, one queue and one table of
 * memory, which all its domains share.
 *
 *     provider.c    fi_getinfo, fabrics, event queues
 *     domain.c      domains, address vectors, memory regions
 *     memory.c      plain memory of the program as frames
 *     wire.c        connections to peers: sockets, and rings of records in shared memory
 *     users.c       which users may connect, and how much of this process other users may take
 *     closer.c      closes what other users may have made slow to close
 *     endpoint.c    endpoints: what a program posts
 *     unoffered.c   tables of functions that this provider does not offer
 *     message.c     messages: matching, eager and long ones
 *     rma.c         reads and writes of peers' memory; copies by the engine
 *     completion.c  completion queues, counters
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_FI_PROVIDER_H
#define MEMFERRY_FI_PROVIDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <memferry.h>

#define PROVIDER_NAME "memferry"
/* Of an address, with its end: memferry://UID/16 hexadecimal digits. */
#define NAME_BYTES 48
/* Buffers of one operation. */
#define MOST_BUFFERS 4
/* A message up to this length is copied into the ring; a longer one waits for its receiver. */
#define EAGER_BYTES 16384
#define INJECT_BYTES 4096
#define MOST_MESSAGE (1ULL << 40)
/* Operations of an endpoint that have not ended, not counting receives. */
#define MOST_SENDS 1024
#define KEY_BYTES 8

extern struct fi_provider memferry_provider;
#define WARN(...) FI_WARN(&memferry_provider, FI_LOG_CORE, __VA_ARGS__)

struct link {
    struct link *next;
    struct link *previous;
};

static inline void link_init(struct link *list) { list->next = list->previous = list; }
static inline bool link_is_empty(const struct link *list) { return list->next == list; }
static inline void link_append(struct link *list, struct link *item) {
    item->next = list;
    item->previous = list->previous;
    list->previous->next = item;
    list->previous = item;
}
static inline void link_remove(struct link *item) {
    item->previous->next = item->next;
    item->next->previous = item->previous;
    link_init(item);
}
#define CONTAINER(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))
/* The body may remove the item. */
#define FOR_EACH(item, following, list)                                                                                        \
    for (struct link *item = (list)->next, *following = item->next; item != (list); item = following, following = item->next)

/* ---- Names and connections (wire.c) ---- */

struct name {
    char text[NAME_BYTES];
};

enum record_kind {
    /* A message with its bytes. */
    RECORD_EAGER = 1,
    /* A long message: its pieces, and the bytes of those that are no frames. */
    RECORD_LONG,
    /* Answer to RECORD_LONG: send the bytes. `id` is the sender's operation, `key` the receiver's. */
    RECORD_GO,
    /* Bytes of a long message, of the answer to RECORD_READ. `id` is the operation that takes them, `address` their place in it. */
    RECORD_DATA,
    /* Operation `id` has ended, with the error `tag`. */
    RECORD_DONE,
    /* Asks for the memory region `key`. */
    RECORD_OPEN,
    RECORD_OPENED,
    /* The memory region `key` is closed. */
    RECORD_CLOSED,
    /* Bytes of a region that is no frame: read or written by its owner. */
    RECORD_READ,
    RECORD_WRITE,
    /* A write of `total` bytes is in place; `data` is for the completion queue. */
    RECORD_IMMEDIATE,
    /* The frame of this token will not be used for messages any more. */
    RECORD_FORGET,
};

#define RECORD_TAGGED 1
#define RECORD_HAS_DATA 2
/* The sender waits for RECORD_DONE. */
#define RECORD_ACKNOWLEDGE 4
/* Bytes for the completion of a message: RECORD_LONG has pieces. */
#define RECORD_HAS_PIECES 8

/* What goes through a ring, followed by `length` bytes. */
struct record {
    uint8_t kind;
    uint8_t flags;
    uint16_t reserved;
    uint32_t length;
    uint64_t tag;
    uint64_t data;
    uint64_t total;
    uint64_t id;
    uint64_t address;
    uint64_t key;
    uint64_t spare;
};

/* Bytes of a record as they lie in the ring of a peer, which may change them at any time. */
struct payload {
    const uint8_t *first;
    size_t first_length;
    const uint8_t *second;
    size_t second_length;
};

struct shared;
struct domain;
struct endpoint;
struct op;
struct account;
struct closing;

struct connection {
    struct link link; /* of the endpoint */
    struct endpoint *endpoint;
    struct name name;
    uid_t user;
    uint64_t session;
    /* -1 when it is closed, or the closer's. */
    int socket;
    /* A descriptor that the peer sent and that is of no use, or -1. */
    int received;
    /* What the closer needs to take both. */
    struct closing *closing;
    /* This side connected: it sends messages, and the other side answers. */
    bool is_outgoing;
    bool is_self;
    bool is_dead;
    /* No name yet. */
    bool is_new;
    /* Of a side that was connected to: the memory that it has not sent yet, or -1; when it was accepted, or greeted. */
    int greeting;
    uint64_t since;
    /* Of a connection that another user made. */
    struct account *account;
    /* Operations and unexpected messages that name it. */
    unsigned references;
    /* The address of the peer in the endpoint's vector, valid while `generation` is that of the vector. */
    fi_addr_t address;
    uint64_t generation;
    /* This side's memory, which the peer maps read-only; and the peer's. */
    struct shared *mine;
    const struct shared *theirs;
    uint64_t mine_bytes;
    uint64_t theirs_bytes;
    uint64_t produced;
    uint64_t consumed;
    struct link backlog;
    unsigned backlog_count;
    struct link streams;
    unsigned stream_count;
    struct link ops;
    /* Memory of the peer that it opened to this process, and tokens of its messages. */
    struct link remotes;
    struct link accepted;
    size_t unexpected_bytes;
};

void wire_name_make(struct name *name);
bool wire_name_parse(const char *text, struct name *name, uid_t *user);
int wire_listen(struct endpoint *ep);
void wire_close(struct endpoint *ep);
/* In a forked child: closes its copies of the sockets, and leaves the connections to the parent. */
void wire_abandon(struct endpoint *ep);
/* Gives a connection that sends to a name, or null and a negative error. */
struct connection *wire_connect(struct endpoint *ep, const struct name *name, int *error);
bool wire_has_room(struct connection *connection, size_t length);
void wire_put(struct connection *connection, struct record *record, const struct iovec *iov, size_t count, size_t skip);
/* Puts a record into the ring, or keeps it until there is room. */
void wire_queue(struct connection *connection, struct record *record, const void *payload);
/* Takes what peers sent, and sends what waits. `thorough`: looks at the sockets too. */
void wire_progress(struct endpoint *ep, bool thorough);
void wire_fail(struct connection *connection, const char *reason);
/* Whether a process with this session is connected to an endpoint of the domain. */
bool wire_has_session(const struct domain *domain, uint64_t session);
fi_addr_t wire_address(struct connection *connection);

void payload_copy(const struct payload *payload, size_t skip, void *to, size_t length);

/* ---- Users (users.c) ---- */

bool user_is_welcome(uid_t user);
/* Counts a connection that another user made. Null if that user, or all of them together, have as many as they may. */
struct account *account_open(uid_t user);
void account_close(struct account *account);
/* Whether one more message of a connection may be kept until the program receives it. */
bool account_has_room(const struct connection *connection);
/* Counts a message that is kept, or is no longer. */
void account_keep(struct connection *connection, size_t length);
void account_drop(struct connection *connection, size_t length);

/* ---- What is slow to close (closer.c) ---- */

/* Memory for closer_add, which cannot fail. `listens`: connections that were not accepted end too. Null if there is none. */
struct closing *closing_new(bool listens);
/* Whether another user's socket may be taken on, because there is room for closing it. */
bool closer_has_room(void);
/* Closes a socket that was shut down, and a descriptor unless it is -1, later and by another thread. Also where there is no room. */
void closer_add(struct closing *closing, int socket, int received);
/* A forked child has no such thread; its copies of the descriptors wait for the next one. */
void closer_in_child(bool has_lock);

/* Bytes that go to a peer piece by piece. */
struct stream {
    struct link link;
    uint8_t kind;
    /* Of the operation that takes the bytes; of the memory they go to. */
    uint64_t id;
    uint64_t key;
    uint64_t address;
    struct iovec iov[MOST_BUFFERS];
    unsigned iov_count;
    size_t skip;
    size_t total;
    size_t sent;
    /* The operation that owns the bytes, or the region. */
    struct op *op;
    struct region_handle *region;
};

bool stream_start(struct connection *connection, const struct stream *model);
void stream_stop(struct connection *connection, struct stream *stream);

/* ---- Plain memory as frames (memory.c) ---- */

/* What a memory region holds on to. */
struct hold;

/* Takes whole pages of the range into frames, where that is possible. Never fails: the rest is staged. */
struct hold *memory_hold(void *address, size_t length);
void memory_release(struct hold *hold);
/* Gives the frame that the registered byte at an address is in, and how many bytes from there on are; or false, and how many are in none. */
bool memory_find(const void *address, size_t length, mf_range *range);
/* Gives the frame of an earlier memory_find, for a peer of this user to read: a token, made once for each session. 0 if refused. */
uint64_t memory_token(const mf_range *range, uint64_t session, uint64_t *offset);
/* Ends a grant: when it returns, nothing uses it. */
void memory_revoke(uint64_t token);
void memory_close(void);
/* In a forked child: forgets the frames, which are the parent's. */
void memory_abandon(void);
/* The session ended: its tokens are of no use. */
void memory_forget_session(uint64_t session);

/* ---- The process (domain.c) ---- */

struct process {
    pthread_mutex_t lock;
    unsigned domains;
    /* A forked child of the process that opened the domains: connections, frames and queue are the parent's. */
    bool is_child;
    /* Of a child: the fork did not get the lock, so the lists may be of any shape. */
    bool is_torn;
    mf_client client;
    mf_queue queue;
    uint64_t session;
    /* For bytes that are in no frame: slots. */
    mf_frame bounce;
    uint8_t *bounce_bytes;
    uint32_t free_slots;
    /* Transfers without a completion, in the order of their start. */
    struct link transfers;
    unsigned transfer_count;
    /* Operations that wait for a slot or for the queue. */
    struct link waiting;
    struct link all_domains;
};

extern struct process process;
#define BOUNCE_SLOTS 32
#define BOUNCE_BYTES 65536
#define QUEUE_TRANSFERS 256

struct domain {
    struct fid_domain fid;
    struct link link;
    struct fabric *fabric;
    bool has_virtual_addresses;
    bool has_provider_keys;
    unsigned references;
    struct link endpoints;
    struct link regions;
    unsigned idle;
};

struct fabric {
    struct fid_fabric fid;
    unsigned references;
};

struct region_handle {
    struct fid_mr fid;
    struct link link;
    struct domain *domain;
    uint8_t *start;
    size_t length;
    uint64_t access;
    struct hold *hold;
    /* Grants to peers. */
    struct link grants;
};

struct av_entry {
    struct name name;
    uid_t user;
    bool is_used;
};

struct av {
    struct fid_av fid;
    struct domain *domain;
    unsigned references;
    struct av_entry *entries;
    size_t count;
    size_t capacity;
    /* Changes with each insertion and removal. */
    uint64_t generation;
};

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
void domain_progress(struct domain *domain, bool thorough);
/* Gives a region that allows an access to a range, or null. `start` is where the range is in this process. */
struct region_handle *region_find(struct domain *domain, uint64_t key, uint64_t address, uint64_t length, uint64_t access,
                                  uint8_t **start);
struct region_handle *region_of_key(struct domain *domain, uint64_t key);
const struct av_entry *av_entry(const struct av *av, fi_addr_t address);

/* ---- Completions (completion.c) ---- */

struct entry {
    void *context;
    uint64_t flags;
    size_t length;
    void *buffer;
    uint64_t data;
    uint64_t tag;
    fi_addr_t source;
    /* Of failures. */
    int error;
    int provider_error;
    size_t overflow;
};

struct cq {
    struct fid_cq fid;
    struct domain *domain;
    unsigned references;
    enum fi_cq_format format;
    bool is_signalled;
    unsigned idle_polls;
    struct entry *entries;
    size_t first;
    size_t count;
    size_t capacity;
};

struct cntr {
    struct fid_cntr fid;
    struct domain *domain;
    unsigned references;
    uint64_t value;
    uint64_t errors;
};

int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
void cq_add(struct cq *cq, const struct entry *entry);
uint64_t now_ms(void);

/* ---- Endpoints and operations (endpoint.c, message.c, rma.c) ---- */

enum op_kind { OP_SEND, OP_RECEIVE, OP_READ, OP_WRITE };

enum op_state {
    /* A receive without a message. */
    OP_POSTED,
    /* A send that waits for the receiver's answer; a read or write for the region. */
    OP_WAITING,
    /* Bytes come through the ring, or go there. */
    OP_STREAMING,
    /* They are in the ring, and the receiver has not acknowledged them. */
    OP_SENT,
    /* Bytes are moved from or to the peer's pieces. */
    OP_MOVING,
};

/* A part of the peer's memory. */
struct piece {
    uint64_t length;
    /* Without a frame, its owner moves the bytes. */
    bool has_frame;
    /* Its bytes came with the message. */
    bool is_here;
    mf_frame frame;
    uint64_t offset;
};

struct op {
    struct link link;    /* of posted receives, or of the connection's */
    struct link waiting; /* of the process, or of a remote region */
    struct endpoint *endpoint;
    struct connection *connection;
    uint64_t id;
    bool is_in_use;
    enum op_kind kind;
    enum op_state state;
    void *context;
    /* Flags of the completion, and whether there is one if all goes well. */
    uint64_t flags;
    bool has_completion;
    bool is_tagged;
    struct iovec iov[MOST_BUFFERS];
    unsigned iov_count;
    size_t total;
    fi_addr_t source;
    uint64_t tag;
    uint64_t ignore;
    uint64_t data;
    bool has_data;
    /* Of a received message: its length, and what is taken of it. */
    size_t message;
    size_t limit;
    /* Bytes begun, and parts under way. */
    size_t position;
    size_t done;
    /* Transfers under way. */
    unsigned pending;
    int error;
    int provider_error;
    /* The peer's memory. */
    const struct piece *pieces;
    size_t piece_count;
    struct piece *own_pieces;
    struct remote *remote;
    /* Where the operation begins in the pieces. */
    uint64_t first;
    /* Bytes that the owner of the memory moves, and has not moved yet. */
    size_t staged;
    uint64_t address;
    uint64_t key;
    uint64_t sender;
    unsigned reopenings;
    /* Its endpoint is being closed: it ends without a completion. */
    bool is_discarded;
    /* The sender's completion waits until the receiver has the bytes. */
    bool is_acknowledged;
    /* A copy of what was injected. */
    uint8_t *copy;
};

enum { COUNT_SEND, COUNT_RECEIVE, COUNT_READ, COUNT_WRITE, COUNTERS };

/* A message without a receive. */
struct unexpected {
    struct link link;
    struct connection *connection;
    struct record record;
    void *claimer;
    uint8_t bytes[];
};

struct endpoint {
    struct fid_ep fid;
    struct link link; /* of the domain */
    struct domain *domain;
    struct av *av;
    struct cq *transmit_cq;
    struct cq *receive_cq;
    bool transmit_is_selective;
    bool receive_is_selective;
    struct cntr *counters[COUNTERS];
    uint64_t caps;
    uint64_t transmit_flags;
    uint64_t receive_flags;
    bool is_enabled;
    bool has_sockets;
    /* fi_close has begun. */
    bool is_closing;
    struct name name;
    int listener;
    struct closing *closing; /* of the listener */
    int epoll;
    struct link connections;
    /* By address in the vector. */
    struct connection **outgoing;
    size_t outgoing_count;
    /* Of messages without and with a tag. */
    struct link posted[2];
    struct link unexpected[2];
    struct link claimed;
    struct link free_ops;
    struct op **ops;
    size_t op_count;
    unsigned sends;
};

/* Whether a program may post operations: it is enabled, and not the parent's. */
static inline bool endpoint_works(const struct endpoint *ep) { return ep->is_enabled && !process.is_child; }
int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
struct op *op_new(struct endpoint *ep, enum op_kind kind);
void op_free(struct op *op);
struct op *op_find(const struct connection *connection, uint64_t id);
void op_attach(struct op *op, struct connection *connection);
/* Reports the end of an operation and frees it. */
void op_end(struct op *op, int error, int provider_error);
/* Reports what has no operation. */
void report(struct endpoint *ep, enum op_kind kind, bool has_completion, const struct entry *entry);
struct connection *endpoint_peer(struct endpoint *ep, fi_addr_t address, int *error);
size_t iov_total(const struct iovec *iov, size_t count);
/* Writes into buffers from a place on; clips what is too much. */
void iov_write(const struct iovec *iov, size_t count, size_t place, const struct payload *payload, size_t skip, size_t length);

ssize_t message_send(struct endpoint *ep, const struct fi_msg_tagged *message, uint64_t flags, bool is_tagged, bool has_context);
ssize_t message_receive(struct endpoint *ep, const struct fi_msg_tagged *message, uint64_t flags, bool is_tagged);
/* Cancels a receive that has no message; false if there is none. */
bool message_cancel(struct endpoint *ep, void *context);
void message_arrived(struct connection *connection, const struct record *record, const struct payload *payload);
void message_answered(struct connection *connection, const struct record *record);
void message_data(struct connection *connection, const struct record *record, const struct payload *payload);
/* A connection is lost: its messages that have no bytes here are gone. */
void message_drop(struct connection *connection);
void message_forget(struct connection *connection, uint64_t token);
void message_ended(struct op *op);

ssize_t rma_start(struct endpoint *ep, enum op_kind kind, const struct fi_msg_rma *message, uint64_t flags, bool has_context);
void rma_record(struct connection *connection, const struct record *record, const struct payload *payload);
/* Begins as much of an operation's moves as there is room for. */
void rma_advance(struct op *op);
/* Takes the engine's completions, and goes on with what waited. */
void rma_progress(void);
void rma_answered(struct op *op, const struct record *record);
void rma_data(struct op *op, const struct record *record, const struct payload *payload);
void rma_drop(struct connection *connection);
/* Ends the transfers of discarded operations. False if the engine still uses their memory after a time. */
bool rma_settle(struct endpoint *ep);
/* Ends a read or write as cancelled, if it has not ended. */
void rma_cancel(struct op *op);
void rma_region_closed(struct region_handle *region);
void rma_fail(struct op *op, int error, int provider_error);

extern struct fi_ops_atomic unoffered_atomic_ops;
extern struct fi_ops_collective unoffered_collective_ops;

int no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int no_control(struct fid *fid, int command, void *argument);
int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

#endif
