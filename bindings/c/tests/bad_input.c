/* Every mistake of a program gives its error number, and the program continues. */
#include <memferry.h>
#include <memferry.h> /* included twice, as by two other headers */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;

static void expect(const char *call, mf_error got, mf_error wanted, int line) {
    const char *message = mf_last_message();
    if (got == wanted && (wanted == MF_ERROR_NONE || strlen(message) > 0))
        return;
    fprintf(stderr, "line %d: %s gave %d (%s: %s), not %d\n", line, call, (int)got, mf_error_text(got), message,
            (int)wanted);
    failures++;
}

#define EXPECT(wanted, call) expect(#call, (call), (wanted), __LINE__)
#define OK(call) EXPECT(MF_ERROR_NONE, call)

static mf_client client;
static mf_frame frame, other;
static mf_queue queue;

static mf_error run(mf_error submitted, mf_ticket ticket) {
    return submitted != MF_ERROR_NONE ? submitted : mf_wait(queue, ticket, MF_FOREVER, NULL);
}

static void pointers(void) {
    _Alignas(8) char room[64];
    mf_ticket ticket;
    mf_completion done;
    mf_shape_2d shape = {1, 4, 4, 0, 0, 0, {0, 1, 1}, {0, 1, 1}};
    mf_range pieces[1] = {{frame, 0, 16}};
    EXPECT(MF_ERROR_NULL_POINTER, mf_embed(NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_connect(NULL, &client));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_allocate(client, 4096, NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_map(frame, NULL, NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_read(frame, 0, NULL, 4));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_write(frame, 0, NULL, 4));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_lend(client, NULL, 4096, 0, &other));
    EXPECT(MF_ERROR_NULL_POINTER, mf_submit_copy_2d(queue, mf_all(frame), mf_all(frame), NULL, NULL, &ticket));
    EXPECT(MF_ERROR_NULL_POINTER, mf_submit_scatter_gather(queue, NULL, 3, pieces, 1, NULL, &ticket));
    EXPECT(MF_ERROR_NULL_POINTER, mf_poll(queue, NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_copy(NULL, room, 4));
    EXPECT(MF_ERROR_NULL_POINTER, mf_copy(room, NULL, 4));
    OK(mf_copy(NULL, NULL, 0));
    OK(mf_frame_read(frame, 0, NULL, 0));
    EXPECT(MF_ERROR_UNALIGNED, mf_embed((mf_client *)(void *)(room + 1)));
    EXPECT(MF_ERROR_UNALIGNED, mf_poll(queue, (mf_completion *)(void *)(room + 1)));
    EXPECT(MF_ERROR_UNALIGNED, mf_submit_nop(queue, (mf_terms *)(void *)(room + 1), &ticket));
    EXPECT(MF_ERROR_UNALIGNED,
           mf_submit_fill_2d(queue, mf_all(frame), (mf_shape_2d *)(void *)(room + 4), NULL, &ticket));
    EXPECT(MF_ERROR_UNALIGNED, mf_submit_nop(queue, NULL, (mf_ticket *)(void *)(room + 4)));
    /* Nothing was submitted by any of these. */
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_any(queue, 0, &done));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_any(queue, MF_FOREVER, &done));
    OK(run(mf_submit_fill_2d(queue, mf_all(frame), &shape, NULL, &ticket), ticket));
}

/* The first queues of two clients, and the first transfer of each: equal numbers in both sessions. */
static void strangers(void) {
    mf_client clients[2];
    mf_queue queues[2];
    mf_ticket tickets[2];
    int i;
    for (i = 0; i < 2; i++) {
        OK(mf_embed(&clients[i]));
        OK(mf_queue_open(clients[i], 4, &queues[i]));
        OK(mf_submit_nop(queues[i], NULL, &tickets[i]));
    }
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait(queues[0], tickets[1], MF_FOREVER, NULL));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_cancel(queues[1], tickets[0]));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_range(queues[1], tickets[0], 0, 1, 0, NULL));
    for (i = 0; i < 2; i++) {
        OK(mf_wait(queues[i], tickets[i], MF_FOREVER, NULL));
        OK(mf_queue_close(queues[i]));
        OK(mf_disconnect(clients[i]));
    }
}

/* Grants to users of other machines, and texts that are no tokens. This service has no link. */
static void remote(void) {
    const char *good = "alpha:0000000000000000000000000000000f/4294967303/4096/rw";
    const char *bad[] = {"", "alpha", "alpha:f/4294967303/4096/rw", "alpha:0000000000000000000000000000000f/4294967303/4096/",
                         "Alpha:0000000000000000000000000000000f/4294967303/4096/rw",
                         "alpha:0000000000000000000000000000000f/4294967303/4096/rw "};
    const char *names[] = {"", "Beta", "a-name-that-is-too-long", "be ta"};
    char text[MF_REMOTE_TOKEN_BYTES];
    mf_grant_token token;
    mf_frame far;
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        EXPECT(MF_ERROR_ARGUMENT, mf_grant_remote(mf_all(frame), MF_RIGHTS_READ, names[at], 7, &token));
        EXPECT(MF_ERROR_ARGUMENT, mf_grant_remote_for(mf_all(frame), MF_RIGHTS_READ, names[at], 7, 1, &token));
    }
    EXPECT(MF_ERROR_NULL_POINTER, mf_grant_remote(mf_all(frame), MF_RIGHTS_READ, NULL, 7, &token));
    EXPECT(MF_ERROR_NULL_POINTER, mf_grant_remote(mf_all(frame), MF_RIGHTS_READ, "beta", 7, NULL));
    EXPECT(MF_ERROR_TEXT, mf_grant_remote(mf_all(frame), MF_RIGHTS_READ, "\xff", 7, &token));
    EXPECT(MF_ERROR_ARGUMENT, mf_grant_remote(mf_all(frame), 16, "beta", 7, &token));
    OK(mf_grant_remote_for(mf_all(frame), MF_RIGHTS_READ, "beta", 7, 1000000000, &token));
    OK(mf_revoke(client, token));
    OK(mf_grant_remote(mf_all(frame), MF_RIGHTS_READ, "beta", 7, &token));
    EXPECT(MF_ERROR_REFUSED_CAPABILITY, mf_accept(client, token, &far)); /* it is no local user's */
    EXPECT(MF_ERROR_NULL_POINTER, mf_remote_token(mf_all(frame), MF_RIGHTS_READ, "alpha", token, NULL));
    EXPECT(MF_ERROR_NULL_POINTER, mf_remote_token(mf_all(frame), MF_RIGHTS_READ, NULL, token, text));
    EXPECT(MF_ERROR_ARGUMENT, mf_remote_token(mf_all(frame), MF_RIGHTS_READ, "Alpha", token, text));
    EXPECT(MF_ERROR_ARGUMENT, mf_remote_token(mf_all(frame), 16, "alpha", token, text));
    memset(text, 'x', sizeof text);
    OK(mf_remote_token(mf_all(frame), MF_RIGHTS_READ | MF_RIGHTS_WRITE, "alpha", token, text));
    if (memchr(text, 0, sizeof text) == NULL || strncmp(text, "alpha:", 6) != 0 || strstr(text, "/rw") == NULL) {
        fprintf(stderr, "line %d: the text of a token is %.*s\n", __LINE__, (int)sizeof text, text);
        failures++;
    }
    OK(mf_remote_token(mf_all(frame), MF_RIGHTS_READ | MF_RIGHTS_DIRECT, "alpha", token, text));
    if (memchr(text, 0, sizeof text) == NULL || strncmp(text, "alpha:", 6) != 0 || strstr(text, "/rd") == NULL) {
        fprintf(stderr, "line %d: the text of a token is %.*s\n", __LINE__, (int)sizeof text, text);
        failures++;
    }
    OK(mf_revoke(client, token));
    for (size_t at = 0; at < sizeof bad / sizeof *bad; at++)
        EXPECT(MF_ERROR_ARGUMENT, mf_accept_remote(client, bad[at], &far));
    EXPECT(MF_ERROR_NULL_POINTER, mf_accept_remote(client, NULL, &far));
    EXPECT(MF_ERROR_NULL_POINTER, mf_accept_remote(client, good, NULL));
    EXPECT(MF_ERROR_TEXT, mf_accept_remote(client, "\xff", &far));
    EXPECT(MF_ERROR_REFUSED_ARGUMENT, mf_accept_remote(client, good, &far)); /* there is no link */
}

static void values(void) {
    mf_frame frame_of_none;
    mf_ticket ticket, never = {7, 7}, wild = {UINT64_MAX, 0};
    mf_terms terms = MF_TERMS_INIT;
    mf_shape_2d shape = {3, 4, 4, 0, 0, 0, {0, 1, 1}, {0, 1, 1}};
    mf_image image = {0, 4, 4, 4, 1, 0}, wide = {0, 8, 8, 4, 1, 0};
    mf_range many[65];
    mf_grant_token token;
    uint64_t session;
    EXPECT(MF_ERROR_VERSION, mf_check_version(MF_MAKE_VERSION(9, 0)));
    EXPECT(MF_ERROR_VERSION, mf_check_version(MF_VERSION + 1));
    OK(mf_check_version(MF_VERSION));
    terms.size = 8;
    EXPECT(MF_ERROR_VERSION, mf_submit_nop(queue, &terms, &ticket));
    terms.size = sizeof terms;
    terms.flags = 1u << 20;
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_nop(queue, &terms, &ticket));
    terms.flags = 0;
    terms.hint = 3;
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_nop(queue, &terms, &ticket));
    terms.hint = 0;
    terms.priority = 77;
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_nop(queue, &terms, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_fill(queue, mf_all(frame), 256, 1, NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_fill(queue, mf_all(frame), 1, 3, NULL, &ticket));
    EXPECT(MF_ERROR_FILL_LENGTH, run(mf_submit_fill(queue, mf_part(frame, 0, 7), 1, 4, NULL, &ticket), ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_copy_2d(queue, mf_all(frame), mf_all(frame), &shape, NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT,
           mf_submit_turn(queue, mf_all(frame), &image, 7, mf_all(other), &image, 0, 0, NULL, &ticket));
    shape.pixel_bytes = 1;
    shape.reserved = 1;
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_copy_2d(queue, mf_all(frame), mf_all(frame), &shape, NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_fill_2d(queue, mf_all(frame), &shape, NULL, &ticket));
    image.reserved = 1;
    EXPECT(MF_ERROR_ARGUMENT,
           mf_submit_turn(queue, mf_all(frame), &image, 0, mf_all(other), &wide, 0, 0, NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT,
           mf_submit_turn(queue, mf_all(frame), &wide, 0, mf_all(other), &image, 0, 0, NULL, &ticket));
    image.reserved = 0;
    EXPECT(MF_ERROR_LENGTH,
           mf_submit_turn(queue, mf_all(frame), &image, 0, mf_all(other), &wide, 0, 0, NULL, &ticket));
    EXPECT(MF_ERROR_REFUSED_ARGUMENT, mf_queue_open(client, 0, &queue));
    EXPECT(MF_ERROR_ARGUMENT, mf_grant_user(mf_all(frame), 16, 0, &token));
    EXPECT(MF_ERROR_ARGUMENT, mf_grant_user_for(mf_all(frame), 16, 0, 1, &token));
    EXPECT(MF_ERROR_NULL_POINTER, mf_grant_session_for(mf_all(frame), MF_RIGHTS_READ, 1, 1, NULL));
    OK(mf_session(client, &session));
    OK(mf_grant_session_for(mf_all(frame), MF_RIGHTS_READ, session, 0, &token));
    EXPECT(MF_ERROR_REFUSED_CAPABILITY, mf_accept(client, token, &frame_of_none)); /* it has expired */
    remote();
    EXPECT(MF_ERROR_ARGUMENT, mf_frame_register(client, -1, 4096, &other));
    EXPECT(MF_ERROR_ARGUMENT, mf_frame_register(client, 987654, 4096, &other));
    EXPECT(MF_ERROR_ARGUMENT, mf_wait_range(queue, never, 9, 8, 0, NULL));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait(queue, never, MF_FOREVER, NULL));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait(queue, wild, MF_FOREVER, NULL));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_cancel(queue, wild));
    strangers();
    /* Wrong ranges: */
    EXPECT(MF_ERROR_OUT_OF_RANGE, mf_submit_crc32c(queue, mf_part(frame, 9999999, MF_TO_END), 0, NULL, &ticket));
    EXPECT(MF_ERROR_OUT_OF_BOUNDS,
           run(mf_submit_copy(queue, mf_part(frame, UINT64_MAX - 1, 9), mf_all(other), NULL, &ticket), ticket));
    EXPECT(MF_ERROR_OUT_OF_RANGE, mf_frame_write(frame, 4090, "0123456789", 10));
    shape.reserved = 0;
    shape.source.start = UINT64_MAX;
    EXPECT(MF_ERROR_OUT_OF_RANGE,
           mf_submit_copy_2d(queue, mf_part(frame, 9, 1), mf_all(other), &shape, NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_frame_allocate(client, 0, &frame_of_none));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_allocate_at(client, NULL, 4096, &frame_of_none));
    EXPECT(MF_ERROR_TEXT, mf_frame_allocate_at(client, "\xff", 4096, &frame_of_none));
    EXPECT(MF_ERROR_REFUSED_ARGUMENT, mf_frame_allocate_at(client, "cuda-0", 4096, &frame_of_none));
    EXPECT(MF_ERROR_REFUSED_ARGUMENT, mf_frame_allocate_at(client, "cuda-0", 0, &frame_of_none));
    mf_exported exported;
    EXPECT(MF_ERROR_REFUSED_ARGUMENT, mf_frame_export(frame, &exported));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_export(frame, NULL));
    EXPECT(MF_ERROR_UNALIGNED, mf_frame_export(frame, (mf_exported *)((char *)&exported + 1)));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_frame_export((mf_frame){12345}, &exported));
    /* Wrong lists: */
    for (int i = 0; i < 65; i++)
        many[i] = mf_part(frame, 0, 16);
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_xor(queue, many, 65, mf_part(other, 0, 16), NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_xor(queue, many, 0, mf_part(other, 0, 16), NULL, &ticket));
    EXPECT(MF_ERROR_ARGUMENT, mf_submit_xor(queue, many, SIZE_MAX, mf_part(other, 0, 16), NULL, &ticket));
    /* Overlaps are errors only where the result is undefined: */
    EXPECT(MF_ERROR_OVERLAP, run(mf_submit_dual_copy(queue, mf_part(frame, 0, 16), mf_part(frame, 8, 16),
                                                     mf_part(other, 0, 16), NULL, &ticket), ticket));
    EXPECT(MF_ERROR_OVERLAP, run(mf_submit_dual_copy(queue, mf_part(frame, 0, 16), mf_part(other, 0, 16),
                                                     mf_part(other, 4, 16), NULL, &ticket), ticket));
    EXPECT(MF_ERROR_OVERLAP, run(mf_submit_xor(queue, many, 1, mf_part(frame, 8, 16), NULL, &ticket), ticket));
    OK(run(mf_submit_xor(queue, many, 2, mf_part(frame, 0, 16), NULL, &ticket), ticket));
    /* A picture is not turned in its own place, but shifted over itself: */
    struct mf_image picture = {.width = 4, .height = 4, .pitch_bytes = 8, .pixel_bytes = 1};
    struct mf_range whole = mf_part(frame, 0, 64);
    EXPECT(MF_ERROR_OVERLAP, run(mf_submit_turn(queue, whole, &picture, MF_TURN_ROTATE180, whole, &picture, 0, 0, NULL,
                                                &ticket), ticket));
    OK(run(mf_submit_turn(queue, whole, &picture, MF_TURN_UPRIGHT, mf_part(frame, 9, 64), &picture, 0, 0, NULL, &ticket),
           ticket));
    OK(run(mf_submit_copy(queue, mf_part(frame, 0, 2000), mf_part(frame, 7, 2000), NULL, &ticket), ticket));
    OK(mf_submit_repeat(queue, 1, NULL, &ticket));
    EXPECT(MF_ERROR_BAD_LOOP, run(mf_submit_repeat(queue, 1, NULL, &never), ticket));
    EXPECT(MF_ERROR_BAD_LOOP, mf_wait(queue, never, MF_FOREVER, NULL));
    EXPECT(MF_ERROR_BAD_LOOP, run(mf_submit_nop(queue, NULL, &ticket), ticket)); /* the loop binds it */
    EXPECT(MF_ERROR_NO_SERVICE, mf_connect("/nonexistent/memferry.sock", &client));
    EXPECT(MF_ERROR_TEXT, mf_connect("\xff", &client));
    EXPECT(MF_ERROR_NO_SERVICE, mf_connect_with("/nonexistent/memferry.sock", MF_FOREVER, &client));
    EXPECT(MF_ERROR_ARGUMENT, mf_connect_with("/nonexistent/memferry.sock", -2, &client));
}

/* Contradictory lengths are errors at submission, and nothing is submitted. */
static void lengths(void) {
    mf_range whole = mf_all(frame), nine = mf_part(other, 0, 9), ten = mf_part(other, 100, 10);
    mf_range pair[2] = {nine, ten};
    mf_ticket ticket = {1, 2};
    mf_completion done;
    EXPECT(MF_ERROR_LENGTH, mf_submit_copy(queue, whole, nine, NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_copy_crc32c(queue, whole, nine, 0, NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_compare(queue, nine, ten, NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_xor(queue, pair, 2, mf_part(frame, 0, 9), NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_dual_copy(queue, mf_part(frame, 0, 10), ten, nine, NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_scatter_gather(queue, pair, 2, pair, 1, NULL, &ticket));
    EXPECT(MF_ERROR_LENGTH, mf_submit_copy(queue, mf_part(frame, 9, UINT64_MAX - 1), nine, NULL, &ticket));
    if (ticket.tag != 1 || ticket.queue != 2)
        failures++, fprintf(stderr, "a ticket of no transfer\n");
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_any(queue, 0, &done));
}

static void check_completion(const mf_completion *done, mf_ticket ticket, mf_error error, unsigned inherited, int line) {
    if (done->ticket.tag == ticket.tag && done->ticket.queue == ticket.queue && done->error == error &&
        done->inherited == inherited && done->value == 0)
        return;
    fprintf(stderr, "line %d: the completion has error %d, inherited %u, value %llu\n", line, (int)done->error,
            done->inherited, (unsigned long long)done->value);
    failures++;
}

/* A failed transfer is the result of the call that takes its completion, which is filled; it is taken once. */
static void failed(void) {
    mf_shape_2d endless = {1, 1 << 19, 1 << 19, 0, 7, 0, {0, 0, 0}, {0, 0, 0}};
    mf_terms linked = MF_TERMS_INIT;
    char *memory = calloc(1, 4096);
    mf_frame lent;
    mf_ticket ticket, next;
    mf_completion done, before;
    int ended = -1;
    linked.flags = MF_FLAG_LINKED;
    OK(mf_frame_lend(client, memory, 4096, 0, &lent));
    OK(mf_submit_fill_2d(queue, mf_all(lent), &endless, &linked, &ticket));
    OK(mf_submit_fill(queue, mf_all(frame), 1, 1, NULL, &next));
    EXPECT(MF_ERROR_TIMED_OUT, mf_wait_range(queue, ticket, 0, UINT64_MAX, 0, &ended));
    if (ended != -1)
        failures++, fprintf(stderr, "a wait that timed out set ended to %d\n", ended);
    while (*(volatile char *)memory != 7) /* until it runs */
        ;
    OK(mf_cancel(queue, ticket));
    EXPECT(MF_ERROR_CANCELLED, mf_wait_range(queue, ticket, 0, UINT64_MAX, MF_FOREVER, &ended));
    if (ended != 1)
        failures++, fprintf(stderr, "a failed transfer has not ended: %d\n", ended);
    EXPECT(MF_ERROR_CANCELLED, mf_wait(queue, ticket, MF_FOREVER, &done));
    check_completion(&done, ticket, MF_ERROR_CANCELLED, 0, __LINE__);
    if (done.bytes_done == 0 || done.engine != MF_ENGINE_CPU)
        failures++, fprintf(stderr, "%llu bytes by engine %d\n", (unsigned long long)done.bytes_done, (int)done.engine);
    EXPECT(MF_ERROR_CANCELLED, mf_wait_any(queue, MF_FOREVER, &done));
    check_completion(&done, next, MF_ERROR_CANCELLED, 1, __LINE__);
    if (done.bytes_done != 0 || strstr(mf_last_message(), "linked") == NULL)
        failures++, fprintf(stderr, "the linked transfer says: %s\n", mf_last_message());
    /* A second wait takes nothing and leaves the completion as it was. */
    memcpy(&before, &done, sizeof done);
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait(queue, ticket, MF_FOREVER, &done));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait(queue, next, 0, &done));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_range(queue, next, 0, 1, MF_FOREVER, NULL));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_cancel(queue, next));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_stop(queue, next));
    EXPECT(MF_ERROR_UNKNOWN_TICKET, mf_wait_any(queue, MF_FOREVER, &done));
    EXPECT(MF_ERROR_NOTHING, mf_poll(queue, &done));
    if (memcmp(&before, &done, sizeof done) != 0)
        failures++, fprintf(stderr, "a call that took nothing changed the completion\n");
    /* mf_poll returns failures too, with the operand at fault. */
    OK(mf_submit_copy(queue, mf_part(frame, 4090, 16), mf_all(other), NULL, &ticket));
    mf_error polled;
    do
        polled = mf_poll(queue, &done);
    while (polled == MF_ERROR_NOTHING);
    EXPECT(MF_ERROR_OUT_OF_BOUNDS, polled);
    check_completion(&done, ticket, MF_ERROR_OUT_OF_BOUNDS, 0, __LINE__);
    if (done.side != MF_SIDE_SOURCE || done.detail != 4096)
        failures++, fprintf(stderr, "side %d, detail %llu\n", (int)done.side, (unsigned long long)done.detail);
    OK(mf_submit_nop(queue, NULL, &ticket));
    do
        polled = mf_poll(queue, &done);
    while (polled == MF_ERROR_NOTHING);
    EXPECT(MF_ERROR_NONE, polled);
    check_completion(&done, ticket, MF_ERROR_NONE, 0, __LINE__);
    OK(mf_frame_free(lent));
    free(memory);
}

static void memory(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *fixed = mmap(NULL, 4 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *gone = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *big = malloc(6 << 20), *back = malloc(6 << 20);
    mf_frame lent;
    mf_ticket ticket;
    munmap(gone + page, page);
    EXPECT(MF_ERROR_READ_ONLY, mf_copy(fixed, gone, 16));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_copy(gone, gone + page, 16));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_copy(gone + page - 1, "12", 2));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_copy((void *)8, "12", 2));
    EXPECT(MF_ERROR_ARGUMENT, mf_copy(gone, fixed, SIZE_MAX));
    EXPECT(MF_ERROR_READ_ONLY, mf_frame_lend(client, fixed, page, 0, &lent));
    EXPECT(MF_ERROR_NOT_MAPPED, mf_frame_lend(client, gone, 2 * page, 0, &lent));
    OK(mf_frame_lend(client, fixed, page, 1, &lent));
    EXPECT(MF_ERROR_MISSING_RIGHT, run(mf_submit_fill(queue, mf_all(lent), 1, 1, NULL, &ticket), ticket));
    EXPECT(MF_ERROR_READ_ONLY, mf_frame_write(lent, 0, "x", 1));
    OK(mf_frame_free(lent));
    for (int i = 0; i < 6 << 20; i++)
        big[i] = (char)(i * 7 + (i >> 9));
    OK(mf_copy(back, big, 6 << 20));
    if (memcmp(back, big, 6 << 20) != 0)
        failures++, fprintf(stderr, "a long copy is wrong\n");
    OK(mf_copy(big + 1001, big, (6 << 20) - 1001)); /* overlapping, as with memmove */
    if (memcmp(back, big + 1001, (6 << 20) - 1001) != 0)
        failures++, fprintf(stderr, "an overlapping copy is wrong\n");
    /* Lent memory may be freed after its frame, also when a transfer ran there. */
    OK(mf_frame_lend(client, back, 6 << 20, 0, &lent));
    mf_shape_2d endless = {1, 1 << 19, 1 << 19, 0, 7, 0, {0, 0, 0}, {0, 0, 0}};
    OK(mf_submit_fill_2d(queue, mf_all(lent), &endless, NULL, &ticket));
    while (*(volatile char *)back != 7) /* until it runs */
        ;
    OK(mf_frame_free(lent));
    free(back);
    EXPECT(MF_ERROR_CANCELLED, mf_wait(queue, ticket, 20000000000, NULL));
    free(big);
    munmap(fixed, 4 * page);
    munmap(gone, page);
    munmap(gone + 2 * page, 2 * page);
}

/* A derived frame outlives the frame that it was derived from, unless that is lent memory. */
static void derived(void) {
    mf_frame parent, view;
    mf_ticket ticket;
    char bytes[64] = "seen through a view", seen[64];
    OK(mf_frame_allocate(client, 4096, &parent));
    OK(mf_frame_write(parent, 100, bytes, 64));
    OK(mf_derive(mf_part(parent, 100, 64), MF_RIGHTS_READ, &view));
    OK(mf_submit_copy(queue, mf_all(view), mf_all(other), NULL, &ticket));
    OK(mf_frame_free(parent));
    OK(mf_wait(queue, ticket, 20000000000, NULL));
    OK(mf_frame_write(other, 0, bytes + 1, 1));
    OK(run(mf_submit_copy(queue, mf_all(view), mf_all(other), NULL, &ticket), ticket));
    OK(mf_frame_read(other, 0, seen, 64));
    if (memcmp(bytes, seen, 64) != 0)
        failures++, fprintf(stderr, "the view has other bytes\n");
    OK(mf_frame_free(view));
    OK(mf_frame_lend(client, bytes, 64, 0, &parent));
    OK(mf_derive(mf_all(parent), MF_RIGHTS_READ, &view));
    OK(mf_frame_free(parent));
    EXPECT(MF_ERROR_STALE_HANDLE, run(mf_submit_copy(queue, mf_all(view), mf_all(other), NULL, &ticket), ticket));
    OK(mf_frame_free(view));
}

static void freed(void) {
    mf_frame gone = frame, none = {0};
    mf_client gone_client = client, wrong;
    mf_queue gone_queue = queue, no_queue = {0};
    mf_ticket ticket;
    void *map;
    uint64_t session;
    EXPECT(MF_ERROR_ARGUMENT, mf_frame_grantor(frame, &session));
    EXPECT(MF_ERROR_NULL_POINTER, mf_frame_grantor(frame, NULL));
    OK(mf_frame_free(frame));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_frame_free(gone));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_frame_grantor(gone, &session));
    OK(mf_frame_allocate(client, 4096, &frame)); /* reuses its slot */
    EXPECT(MF_ERROR_BAD_HANDLE, mf_frame_map(gone, &map, NULL));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_submit_copy(queue, mf_all(gone), mf_all(frame), NULL, &ticket));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_submit_copy(queue, mf_all(none), mf_all(frame), NULL, &ticket));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_submit_nop(no_queue, NULL, &ticket));
    wrong.id = frame.id; /* a frame is not a client */
    EXPECT(MF_ERROR_BAD_HANDLE, mf_queue_open(wrong, 4, &no_queue));
    OK(mf_queue_close(queue));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_queue_close(gone_queue));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_submit_nop(gone_queue, NULL, &ticket));
    OK(mf_disconnect(client));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_disconnect(gone_client));
    EXPECT(MF_ERROR_BAD_HANDLE, mf_queue_open(gone_client, 4, &queue));
    /* Frames outlive their client's handle. */
    OK(mf_frame_map(frame, &map, NULL));
    OK(mf_frame_free(frame));
    OK(mf_frame_free(other));
}

static void *waits(void *ticket) {
    mf_error ended;
    do /* the other thread may be polling */
        ended = mf_wait(queue, *(mf_ticket *)ticket, MF_FOREVER, NULL);
    while (ended == MF_ERROR_IN_USE);
    EXPECT(MF_ERROR_CANCELLED, ended);
    return NULL;
}

static void threads(void) {
    mf_shape_2d endless = {1, 1 << 19, 1 << 19, 0, 7, 0, {0, 0, 0}, {0, 0, 0}};
    char *memory = calloc(1, 4096);
    mf_frame lent;
    mf_ticket ticket;
    pthread_t waiter;
    mf_error found;
    mf_completion done;
    OK(mf_frame_lend(client, memory, 4096, 0, &lent));
    OK(mf_submit_fill_2d(queue, mf_all(lent), &endless, NULL, &ticket));
    while (*(volatile char *)memory != 7) /* until it runs */
        ;
    time_t until = time(NULL) + 60;
    pthread_create(&waiter, NULL, waits, &ticket);
    do
        found = mf_poll(queue, &done);
    while (found == MF_ERROR_NOTHING && time(NULL) < until);
    EXPECT(MF_ERROR_IN_USE, found);
    /* The transfer ends only now, so the other thread had to wait. */
    OK(mf_frame_free(lent));
    pthread_join(waiter, NULL);
    free(memory);
}

static void queues(void) {
    mf_client stranger;
    mf_frame foreign;
    mf_ticket ticket;
    mf_completion done;
    mf_queue small;
    mf_shape_2d endless = {1, 1 << 19, 1 << 19, 0, 7, 0, {0, 0, 0}, {0, 0, 0}};
    mf_terms briefly = MF_TERMS_INIT;
    OK(mf_embed(&stranger));
    OK(mf_frame_allocate(stranger, 4096, &foreign));
    EXPECT(MF_ERROR_FOREIGN_FRAME, mf_submit_copy(queue, mf_all(foreign), mf_all(frame), NULL, &ticket));
    OK(mf_queue_open(client, 2, &small));
    OK(mf_submit_fill_2d(small, mf_all(frame), &endless, NULL, &ticket));
    OK(mf_submit_fill_2d(small, mf_all(frame), &endless, NULL, NULL));
    EXPECT(MF_ERROR_QUEUE_FULL, mf_submit_nop(small, NULL, NULL));
    EXPECT(MF_ERROR_TIMED_OUT, mf_wait(small, ticket, 1000, &done));
    EXPECT(MF_ERROR_TIMED_OUT, mf_wait(small, ticket, -2, &done)); /* not MF_FOREVER */
    EXPECT(MF_ERROR_TIMED_OUT, mf_wait_any(small, INT64_MIN, &done));
    OK(mf_cancel(small, ticket));
    EXPECT(MF_ERROR_CANCELLED, mf_wait(small, ticket, 20000000000, &done));
    EXPECT(MF_ERROR_NOTHING, mf_poll(small, &done));
    briefly.within_ns = 1000000;
    OK(mf_submit_fill_2d(small, mf_all(frame), &endless, &briefly, &ticket));
    EXPECT(MF_ERROR_DEADLINE_EXCEEDED, mf_wait(small, ticket, 20000000000, NULL));
    OK(mf_queue_close(small));
    mf_grant_token never_granted = {12345};
    EXPECT(MF_ERROR_REFUSED_CAPABILITY, mf_accept(client, never_granted, &foreign));
    EXPECT(MF_ERROR_REFUSED_CAPABILITY, mf_revoke(client, never_granted));
    OK(mf_frame_free(foreign));
    OK(mf_disconnect(stranger));
}

/* A child's calls with its parent's handles are errors; it opens its own. */
static void forked(void) {
    mf_ticket ticket;
    mf_completion done;
    int status = -1;
    OK(mf_submit_nop(queue, NULL, &ticket));
    pid_t child = fork();
    if (child == 0) {
        mf_client own;
        mf_frame mine;
        void *map;
        char big[2][64] = {"of the child", ""};
        char *source = calloc(5, 1 << 20), *destination = calloc(5, 1 << 20);
        failures = 0;
        EXPECT(MF_ERROR_FORKED, mf_wait(queue, ticket, MF_FOREVER, &done));
        EXPECT(MF_ERROR_FORKED, mf_poll(queue, &done));
        EXPECT(MF_ERROR_FORKED, mf_submit_nop(queue, NULL, &ticket));
        EXPECT(MF_ERROR_FORKED, mf_frame_map(frame, &map, NULL));
        EXPECT(MF_ERROR_FORKED, mf_frame_free(frame));
        EXPECT(MF_ERROR_FORKED, mf_queue_close(queue));
        EXPECT(MF_ERROR_FORKED, mf_disconnect(client));
        OK(mf_copy(big[1], big[0], 64));
        source[99] = 1;
        OK(mf_copy(destination, source, 5 << 20));
        OK(mf_embed(&own));
        OK(mf_frame_allocate(own, 4096, &mine));
        EXPECT(MF_ERROR_FORKED, mf_frame_map(frame, &map, NULL));
        EXPECT(MF_ERROR_FORKED, mf_queue_close(queue));
        OK(mf_queue_open(own, 4, &queue));
        OK(run(mf_submit_fill(queue, mf_all(mine), 7, 1, NULL, &ticket), ticket));
        OK(mf_frame_map(mine, &map, NULL));
        failures += memcmp(big[0], big[1], 64) != 0 || *(char *)map != 7 || destination[99] != 1;
        free(source), free(destination);
        _exit(failures);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        failures++, fprintf(stderr, "the child ended with %x\n", status);
    OK(mf_wait(queue, ticket, MF_FOREVER, &done));
}

int main(void) {
    if (strcmp(mf_error_text(12345), "unknown error") != 0 || mf_version() != MF_VERSION)
        return 1;
    OK(mf_embed(&client));
    OK(mf_frame_allocate(client, 4096, &frame));
    OK(mf_frame_allocate(client, 4096, &other));
    OK(mf_queue_open(client, 16, &queue));
    pointers();
    values();
    lengths();
    failed();
    memory();
    derived();
    queues();
    threads();
    forked();
    freed();
    printf("%d failures\n", failures);
    return failures != 0;
}
