/* Two sessions share a frame by a grant: the reader may read what the owner wrote, and nothing else, until the owner revokes it.
 *
 * The argument is the path of a service's socket, where the two could also be two processes; without one the service is in this
 * process. */
#include <memferry.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        mf_error error = (call);                                                                                      \
        if (error != MF_ERROR_NONE) {                                                                                 \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)error, mf_last_message());                                    \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

/* Prints the refusal; 0 when it is the expected one. */
static int refused(mf_error expected, mf_error error) {
    printf("refused: %s\n", mf_last_message());
    return error != expected;
}

int main(int argc, char **argv) {
    mf_client owner, reader;
    mf_frame secret, granted, copy;
    mf_queue queue;
    mf_ticket ticket;
    uint64_t reader_session, owner_session, grantor;
    mf_grant_token token; /* token.value is the number that another process needs */
    char text[32];

    CHECK(argc > 1 ? mf_connect(argv[1], &owner) : mf_embed(&owner));
    CHECK(argc > 1 ? mf_connect(argv[1], &reader) : mf_embed(&reader));
    CHECK(mf_frame_allocate(owner, 4096, &secret));
    CHECK(mf_frame_write(secret, 100, "only to be read", 16));

    CHECK(mf_session(reader, &reader_session));
    CHECK(mf_grant_session(mf_part(secret, 100, 16), MF_RIGHTS_READ, reader_session, &token));

    CHECK(mf_accept(reader, token, &granted));
    CHECK(mf_frame_grantor(granted, &grantor));
    CHECK(mf_session(owner, &owner_session));
    if (grantor != owner_session) {
        fprintf(stderr, "another session granted it: %llu\n", (unsigned long long)grantor);
        return 1;
    }
    CHECK(mf_frame_allocate(reader, 4096, &copy));
    CHECK(mf_queue_open(reader, 4, &queue));
    CHECK(mf_submit_copy(queue, mf_all(granted), mf_all(copy), NULL, &ticket));
    CHECK(mf_wait(queue, ticket, MF_FOREVER, NULL));
    CHECK(mf_frame_read(copy, 0, text, 16));
    printf("read through the grant: %s\n", text);

    CHECK(mf_submit_fill(queue, mf_all(granted), 0, 1, NULL, &ticket));
    if (refused(MF_ERROR_MISSING_RIGHT, mf_wait(queue, ticket, MF_FOREVER, NULL)))
        return 1;
    CHECK(mf_revoke(owner, token));
    CHECK(mf_submit_copy(queue, mf_all(granted), mf_all(copy), NULL, &ticket));
    if (refused(MF_ERROR_REVOKED, mf_wait(queue, ticket, MF_FOREVER, NULL)))
        return 1;

    CHECK(mf_queue_close(queue));
    CHECK(mf_frame_free(copy));
    CHECK(mf_frame_free(granted));
    CHECK(mf_frame_free(secret));
    CHECK(mf_disconnect(reader));
    CHECK(mf_disconnect(owner));
    return 0;
}
