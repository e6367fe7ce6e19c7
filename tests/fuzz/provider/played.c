/* Stands in for what the provider uses, so that an input decides all of it.
 *
 *     libfabric     its parameters: any user may connect, and leave 64 KiB unread; no log
 *     service       frames of the program and of peers, grants, an engine that ends copies when the input says so
 *     memory.c      which bytes are in a frame; the real one moves pages of the program, which no peer has a part in
 *     system        geteuid, clock_gettime, connect, pthread_create: see build.rs
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "played.h"

#define USER_BYTES ((size_t)64 << 10)
#define SESSION 77
#define PROGRAM_FRAME 1
#define BOUNCE_FRAME 2
/* Frames that were accepted have the number of their token added to this. */
#define FOREIGN_FRAME 100
/* Tokens of messages: one for each session. */
#define MESSAGE_TOKEN 500
#define FIRST_GRANT 1000
#define MOST_GRANTS 512

struct played played;
struct fi_provider memferry_provider;

static uint8_t bounce[BOUNCE_SLOTS * BOUNCE_BYTES];
static struct {
    uint64_t session;
    bool is_revoked;
} grants[MOST_GRANTS];
static size_t grant_count;

struct copy {
    uint64_t tag;
    const uint8_t *from;
    uint8_t *to;
    size_t length;
    bool is_cancelled;
};
static struct copy copies[QUEUE_TRANSFERS];
static size_t copy_count;
static uint64_t last_tag;
static void *(*thread)(void *);

_Noreturn void broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: %s\n", file, line, condition);
    abort();
}

void played_reset(void) {
    memset(&played, 0, sizeof(played));
    for (size_t i = 0; i < MEMORY_BYTES; i++)
        played.memory[i] = (uint8_t)(i * 11 + (i >> 8));
    grant_count = copy_count = 0;
    thread = NULL;
}

/* ---- System ---- */

uid_t played_geteuid(void);
uid_t played_geteuid(void) { return geteuid() + (played.is_other ? 1 : 0); }

int played_clock_gettime(clockid_t clock, struct timespec *now);
int played_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){(time_t)(played.now_ms / 1000), (long)(played.now_ms % 1000) * 1000000};
    return 0;
}

int played_connect(int socket, const struct sockaddr *address, socklen_t length);
int played_connect(int socket, const struct sockaddr *address, socklen_t length) {
    int status = connect(socket, address, length);

    played.connects += status == 0;
    return status;
}

/* The thread begins when the lock is free. */
int played_pthread_create(pthread_t *made, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int played_pthread_create(pthread_t *made, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    (void)attributes;
    CHECK(!thread && !argument);
    *made = pthread_self();
    thread = body;
    return 0;
}

void played_run_thread(void) {
    void *(*body)(void *) = thread;

    thread = NULL;
    if (body)
        (void)body(NULL);
}

/* ---- libfabric, and provider.c ---- */

int fi_param_get(struct fi_provider *provider, const char *name, void *value) {
    static char any[] = "any";

    (void)provider;
    if (strcmp(name, "users") == 0)
        *(char **)value = any;
    else if (strcmp(name, "user_bytes") == 0)
        *(size_t *)value = USER_BYTES;
    else
        return -FI_ENODATA;
    return 0;
}

int fi_log_enabled(const struct fi_provider *provider, enum fi_log_level level, enum fi_log_subsys part) {
    (void)provider;
    (void)level;
    (void)part;
    return 0;
}

void fi_log(const struct fi_provider *provider, enum fi_log_level level, enum fi_log_subsys part, const char *function, int line,
            const char *format, ...) {
    (void)provider;
    (void)level;
    (void)part;
    (void)function;
    (void)line;
    (void)format;
}

/* ---- memory.c ---- */

struct hold *memory_hold(void *address, size_t length) {
    (void)address;
    (void)length;
    return NULL;
}

void memory_release(struct hold *hold) { (void)hold; }

bool memory_find(const void *address, size_t length, mf_range *range) {
    uintptr_t at = (uintptr_t)address, begin = (uintptr_t)played.memory + THIRD_BYTES, end = begin + THIRD_BYTES;

    if (at >= begin && at < end) {
        *range = mf_part((mf_frame){PROGRAM_FRAME}, at - begin, end - at < length ? end - at : length);
        return true;
    }
    *range = (mf_range){.length = at < begin && begin - at < length ? begin - at : length};
    return false;
}

uint64_t memory_token(const mf_range *range, uint64_t session, uint64_t *offset) {
    *offset = range->offset;
    return MESSAGE_TOKEN + session;
}

void memory_revoke(uint64_t token) {
    CHECK(token >= FIRST_GRANT && token - FIRST_GRANT < grant_count && !grants[token - FIRST_GRANT].is_revoked);
    grants[token - FIRST_GRANT].is_revoked = true;
    played.grants--;
}

void memory_close(void) {}
void memory_abandon(void) {}
void memory_forget_session(uint64_t session) { (void)session; }

/* ---- The service ---- */

enum mf_error mf_check_version(uint32_t version) { return version == MF_VERSION ? MF_ERROR_NONE : MF_ERROR_VERSION; }

enum mf_error mf_connect(const char *path, mf_client *client) {
    (void)path;
    *client = (mf_client){1};
    return MF_ERROR_NONE;
}

enum mf_error mf_disconnect(mf_client client) {
    (void)client;
    return MF_ERROR_NONE;
}

enum mf_error mf_session(mf_client client, uint64_t *session) {
    (void)client;
    *session = SESSION;
    return MF_ERROR_NONE;
}

enum mf_error mf_queue_open(mf_client client, uint32_t capacity, mf_queue *queue) {
    (void)client;
    CHECK(capacity == QUEUE_TRANSFERS);
    *queue = (mf_queue){1};
    return MF_ERROR_NONE;
}

enum mf_error mf_queue_close(mf_queue queue) {
    (void)queue;
    return MF_ERROR_NONE;
}

const char *mf_error_text(int32_t error) {
    (void)error;
    return "";
}

const char *mf_last_message(void) { return ""; }

enum mf_error mf_frame_allocate(mf_client client, uint64_t length, mf_frame *frame) {
    (void)client;
    CHECK(length == sizeof(bounce));
    *frame = (mf_frame){BOUNCE_FRAME};
    played.frames++;
    return MF_ERROR_NONE;
}

enum mf_error mf_frame_map(mf_frame frame, void **bytes, uint64_t *length) {
    CHECK(frame.id == BOUNCE_FRAME && !length);
    *bytes = bounce;
    return MF_ERROR_NONE;
}

enum mf_error mf_frame_free(mf_frame frame) {
    CHECK(frame.id >= BOUNCE_FRAME && played.frames > 0);
    played.frames--;
    return MF_ERROR_NONE;
}

enum mf_error mf_accept(mf_client client, mf_grant_token token, mf_frame *frame) {
    (void)client;
    if (token.value == 0 || token.value > FOREIGN_TOKENS)
        return MF_ERROR_REFUSED_CAPABILITY;
    *frame = (mf_frame){FOREIGN_FRAME + token.value};
    played.frames++;
    return MF_ERROR_NONE;
}

static uint64_t session_of(mf_frame frame) { return (frame.id - FOREIGN_FRAME) % SESSIONS + 1; }

enum mf_error mf_frame_grantor(mf_frame frame, uint64_t *session) {
    CHECK(frame.id > FOREIGN_FRAME && frame.id <= FOREIGN_FRAME + FOREIGN_TOKENS);
    *session = session_of(frame);
    return MF_ERROR_NONE;
}

enum mf_error mf_grant_session(mf_range range, uint32_t rights, uint64_t session, mf_grant_token *token) {
    CHECK(range.frame.id == PROGRAM_FRAME && range.length > 0 && range.offset <= THIRD_BYTES && range.length <= THIRD_BYTES - range.offset);
    CHECK(rights == MF_RIGHTS_READ || rights == MF_RIGHTS_WRITE);
    CHECK(session >= 1 && session <= SESSIONS);
    if (grant_count == MOST_GRANTS)
        return MF_ERROR_REFUSED_QUOTA;
    *token = (mf_grant_token){FIRST_GRANT + grant_count};
    grants[grant_count].session = session;
    grants[grant_count++].is_revoked = false;
    played.grants++;
    return MF_ERROR_NONE;
}

bool played_granted(uint64_t token, uint64_t session) {
    return token >= FIRST_GRANT && token - FIRST_GRANT < grant_count && grants[token - FIRST_GRANT].session == session;
}

/* Where a range is; null if the frame has no such bytes. Ranges of the program's own frames are right. */
static uint8_t *place_of(mf_range range) {
    uint8_t *start = range.frame.id == PROGRAM_FRAME ? played.memory + THIRD_BYTES : range.frame.id == BOUNCE_FRAME ? bounce : played.foreign;
    size_t length = range.frame.id == PROGRAM_FRAME ? THIRD_BYTES : range.frame.id == BOUNCE_FRAME ? sizeof(bounce) : FOREIGN_BYTES;
    bool is_inside = range.offset <= length && range.length <= length - range.offset;

    CHECK(is_inside || range.frame.id > FOREIGN_FRAME);
    CHECK(range.frame.id < FOREIGN_FRAME || played.sessions >> session_of(range.frame) & 1);
    return is_inside ? start + range.offset : NULL;
}

enum mf_error mf_submit_copy(mf_queue queue, mf_range source, mf_range destination, const mf_terms *terms, mf_ticket *ticket) {
    const uint8_t *from = place_of(source);
    uint8_t *to = place_of(destination);

    (void)terms;
    CHECK(source.length == destination.length && source.length > 0);
    if (!from || !to)
        return MF_ERROR_OUT_OF_RANGE;
    if (copy_count == QUEUE_TRANSFERS)
        return MF_ERROR_QUEUE_FULL;
    *ticket = (mf_ticket){++last_tag, queue.id};
    copies[copy_count++] = (struct copy){last_tag, from, to, source.length, false};
    return MF_ERROR_NONE;
}

enum mf_error mf_poll(mf_queue queue, mf_completion *completion) {
    struct copy copy = copies[0];

    if (copy_count == 0 || (played.ends == 0 && !played.is_closing && !copy.is_cancelled))
        return MF_ERROR_NOTHING;
    played.ends -= played.ends > 0;
    memmove(copies, copies + 1, --copy_count * sizeof(copies[0]));
    *completion = (mf_completion){.ticket = {copy.tag, queue.id},
                                  .error = played.is_closing || copy.is_cancelled ? MF_ERROR_CANCELLED : played.error};
    if (completion->error == MF_ERROR_NONE)
        memmove(copy.to, copy.from, copy.length);
    return completion->error;
}

enum mf_error mf_cancel(mf_queue queue, mf_ticket ticket) {
    (void)queue;
    for (size_t i = 0; i < copy_count; i++)
        copies[i].is_cancelled |= copies[i].tag == ticket.tag;
    return MF_ERROR_NONE;
}
