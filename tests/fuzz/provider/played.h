/* What stands in for libfabric, for the service and for the system while the provider is fuzzed: see played.c. After provider.h.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_FUZZ_PLAYED_H
#define MEMFERRY_FUZZ_PLAYED_H

#include "provider.h"

#define CHECK(condition) ((condition) ? (void)0 : broken(#condition, __FILE__, __LINE__))

/* Memory of the program. The middle third is in a frame. */
#define THIRD_BYTES 16384
#define MEMORY_BYTES (3 * THIRD_BYTES)
/* Of a frame that a peer grants. */
#define FOREIGN_BYTES 8192
/* Sessions of peers have numbers up to this one. */
#define SESSIONS 3
/* Tokens up to this one are of peers: of session token % SESSIONS + 1. */
#define FOREIGN_TOKENS 6

/* What a target has to know and may decide. */
struct played {
    uint8_t memory[MEMORY_BYTES];
    uint8_t foreign[FOREIGN_BYTES];
    /* The provider's user is not that of its peers. */
    bool is_other;
    uint64_t now_ms;
    /* Connections that it made. */
    unsigned connects;
    /* Transfers that the engine ends with the next polls, and how; all as cancelled while an endpoint is being closed. */
    unsigned ends;
    mf_error error;
    bool is_closing;
    /* Bits of the sessions of peers that have greeted. Frames of others are not to be used. */
    unsigned sessions;
    /* Frames and grants that were not given back. */
    unsigned frames;
    unsigned grants;
};

extern struct played played;

_Noreturn void broken(const char *condition, const char *file, int line);
void played_reset(void);
/* Runs the thread that the provider has started, if it has. */
void played_run_thread(void);
/* Whether a token was granted to a session. It may be revoked. */
bool played_granted(uint64_t token, uint64_t session);

#endif
