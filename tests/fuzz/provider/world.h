/* What the target knows of the provider, of its peers and of what the program posted. After played.h.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_FUZZ_WORLD_H
#define MEMFERRY_FUZZ_WORLD_H

#include <stdatomic.h>

#include "played.h"

#define HEAD_BYTES 4096
#define OWN_RING_BYTES (64 * 1024)
#define THEIR_RING_BYTES (256 * 1024)
#define MAGIC 0x6d666669u
#define MOST_PAYLOAD 32768
#define PART_BYTES 16384
#define RECORD_BYTES sizeof(struct record)
#define MOST_STEPS 400
#define PEERS 6
#define POSTS 48
#define READABLE_KEY 7
#define WRITABLE_KEY 8
/* Receives in a frame have these bytes, a slot each. */
#define SLOTS_AT (THIRD_BYTES + 4096)
#define SLOT_BYTES 1024
#define SLOTS 8
/* What another user may leave: one half of all, equal parts of the other half, and one message more. */
#define MOST_LEFT (32 * 1024 + PEERS * (512 + MOST_PAYLOAD + 4096))

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
    struct name name;
};

/* A request of a peer to read, whose bytes have not all come. */
struct wanted {
    uint64_t id, tag, total, sent;
    const uint8_t *bytes;
};

/* A peer asks for the bytes of a long message of this endpoint. */
struct asked {
    uint64_t key, total, sent, number;
};

struct peer {
    /* The endpoint connected to it. */
    bool is_receiver;
    unsigned ordinal;
    struct name name;
    uint64_t session;
    int socket;
    struct head *head;
    const struct head *theirs;
    /* Of its ring: written, and taken as the second reading says; of the provider's: read. */
    uint64_t produced, taken, read;
    bool has_greeted, hangs_up, is_dead;
    /* It broke a rule, so that the connection has to end; it did what may end it. */
    bool must_end, may_end;
    /* Answers that it may get. */
    unsigned owed, opens;
    struct wanted wanted[POSTS];
    size_t wanted_count;
    struct asked asked[POSTS];
    size_t asked_count;
};

enum sort { RECEIVE, SEND, MOVE };

/* What the program posted and has no completion yet. */
struct post {
    enum sort sort;
    uint64_t number, id;
    uint8_t *buffer;
    size_t length;
    bool is_in_frame;
    bool is_tagged;
    uint64_t tag, ignore;
    fi_addr_t source;
    struct link link;
    /* Of a receive: whose message it has; the bytes so far, and whether the second reading does not know which. */
    struct peer *peer;
    struct record message;
    uint8_t *content;
    size_t limit, done;
    bool is_vague;
    /* The completion has to be there, with this error. */
    bool is_due;
    int error;
    /* Of a send: acknowledged by its receiver, or all of it was sent. */
    bool is_acknowledged, is_answered, is_sent;
};

/* A message that waits for a receive. */
struct message {
    struct link link;
    struct peer *peer;
    struct record record;
    const void *claimer;
    uint8_t bytes[];
};

/* What was sent, which the peer may read later than the program has its completion. */
struct sent {
    enum sort sort;
    enum op_kind kind;
    bool is_seen;
    unsigned ordinal;
    uint64_t number, id, tag, data, address, key;
    size_t length;
    bool is_tagged, is_acknowledged;
};

struct immediate {
    uint64_t length, data;
};

struct world {
    struct fabric fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *readable, *writable;
    uint8_t shadow[MEMORY_BYTES];
    int listener;
    struct name listener_name;
    struct peer peers[PEERS];
    size_t peer_count;
    struct post *posts[POSTS];
    /* The lowest number that the next operation may have, for each place of the endpoint's operations. */
    uint64_t next_ids[2 * POSTS];
    struct sent sents[4 * POSTS];
    size_t sent_count;
    struct link posted[2], unexpected[2], claimed;
    struct immediate immediates[4 * POSTS];
    size_t immediate_count, immediate_seen;
    uint64_t next_number;
    unsigned slots;
    /* The completion of a peek, whose contexts have the addresses of these bytes. */
    uint8_t peeks[4];
    bool has_peeked;
    struct fi_cq_tagged_entry peeked;
    /* The two readings may differ from here on, and the input ends. */
    bool is_over;
};

extern struct world *world;

static inline struct endpoint *endpoint(void) { return CONTAINER(world->ep, struct endpoint, fid); }

/* Bytes of what is sent: of the post with this number, at this place. */
static inline uint8_t pattern(uint64_t which, uint64_t at) { return (uint8_t)(which * 31 + at * 7 + (at >> 8)); }

static inline uint64_t padded(uint64_t length) { return (length + RECORD_BYTES - 1) & ~(uint64_t)(RECORD_BYTES - 1); }

/* ---- reading.c ---- */

/* A place for one more; null if there is none. */
struct post *new_post(enum sort sort, size_t length);
void free_post(struct post *post);
/* Notes the number that the provider gave the operation. */
void name_post(struct post *post);
/* The completion of a post has to be there when the provider has done this step. */
void due(struct post *post, int error);
/* Whether a receive is for a message of a peer. */
bool matches(const struct post *post, const struct peer *peer, const struct record *record);
/* The receive gets the message. */
void deliver(struct post *post, struct peer *peer, const struct record *record, const uint8_t *bytes);
void take_greeting(struct peer *peer);
void look_at(struct peer *peer);
/* Compares what the provider did with what it had to do. */
void settle(void);

#endif
